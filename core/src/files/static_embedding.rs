//! Presents static embedding models as repositories of `transformers`.
//!
//! Input: a folder of model2vec, or one of sentence-transformers whose first module is `StaticEmbedding`.
//! Output: the files of an embedding model in memory, and [`StaticTokens`], so that code which reads models
//! needs no special case. The weights stay in their file. What must hold: a tensor decides which of the two
//! libraries' rules apply; a module that would change the vectors is refused.

use serde::Deserialize;
use serde_json::{Value, json};
use text_embeddings_checkpoint::{CheckpointError, CheckpointFile};

use super::config::Module;
use super::error::FilesError;
use super::names::{
    Bound, CONFIG, MODULES, POOLING, PROMPTS, SENTENCE_BERT, TOKENIZER, is_inside, single_file,
};
use super::reading::{FileText, MemoryFiles, read_text, remedy};
use super::repository::Repository;
use super::weights::{NEEDS_WEIGHTS, Selection, check_weights};

/// The `model_type` of model2vec.
pub(super) const MODEL2VEC: &str = "model2vec";
/// The module of sentence-transformers.
const STATIC: &str = "StaticEmbedding";
/// The classifier that model2vec trains on its vectors.
const CLASSIFIER: &str = "pipeline.skops";
/// The table in a folder of model2vec, and in one of sentence-transformers.
const TABLES: [&str; 2] = ["embeddings", "embedding.weight"];
/// model2vec's longest input in tokens if config.json does not say.
const MODEL2VEC_MAX_LENGTH: usize = 512;

/// How a static embedding model makes tokens of a text. No special tokens surround it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StaticTokens {
    /// The token id that stands for a text without tokens. Its vector is zero.
    pub(crate) blank: u32,
    /// The rules of model2vec; absent for sentence-transformers.
    pub(crate) model2vec: Option<UnknownToken>,
}

/// The token of characters that the vocabulary lacks, which model2vec leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct UnknownToken {
    /// By its text, in every kind of tokenizer but Unigram.
    pub(crate) unk_token: Option<String>,
    /// By its id, in Unigram.
    pub(crate) unk_id: Option<u32>,
}

/// The fields of `tokenizer.json` that the two libraries read outside of the tokenizer.
#[derive(Deserialize)]
struct TokenizerFields {
    truncation: Option<TruncationFields>,
    #[serde(default)]
    model: UnknownToken,
}

#[derive(Deserialize)]
struct TruncationFields {
    max_length: usize,
    direction: Option<String>,
}

/// A static embedding model, found but not read.
pub(super) struct StaticFolder {
    /// The folder of its table and tokenizer in the model's folder; empty if it is the same.
    path: String,
    /// `config.json` of model2vec, or an empty object.
    config: Value,
}

/// The files of a static embedding model.
pub(super) struct Unpacked {
    pub(super) files: MemoryFiles,
    pub(super) selection: Selection,
    pub(super) tokens: StaticTokens,
}

/// Looks for a static embedding model: `config.json` of model2vec, or none and a module `StaticEmbedding`.
pub(super) async fn find_static(files: &Repository<'_>) -> Result<Option<StaticFolder>, FilesError> {
    let config: Option<Value> = files.read_json(CONFIG).await?;
    if config.as_ref().is_some_and(|config| config["model_type"] != MODEL2VEC) {
        return Ok(None);
    }
    let modules: Vec<Module> = files.read_json(MODULES).await?.unwrap_or_default();
    let path = match modules.iter().position(|module| module.class_name() == STATIC) {
        None if config.is_none() => return Ok(None),
        None => String::new(),
        Some(index) => {
            refuse_others(&modules, index)?;
            modules[index].path.clone()
        }
    };
    let path = if path == "." { String::new() } else { path };
    if !path.is_empty() && !is_inside(&path) {
        let known = "a folder inside the model's is";
        return Err(FilesError::UnsupportedField { path: MODULES.into(), field: "path", value: path, known });
    }
    if files.has(CLASSIFIER) {
        return Err(FilesError::Refused(format!(
            "the folder has {CLASSIFIER}, so this is a classifier of model2vec, which is not supported: remove the \
             file to serve the embeddings that it reads"
        )));
    }
    Ok(Some(StaticFolder { path, config: config.unwrap_or_else(|| json!({})) }))
}

/// Refuses every other module but `Normalize`, which changes no direction.
fn refuse_others(modules: &[Module], table: usize) -> Result<(), FilesError> {
    let mut others = modules.iter().enumerate().filter(|(index, _)| *index != table);
    match others.find(|(index, module)| *index < table || module.class_name() != "Normalize") {
        None => Ok(()),
        Some((_, module)) => Err(FilesError::UnsupportedModule {
            class: module.class_name().to_owned(),
            after: format!(" next to `{STATIC}`"),
        }),
    }
}

impl StaticFolder {
    /// The files of an embedding model with mean pooling. Fetches tokenizer and weights.
    pub(super) async fn unpack_files(&self, repository: &Repository<'_>) -> Result<Unpacked, FilesError> {
        let tokenizer = self.in_folder(TOKENIZER);
        let tokenizer = repository.require(&tokenizer, Bound::Small, remedy(TOKENIZER)).await?;
        let tokenizer = read_text(&tokenizer)?;
        let fields: TokenizerFields = tokenizer.parse()?;
        let weights = single_file(|name| self.in_folder(name), |name| repository.has(name));
        let table = StaticTable::from_file(&check_weights(
            &repository.require(&weights, Bound::ANY, NEEDS_WEIGHTS).await?,
        )?)?;
        let max_length = if table.is_model2vec {
            self.model2vec_max_length()?
        } else {
            file_max_length(&fields, &tokenizer)?
        };
        let mut files = vec![
            (CONFIG, table.backend_config().to_string().into_bytes()),
            (TOKENIZER, tokenizer.text.into_bytes()),
            (POOLING, json!({ "pooling_mode_mean_tokens": true }).to_string().into_bytes()),
        ];
        if let Some(max_length) = max_length {
            files.push((SENTENCE_BERT[0], json!({ "max_seq_length": max_length }).to_string().into_bytes()));
        }
        if let Some(prompts) = repository.read_text(PROMPTS).await? {
            files.push((PROMPTS, prompts.text.into_bytes()));
        }
        Ok(Unpacked {
            files: MemoryFiles::from_files(repository.root().join(&self.path), files),
            selection: Selection::File(weights),
            tokens: StaticTokens {
                blank: table.vocabulary as u32,
                model2vec: table.is_model2vec.then_some(fields.model),
            },
        })
    }

    fn in_folder(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}/{name}", self.path.trim_end_matches('/'))
        }
    }

    /// model2vec's longest input in tokens; `None` if config.json has null, which means no limit.
    fn model2vec_max_length(&self) -> Result<Option<usize>, FilesError> {
        match &self.config["max_length"] {
            Value::Null if self.config.get("max_length").is_some() => Ok(None),
            Value::Null => Ok(Some(MODEL2VEC_MAX_LENGTH)),
            number => number.as_u64().map(|number| Some(number as usize)).ok_or_else(|| {
                FilesError::UnsupportedField {
                    path: CONFIG.into(),
                    field: "max_length",
                    value: number.to_string(),
                    known: "a number of tokens or null is",
                }
            }),
        }
    }
}

/// sentence-transformers has no limit of its own, but leaves the one of tokenizer.json.
fn file_max_length(fields: &TokenizerFields, tokenizer: &FileText) -> Result<Option<usize>, FilesError> {
    let Some(truncation) = &fields.truncation else { return Ok(None) };
    match truncation.direction.as_deref() {
        None | Some("Right") => Ok(Some(truncation.max_length)),
        Some(other) => Err(FilesError::UnsupportedField {
            path: tokenizer.path.clone(),
            field: "truncation.direction",
            value: other.to_owned(),
            known: "`Right` is",
        }),
    }
}

/// The table of a static embedding model, by the shapes of its tensors.
struct StaticTable {
    is_model2vec: bool,
    /// `[rows, values]`
    shape: [usize; 2],
    /// The number of token ids.
    vocabulary: usize,
    has_mapping: bool,
    has_weights: bool,
}

impl StaticTable {
    fn from_file(file: &CheckpointFile) -> Result<Self, FilesError> {
        let found = TABLES.iter().find_map(|name| match file.tensors.get(*name)?.shape() {
            &[rows, values] => Some((*name, [rows, values])),
            _ => None,
        });
        let Some((name, [rows, values])) = found else {
            return Err(FilesError::Weights(CheckpointError::Missing { name: TABLES[0].to_owned() }));
        };
        let is_model2vec = name == TABLES[0];
        let mapping = if is_model2vec { file.tensors.get("mapping") } else { None };
        let mapping: Option<usize> = mapping.map(|tensor| tensor.shape().iter().product());
        Ok(Self {
            is_model2vec,
            shape: [rows, values],
            vocabulary: mapping.unwrap_or(rows),
            has_mapping: mapping.is_some(),
            has_weights: is_model2vec && file.tensors.contains_key("weights"),
        })
    }

    fn backend_config(&self) -> Value {
        let [rows, values] = self.shape;
        json!({
            "model_type": MODEL2VEC, "architectures": [STATIC], "hidden_size": values,
            "vocab_size": self.vocabulary, "table": TABLES[usize::from(!self.is_model2vec)], "table_rows": rows,
            "has_mapping": self.has_mapping, "has_weights": self.has_weights, "blank_token_id": self.vocabulary,
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::fake_hub::{ModelFiles, open, write_files};
    use super::super::folder::ModelFolder;
    use super::*;

    const MODULES_OF_MODEL2VEC: &str = r#"[{"path":".","type":"sentence_transformers.models.StaticEmbedding"},
        {"path":"1_Normalize","type":"sentence_transformers.models.Normalize"}]"#;
    const TOKENIZER_TEXT: &str = r#"{"truncation":{"max_length":29,"direction":"Right","strategy":"LongestFirst",
        "stride":0},"model":{"type":"WordPiece","unk_token":"[UNK]","vocab":{}}}"#;

    /// A safetensors file with tensors of these shapes, all of F32.
    fn safetensors_of(tensors: &[(&str, &[usize])]) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        let mut end = 0;
        for (name, shape) in tensors {
            let start = end;
            end += 4 * shape.iter().product::<usize>();
            header.insert(
                (*name).to_owned(),
                json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] }),
            );
        }
        let header = Value::Object(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + end, 0);
        file
    }

    fn folder_files(
        config: Option<&str>,
        modules: &str,
        folder: &str,
        tensors: &[(&str, &[usize])],
    ) -> ModelFiles {
        let mut files = ModelFiles::from([
            ("modules.json".to_owned(), modules.into()),
            (format!("{folder}tokenizer.json"), TOKENIZER_TEXT.into()),
            (format!("{folder}model.safetensors"), safetensors_of(tensors)),
        ]);
        files.extend(config.map(|config| ("config.json".to_owned(), config.into())));
        files
    }

    fn model2vec(config: &str, tensors: &[(&str, &[usize])]) -> ModelFiles {
        folder_files(Some(config), MODULES_OF_MODEL2VEC, "", tensors)
    }

    fn read_folder(files: &ModelFiles) -> Result<ModelFolder, String> {
        let folder = tempfile::tempdir().unwrap();
        write_files(folder.path(), files);
        open(folder.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_and_rules_follow_from_the_tensors() {
        let table: &[(&str, &[usize])] = &[("embeddings", &[5, 3])];
        let quantised: &[(&str, &[usize])] = &[("embeddings", &[5, 3]), ("mapping", &[9]), ("weights", &[9])];
        let static_embedding = |path: &str| format!(r#"[{{"path":"{path}","type":"x.StaticEmbedding"}}]"#);
        let plain: &[(&str, &[usize])] = &[("embedding.weight", &[5, 3])];
        let of_model2vec = |extra: &str| format!(r#"{{"model_type":"model2vec"{extra}}}"#);
        for (files, vocabulary, max_length, is_model2vec) in [
            (model2vec(&of_model2vec(""), table), 5, Some(512), true),
            (model2vec(&of_model2vec(r#","max_length":7"#), quantised), 9, Some(7), true),
            (model2vec(&of_model2vec(r#","max_length":null"#), table), 5, None, true),
            (folder_files(Some(&of_model2vec("")), "[]", "", table), 5, Some(512), true),
            (folder_files(None, &static_embedding(""), "", plain), 5, Some(29), false),
            (folder_files(None, &static_embedding("0_X"), "0_X/", plain), 5, Some(29), false),
        ] {
            let model = read_folder(&files).unwrap();
            let config = &model.config.raw;
            assert_eq!((&config["vocab_size"], &config["hidden_size"]), (&json!(vocabulary), &json!(3)));
            assert_eq!((&config["has_mapping"], &config["table_rows"]), (&json!(vocabulary == 9), &json!(5)));
            assert_eq!(model.max_seq_length, max_length);
            let tokens = model.static_tokens.unwrap();
            assert_eq!((tokens.blank, tokens.model2vec.is_some()), (vocabulary, is_model2vec));
            assert!(tokens.model2vec.is_none_or(|unknown| unknown.unk_token.as_deref() == Some("[UNK]")));
        }
    }

    #[test]
    fn what_is_near_but_not_it_is_refused_by_name() {
        let table: &[(&str, &[usize])] = &[("embeddings", &[5, 3])];
        let config = r#"{"model_type":"model2vec"}"#;
        let static_and = |class: &str| {
            format!(r#"[{{"path":"","type":"x.StaticEmbedding"}},{{"path":"1","type":"x.{class}"}}]"#)
        };
        let mut classifier = model2vec(config, table);
        classifier.insert(CLASSIFIER.to_owned(), b"x".to_vec());
        let mut left = model2vec(config, &[("embedding.weight", &[5, 3])]);
        left.insert("tokenizer.json".to_owned(), TOKENIZER_TEXT.replace("Right", "Left").into_bytes());
        let outside = r#"[{"path":"../x","type":"x.StaticEmbedding"}]"#;
        for (files, parts) in [
            (classifier, ["pipeline.skops", "classifier of model2vec"]),
            (left, ["truncation.direction", "`Left`"]),
            (
                folder_files(Some(config), &static_and("Dense"), "", table),
                ["`Dense` next to", "or StaticEmbedding and Normalize"],
            ),
            (
                folder_files(None, &static_and("StaticEmbedding"), "", table),
                ["`StaticEmbedding` next to", "modules"],
            ),
            (folder_files(None, outside, "", table), ["`path` of modules.json", "../x"]),
            (model2vec(r#"{"model_type":"model2vec","max_length":"x"}"#, table), ["`max_length`", "null is"]),
            (model2vec(config, &[("other", &[5, 3])]), ["no tensor `embeddings`", "download"]),
            (model2vec(config, &[("embeddings", &[15])]), ["no tensor `embeddings`", "download"]),
        ] {
            let message = read_folder(&files).unwrap_err();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }
}
