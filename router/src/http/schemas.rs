//! Parts of the `OpenAPI` description that handlers and bodies name: the group, and schemas that no Rust type
//! expresses.

use utoipa::openapi::{
    Object, Schema, Type,
    schema::{ObjectBuilder, OneOfBuilder},
};

/// The group of all operations.
pub(crate) const TAG: &str = "Text Embeddings Inference";

/// A field that is refused unless it is null.
pub(crate) fn only_null() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::Null)
        .description(Some("Not supported: refused unless null."))
        .build()
}

/// -1, or at least 1, or null.
pub(crate) fn prompt_tokens() -> Schema {
    let number = |least: i64| ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least));
    OneOfBuilder::new()
        .item(Object::with_type(Type::Null))
        .item(number(-1).maximum(Some(-1_i64)))
        .item(number(1))
        .description(Some(
            "vLLM: the most tokens of a prompt, template and instruction included; -1 for as many as the \
             model takes.",
        ))
        .build()
        .into()
}
