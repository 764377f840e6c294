//! Parts of the description that are not derived: the key, the headers of costs, the second names of routes
//! and fields, and the second format.
//!
//! Input: the description that is derived from handlers and bodies. Output: the complete description. What
//! must hold: an addition is true of every route that it is added to.

use axum::http::Method;
use serde_json::Value;
use text_embeddings_core::service::Cost;
use utoipa::{
    Modify,
    openapi::{
        Components, Header, Object, OpenApi as Document, PathItem, RefOr, Schema, Type,
        path::Operation,
        schema::{AnyOfBuilder, OneOfBuilder, SchemaType},
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};

use crate::{
    cost,
    http::{
        format::MESSAGE_PACK,
        routes::{Listed, ROUTES, Route, VERTEX_PATH},
        score,
    },
};

const JSON: &str = "application/json";
/// Schemas whose alternatives overlap: a value may fit several, which `oneOf` forbids.
const OVERLAPPING: [&str; 4] = ["VertexInstance", "RerankAnswer", "MainTaskRequest", "MainTaskAnswer"];
/// Bodies that take the fields of `RerankOptions` in addition to their own.
const WITH_OPTIONS: [&str; 4] =
    ["RerankDocumentsRequest", "MixedbreadRerankRequest", "NimRankingRequest", "ScoreRequest"];
const OPTIONS: &str = "RerankOptions";

/// The ends of the names of schemas that clients send.
const SENT: [&str; 4] = ["Request", "Options", "Parameters", "Arguments"];

/// Adds all parts.
pub(super) struct Additions;

impl Modify for Additions {
    fn modify(&self, description: &mut Document) {
        describe_costs(description);
        let components = description.components.get_or_insert_default();
        allow_overlaps(components);
        add_null_defaults(components);
        add_options(components);
        name_pairs(components);
        let key = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("key", key);
        add_second_names(description);
        add_message_pack(description);
    }
}

/// Describes each further path of an action as its first path is described.
fn add_second_names(description: &mut Document) {
    let paths = &mut description.paths.paths;
    for route in ROUTES.iter().filter(|route| route.listed == Listed::Described) {
        let Some(first) = ROUTES.iter().find(|first| first.action == route.action) else { continue };
        let (Some(item), false) = (paths.get_mut(first.path.as_ref()), first.path == route.path) else {
            continue;
        };
        let mut operation = operation_of(item, route).clone();
        if let Some(id) = operation.as_mut().and_then(|operation| operation.operation_id.as_mut()) {
            let path = route.path.trim_start_matches('/').replace('/', "_");
            *id = format!("{id}_{}", if path.is_empty() { "root" } else { &path });
        }
        let item = paths.entry(route.path.clone().into_owned()).or_default();
        *operation_of(item, route) = operation;
    }
}

/// The description of a route, in the item of its path.
pub(super) fn operation_of<'a>(item: &'a mut PathItem, route: &Route) -> &'a mut Option<Operation> {
    if route.method == Method::GET { &mut item.get } else { &mut item.post }
}

/// Makes `anyOf` of each `oneOf` whose alternatives overlap.
fn allow_overlaps(components: &mut Components) {
    for name in OVERLAPPING {
        if let Some(RefOr::T(schema)) = components.schemas.get_mut(name)
            && let Schema::OneOf(bodies) = schema
        {
            let any = AnyOfBuilder::new().description(bodies.description.take());
            *schema = bodies.items.drain(..).fold(any, AnyOfBuilder::item).into();
        }
    }
}

/// Says of every field that a client may send as null that leaving it out is the same.
fn add_null_defaults(components: &mut Components) {
    for (name, schema) in &mut components.schemas {
        if let RefOr::T(Schema::Object(body)) = schema
            && SENT.iter().any(|end| name.ends_with(end))
        {
            body.properties.values_mut().for_each(add_null_default);
        }
    }
}

fn add_null_default(property: &mut RefOr<Schema>) {
    let may_be_null =
        |kind: &SchemaType| matches!(kind, SchemaType::Array(kinds) if kinds.contains(&Type::Null));
    let default = match property {
        RefOr::T(Schema::Object(value)) if may_be_null(&value.schema_type) => &mut value.default,
        RefOr::T(Schema::Array(list)) if may_be_null(&list.schema_type) => &mut list.default,
        RefOr::T(Schema::OneOf(forms)) if forms.items.contains(&Object::with_type(Type::Null).into()) => {
            &mut forms.default
        }
        _ => return,
    };
    default.get_or_insert(Value::Null);
}

/// Puts the shared options among the fields of the bodies that take them.
fn add_options(components: &mut Components) {
    let Some(RefOr::T(Schema::Object(options))) = components.schemas.remove(OPTIONS) else { return };
    for name in WITH_OPTIONS {
        if let Some(RefOr::T(Schema::Object(body))) = components.schemas.get_mut(name) {
            body.properties.extend(options.properties.clone());
        }
    }
}

/// Describes a body of pairs under each two names of its sides.
fn name_pairs(components: &mut Components) {
    let Some(RefOr::T(schema)) = components.schemas.get_mut("ScoreRequest") else { return };
    let Schema::Object(body) = schema else { return };
    let [first, second] = score::NAMES[0];
    let (Some(queries), Some(documents)) = (body.properties.remove(first), body.properties.remove(second))
    else {
        return;
    };
    let variants = score::NAMES.iter().map(|names| {
        let mut variant = body.clone();
        variant.required = names.map(str::to_owned).to_vec();
        variant.properties.insert(names[0].to_owned(), queries.clone());
        variant.properties.insert(names[1].to_owned(), documents.clone());
        variant
    });
    *schema = variants.fold(OneOfBuilder::new(), OneOfBuilder::item).into();
}

/// Adds `MessagePack` to JSON on every route that takes a body.
fn add_message_pack(description: &mut Document) {
    let items = description.paths.paths.values_mut();
    for operation in items.filter_map(|item| item.post.as_mut()) {
        if let Some(RefOr::T(body)) = operation.request_body.as_mut()
            && let Some(json) = body.content.get(JSON).cloned()
        {
            body.content.insert(MESSAGE_PACK.to_owned(), json);
        }
        for response in operation.responses.responses.values_mut() {
            if let RefOr::T(response) = response
                && let Some(json) = response.content.get(JSON).cloned()
            {
                response.content.insert(MESSAGE_PACK.to_owned(), json);
            }
        }
    }
}

/// Adds the headers of costs to the routes that compute, which are the ones that may answer 503. `/vertex`
/// has no such headers.
fn describe_costs(description: &mut Document) {
    let header = |name: &str| {
        let kind = if name == "x-compute-type" { Type::String } else { Type::Integer };
        Header::new(Object::with_type(kind))
    };
    for (path, item) in &mut description.paths.paths {
        let Some(operation) = item.post.as_mut() else { continue };
        let responses = &mut operation.responses.responses;
        let computes = responses.contains_key("503") && path != VERTEX_PATH;
        if computes && let Some(RefOr::T(success)) = responses.get_mut("200") {
            let headers = cost::headers(&Cost { lists: 1, dropped: Some(1), ..Cost::default() }, "cpu");
            let names = headers.into_iter().map(|(name, _)| name.to_string());
            success.headers.extend(names.map(|name| (name.clone(), header(&name).into())));
        }
        let mut late = None;
        if let Some(RefOr::T(overloaded)) = responses.get_mut("429") {
            late = Some(overloaded.clone());
            overloaded.headers.insert("retry-after".to_owned(), header("retry-after").into());
        }
        if let Some(mut late) = late {
            "The seconds of the request's `x-request-timeout` are over".clone_into(&mut late.description);
            responses.insert("504".to_owned(), late.into());
        }
    }
}
