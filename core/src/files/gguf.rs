//! Presents GGUF files as repositories.
//!
//! Input: a `.gguf` file, which contains settings, tokenizer and prompt under llama.cpp's names. Output:
//! the files of a `transformers` repository in memory, so that code which reads models needs no special case.
//! The weights stay in the GGUF file, except the small dense modules. What must hold: metadata that these
//! files cannot express is refused.

mod tokenizer;

use std::path::PathBuf;

use serde_json::{Value, json};
use text_embeddings_checkpoint::ModelFile;
use text_embeddings_checkpoint::gguf::{self, DenseMatrix, File, Metadata};

use super::error::FilesError;
use super::names::{CHAT_TEMPLATE, CONFIG, MODULES, POOLING, SPECIAL_TOKENS, TOKENIZER, module_files};
use super::reading::MemoryFiles;
use crate::families::{self, Family};
use crate::templates::PromptTemplate;

/// The prompt that llama.cpp's converter writes to a re-ranker's file.
const RERANK_TEMPLATE: &str = "tokenizer.chat_template.rerank";
/// The placeholders of the texts in it.
const PLACES: [&str; 2] = ["{query}", "{document}"];

/// llama.cpp's name of EmbeddingGemma's architecture.
const EMBEDDING_GEMMA: &str = "gemma-embedding";

/// The files of a repository for a GGUF file.
pub(super) fn unpack(gguf: &ModelFile) -> Result<MemoryFiles, FilesError> {
    let file = File::open(gguf.clone()).map_err(FilesError::Weights)?;
    let config = gguf::config(&file).map_err(FilesError::Weights)?;
    let unsupported = |reason: String| FilesError::Weights(file.unsupported(reason));
    let tokenizer = tokenizer::build(&file).map_err(unsupported)?;
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |name: &str, content: String| files.push((name.to_owned(), content.into_bytes()));
    add(CONFIG, config.to_string());
    add(TOKENIZER, tokenizer.to_string());
    if let Some(mode) = pooling(&file)? {
        add(POOLING, json!({ (mode): true }).to_string());
    }
    if let Some(template) = template(&file.metadata, &config).map_err(unsupported)? {
        add(CHAT_TEMPLATE, template);
        add(SPECIAL_TOKENS, special_tokens(&file.metadata).to_string());
    }
    let dense = file.dense().map_err(FilesError::Weights)?;
    if dense.is_empty() && file.architecture() == EMBEDDING_GEMMA {
        tracing::warn!(
            "The file has no dense modules (`dense_2`, `dense_3`): its vectors are not those of EmbeddingGemma, which has \
             two; `convert_hf_to_gguf.py --sentence-transformers-dense-modules` writes them"
        );
    }
    files.extend(dense_modules(&dense));
    Ok(MemoryFiles::from_files(gguf.path().to_owned(), files))
}

/// The special tokens that a chat template may write, by their names in one.
fn special_tokens(metadata: &Metadata) -> Value {
    let names = [("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")];
    let tokens = metadata.texts("tokenizer.ggml.tokens").unwrap_or_default();
    let named = names.into_iter().filter_map(|(name, own)| {
        let id = metadata.number(&format!("tokenizer.ggml.{own}_token_id"))?;
        Some((format!("{name}_token"), Value::from(tokens.get(id)?.as_str())))
    });
    Value::Object(named.collect())
}

/// The files of the dense modules: matrices without a bias or an activation.
fn dense_modules(matrices: &[DenseMatrix]) -> Vec<(String, Vec<u8>)> {
    if matrices.is_empty() {
        return Vec::new();
    }
    let module = |path: &str, class: &str| json!({ "path": path, "type": format!("sentence_transformers.models.{class}") });
    let mut modules = vec![module("", "Transformer"), module("1_Pooling", "Pooling")];
    let mut files = Vec::new();
    for (index, DenseMatrix { outputs, inputs, values }) in matrices.iter().enumerate() {
        let path = format!("{}_Dense", index + 2);
        modules.push(module(&path, "Dense"));
        let config = json!({
            "in_features": inputs, "out_features": outputs, "bias": false,
            "activation_function": "torch.nn.modules.linear.Identity",
        });
        let [config_file, weights] = module_files(&path, |_| true);
        files.push((config_file, config.to_string().into_bytes()));
        files.push((weights, safetensors(values, [*outputs, *inputs])));
    }
    files.push((MODULES.to_owned(), json!(modules).to_string().into_bytes()));
    files
}

/// A file with the matrix of a dense module, `shape` `[outputs, inputs]`, in memory.
pub(super) fn matrix_file(name: PathBuf, values: Vec<f64>, shape: [usize; 2]) -> ModelFile {
    let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
    ModelFile::Memory { name, bytes: safetensors(&values, shape).into() }
}

/// A safetensors file with the tensor `linear.weight`.
fn safetensors(values: &[f32], shape: [usize; 2]) -> Vec<u8> {
    let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [0, size_of_val(values)] });
    let header = json!({ "linear.weight": entry }).to_string();
    let values = values.iter().flat_map(|value| value.to_le_bytes());
    (header.len() as u64).to_le_bytes().into_iter().chain(header.into_bytes()).chain(values).collect()
}

/// The switch in `1_Pooling/config.json` for the file's pooling. `None` if the file names no pooling, or
/// marks a re-ranker.
fn pooling(file: &File) -> Result<Option<&'static str>, FilesError> {
    let key = format!("{}.pooling_type", file.architecture());
    match file.metadata.get(&key).map(|_| file.metadata.number(&key)) {
        None | Some(Some(0 | 4)) => Ok(None),
        Some(Some(1)) => Ok(Some("pooling_mode_mean_tokens")),
        Some(Some(2)) => Ok(Some("pooling_mode_cls_token")),
        Some(Some(3)) => Ok(Some("pooling_mode_lasttoken")),
        Some(_) => Err(FilesError::Weights(
            file.unsupported(format!("`{key}` must be 0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)")),
        )),
    }
}

/// The chat template: the file's own, otherwise the converter's prompt. If that prompt is built in, the
/// built-in one applies instead, because it also has a place for an instruction.
fn template(metadata: &Metadata, config: &Value) -> Result<Option<String>, String> {
    let own = metadata.text("tokenizer.chat_template").map(str::to_owned);
    let Some(baked) = metadata.text(RERANK_TEMPLATE) else { return Ok(own) };
    if let Some(family) = family_of(baked, config) {
        tracing::info!(
            "The prompt in the file (`{RERANK_TEMPLATE}`) belongs to the family {}: the server uses its built-in prompt",
            family.name
        );
        return Ok(own);
    }
    tracing::warn!(
        "The prompt in the file (`{RERANK_TEMPLATE}`) is not built in: the server uses it as it is, without a place for an \
         instruction; `--chat-template NAME` chooses a built-in one"
    );
    jinja(baked).map(Some)
}

/// The family whose prompt, with its default instruction, equals `baked`.
fn family_of(baked: &str, config: &Value) -> Option<&'static Family> {
    let model_type = config["model_type"].as_str().unwrap_or_default();
    let [query, document] = PLACES;
    families::ALL.iter().copied().find(|family| {
        family.list.is_none()
            && family.model_types.contains(&model_type)
            && PromptTemplate::builtin(family).render(family.default_instruction, query, document) == baked
    })
}

/// Turns a prompt with placeholders for the texts into a chat template with their roles.
fn jinja(baked: &str) -> Result<String, String> {
    let [query, document] = PLACES;
    let (Some(first), Some(second)) = (baked.find(query), baked.find(document)) else {
        return Err(format!(
            "its prompt (`{RERANK_TEMPLATE}`) has no place for `{query}` or for `{document}`"
        ));
    };
    if first > second || baked.matches(query).count() + baked.matches(document).count() > 2 {
        return Err(format!(
            "its prompt (`{RERANK_TEMPLATE}`) does not have `{query}` once and then `{document}` once"
        ));
    }
    let slot = |role: &str| {
        format!(
            "{{{{ messages | selectattr(\"role\", \"eq\", \"{role}\") | map(attribute=\"content\") | first }}}}"
        )
    };
    let between = &baked[first + query.len()..second];
    let parts = [&baked[..first], between, &baked[second + document.len()..]]
        .map(|text| format!("{{{{ {} }}}}", json!(text)));
    let [before, between, after] = parts;
    Ok([before, slot("query"), between, slot("document"), after].concat())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::families::QWEN3_RERANKER;
    use crate::templates::MessageStyle;

    #[test]
    fn a_prompt_that_was_baked_in_is_the_built_in_one_or_a_template() {
        let config = json!({ "model_type": "qwen3" });
        let builtin = PromptTemplate::builtin(&QWEN3_RERANKER);
        let baked = builtin.render(QWEN3_RERANKER.default_instruction, "{query}", "{document}");
        assert_eq!(family_of(&baked, &config), Some(&QWEN3_RERANKER));
        assert_eq!(family_of(&baked, &json!({ "model_type": "llama" })), None);
        let other = "{% \"a\" %}\\ {query} {{ x }}\n{document}\u{1}end";
        assert_eq!(family_of(other, &config), None);
        let template =
            PromptTemplate::from_chat_template(&jinja(other).unwrap(), &MessageStyle::plain()).unwrap();
        assert_eq!(template.render(None, "Q", "D"), "{% \"a\" %}\\ Q {{ x }}\nD\u{1}end");
        for wrong in ["{query}", "{document} {query}", "{query} {document} {query}", ""] {
            assert!(jinja(wrong).unwrap_err().contains(RERANK_TEMPLATE), "{wrong}");
        }
    }
}
