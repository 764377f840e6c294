//! The prompts before the texts of an embedding model.
//!
//! Input: flags and the model's files. Output: [`Prompts`]. What must hold: a flag takes precedence over the
//! model's files; a name that the files lack is an error that lists the names they have.

use text_embeddings_core::{
    files::{ModelFacts, ModelFolder},
    service::Prompts,
};

use crate::config::Config;

/// The prompts of an embedding model. The default is the flag's, else the model's own.
pub(super) fn prompts(config: &Config, folder: &ModelFolder) -> anyhow::Result<Prompts> {
    let mut prompts = Prompts { named: folder.prompts.clone(), default: String::new() };
    if let Some(embedder) =
        ModelFacts::from(folder).evidence().embedder().filter(|_| prompts.named.is_empty())
    {
        prompts.named.insert("query".to_owned(), embedder.query_prompt.to_owned());
    }
    let find = |place: &str, name: &str| {
        let found = prompts.find(name).map(str::to_owned);
        found.map_err(|reason| anyhow::anyhow!("{place} {reason}"))
    };
    prompts.default = match (&config.default_prompt, &config.default_prompt_name, &folder.default_prompt_name)
    {
        (Some(prompt), _, _) => prompt.clone(),
        (None, Some(name), _) => find("`--default-prompt-name`", name)?,
        (None, None, Some(name)) => find("`default_prompt_name` of config_sentence_transformers.json", name)?,
        (None, None, None) => String::new(),
    };
    Ok(prompts)
}
