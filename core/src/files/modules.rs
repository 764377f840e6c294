//! The modules after the pooling: folders such as `2_Dense` and `3_LayerNorm`, each with its own weights.
//!
//! Input: `modules.json` and `--dense-path`. Output: the modules in the order in which they process a vector,
//! and the files that they need. What must hold: every path stays inside the model's folder; a module that
//! would change the result is used, or refused by name, but never left out.

use text_embeddings_backend_core::{BackendKind, HeadModule};

use super::config::Module;
use super::error::FilesError;
use super::module_settings::{DenseRole, load_dense, load_layer_norm};
use super::names::{CONFIG, MODULES, is_inside, module_config};
use super::repository::Repository;

/// The permitted order: a module follows only modules with the same or a smaller number. `Dense` and
/// `LayerNorm` mix.
///
/// pplx-embed's `FlexibleQuantizer` rounds vectors to whole numbers. Here the architecture itself does that.
const ORDER: [(&str, usize); 6] = [
    ("Transformer", 0),
    ("Pooling", 1),
    ("Dense", 2),
    ("LayerNorm", 2),
    ("Normalize", 3),
    ("FlexibleQuantizer", 3),
];

/// The most modules with weights. Without a limit, a Hub could make this server download without end.
const MAX_MODULES: usize = 64;

/// A module with weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WeightedModule {
    /// Whether it is a `LayerNorm`. Otherwise it is a `Dense`.
    pub(super) is_norm: bool,
    /// Its folder, relative to the model's.
    pub(super) path: String,
}

/// The modules with weights. `dense_path` replaces the folder of the only dense module, or adds a dense
/// module.
pub(super) fn steps(modules: &[Module], dense_path: Option<&str>) -> Result<Vec<WeightedModule>, FilesError> {
    let mut steps = Vec::new();
    for module in modules {
        let is_norm = match module.class_name() {
            "Dense" => false,
            "LayerNorm" => true,
            _ => continue,
        };
        steps.push(WeightedModule { is_norm, path: module.path.clone() });
    }
    if let Some(path) = dense_path {
        let named: Vec<&str> = steps.iter().filter(|step| !step.is_norm).map(|step| &*step.path).collect();
        if named.len() > 1 {
            return Err(FilesError::Refused(format!(
                "`--dense-path {path}` stands in for one dense module, but modules.json names several ({}): leave \
                 the flag out",
                named.join(", ")
            )));
        }
        match steps.iter_mut().find(|step| !step.is_norm) {
            Some(step) => path.clone_into(&mut step.path),
            None => steps.push(WeightedModule { is_norm: false, path: path.to_owned() }),
        }
    }
    if steps.len() > MAX_MODULES {
        let after = format!(" and others with weights more than {MAX_MODULES} times");
        return Err(FilesError::UnsupportedModule { class: "Dense".to_owned(), after });
    }
    match steps.iter().find(|step| !is_inside(&step.path)) {
        Some(WeightedModule { path, .. }) => Err(FilesError::Refused(format!(
            "the dense module's folder `{path}` is not a folder below the model's: correct modules.json, or give \
             `--dense-path` a name such as `2_Dense`"
        ))),
        None => Ok(steps),
    }
}

/// The configuration file of the module with this class, if modules.json names one. Without the settings of
/// such a module the results would be others, so its folder must be below the model's.
pub(super) fn config_of(modules: &[Module], class: &str) -> Result<Option<String>, FilesError> {
    let Some(module) = modules.iter().find(|module| module.class_name() == class) else { return Ok(None) };
    let path = module.path.strip_prefix("./").unwrap_or(&module.path);
    if is_inside(path) {
        return Ok(Some(module_config(path)));
    }
    Err(FilesError::Refused(format!(
        "modules.json names `{}` as the folder of the module `{class}`, which is not a folder below the model's: \
         correct it to a name such as `1_{class}`",
        module.path
    )))
}

/// The modules. The first one must be a transformer with its files at the top.
pub(super) async fn read_modules(
    files: &Repository<'_>,
    backend: BackendKind,
) -> Result<Vec<Module>, FilesError> {
    let mut modules: Vec<Module> = files.read_json(MODULES).await?.unwrap_or_default();
    // It does nothing but in training.
    modules.retain(|module| module.class_name() != "Dropout");
    let (Some(first), BackendKind::Candle | BackendKind::Ort) = (modules.first(), backend) else {
        return Ok(modules);
    };
    let (class, path) = (first.class_name(), first.path.trim_end_matches('/'));
    if class == "Transformer" && !["", "."].contains(&path) && files.has(&module_config(path)) {
        return Err(FilesError::Refused(format!(
            "modules.json puts the module `Transformer` into the folder `{}`, which is not supported: load the model \
             with a current sentence-transformers and save it again, which puts the module's files at the top",
            first.path
        )));
    }
    if class != "Transformer" && !files.has(CONFIG) {
        let (class, after) = (class.to_owned(), " first".to_owned());
        return Err(FilesError::UnsupportedModule { class, after });
    }
    Ok(modules)
}

/// Refuses a module of an unknown class in an embedding model. It needs nothing but
/// modules.json, so it comes before tokenizer and weights are looked for.
pub(super) fn refuse_unknown(modules: &[Module], backend: BackendKind) -> Result<(), FilesError> {
    let mut classes = modules.iter().map(Module::class_name);
    let poolings = classes.clone().filter(|class| *class == "Pooling").count();
    // sentence-transformers reads the modules itself with the Python backend.
    if poolings == 0 || backend == BackendKind::Python {
        return Ok(());
    }
    if poolings > 1 {
        let after = " more than once".to_owned();
        return Err(FilesError::UnsupportedModule { class: "Pooling".to_owned(), after });
    }
    match classes.find(|class| *class != "LogitScore" && ORDER.iter().all(|(known, _)| known != class)) {
        Some(class) => Err(FilesError::UnsupportedModule { class: class.to_owned(), after: String::new() }),
        None => Ok(()),
    }
}

/// Refuses unsupported modules and a wrong order. `may_normalize` says whether the last module may be
/// Normalize.
pub(super) fn check_order(modules: &[Module], may_normalize: bool) -> Result<(), FilesError> {
    let mut last = ("", 0);
    for class in modules.iter().map(Module::class_name) {
        if class == "LogitScore" {
            return Err(FilesError::RerankerModule);
        }
        let unsupported = |after: String| FilesError::UnsupportedModule { class: class.to_owned(), after };
        match ORDER.iter().find(|(known, _)| *known == class) {
            Some((_, 3)) if !may_normalize => return Err(unsupported(" in a cross-encoder".to_owned())),
            Some((known, place)) if *place >= last.1 => last = (known, *place),
            Some(_) => return Err(unsupported(format!(" behind `{}`", last.0))),
            None => return Err(unsupported(String::new())),
        }
    }
    Ok(())
}

/// Reads the modules in order. `role` is the last one's; if that computes a raw score, the others compute
/// vectors.
pub(super) async fn load_steps(
    repository: &Repository<'_>,
    steps: &[WeightedModule],
    role: DenseRole,
) -> Result<Vec<HeadModule>, FilesError> {
    let mut modules = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        modules.push(if step.is_norm {
            HeadModule::LayerNorm(load_layer_norm(repository, &step.path).await?)
        } else {
            let is_last = index + 1 == steps.len();
            let role = if role == DenseRole::Scores && !is_last { DenseRole::Vector } else { role };
            HeadModule::Dense(load_dense(repository, &step.path, role).await?)
        });
    }
    Ok(modules)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::names::module_files;
    use super::*;

    fn modules(paths: &[&str]) -> Vec<Module> {
        let module = |path: &&str| {
            let class = path.split_once('_').map_or("Dense", |(_, class)| class);
            Module { class: format!("sentence_transformers.models.{class}"), path: (*path).to_owned() }
        };
        let transformer = Module { class: "x.Transformer".to_owned(), path: String::new() };
        [transformer].into_iter().chain(paths.iter().map(module)).collect()
    }

    #[test]
    fn the_flag_stands_in_for_the_one_dense_module() {
        let table: [(&[&str], Option<&str>, &[&str]); 6] = [
            (&[], None, &[]),
            (&["2_Dense"], None, &["2_Dense"]),
            (&["2_Dense", "3_LayerNorm", "4_Dense"], None, &["2_Dense", "3_LayerNorm", "4_Dense"]),
            (&["2_Dense"], Some("2_Dense_1024"), &["2_Dense_1024"]),
            (&["2_LayerNorm", "3_Dense"], Some("other"), &["2_LayerNorm", "other"]),
            (&[], Some("extra/2_Dense/"), &["extra/2_Dense/"]),
        ];
        for (named, flag, expected) in table {
            let steps = steps(&modules(named), flag).unwrap();
            let paths: Vec<&str> = steps.iter().map(|step| step.path.as_str()).collect();
            assert_eq!(paths, expected, "{named:?} {flag:?}");
            assert!(steps.iter().all(|step| step.is_norm == step.path.ends_with("LayerNorm")));
        }
        let message = steps(&modules(&["2_Dense", "3_Dense"]), Some("x")).unwrap_err().to_string();
        assert!(message.contains("`--dense-path x`") && message.contains("2_Dense, 3_Dense"), "{message}");
        let message = steps(&modules(&["2_Dense"; 65]), None).unwrap_err().to_string();
        assert!(message.contains("more than 64 times"), "{message}");
        let files = |there: &str| module_files("2_Dense/", |file| there.contains(file));
        assert_eq!(files(""), ["2_Dense/config.json", "2_Dense/model.safetensors"]);
        assert_eq!(files("2_Dense/pytorch_model.bin"), ["2_Dense/config.json", "2_Dense/pytorch_model.bin"]);
    }

    #[test]
    fn never_a_path_out_of_the_models_folder() {
        for path in ["", ".", "..", "../2_Dense", "2_Dense/../..", "/etc", "./2_Dense"] {
            let by_flag = steps(&[], Some(path)).unwrap_err().to_string();
            let class = "x.Dense".to_owned();
            let by_file = steps(&[Module { class, path: path.to_owned() }], None).unwrap_err().to_string();
            assert!(by_flag.contains(&format!("`{path}`")) && by_flag == by_file, "{by_flag}");
            let pooling = Module { class: "x.Pooling".to_owned(), path: path.to_owned() };
            match config_of(&[pooling], "Pooling") {
                Ok(found) => assert_eq!((path, found.as_deref()), ("./2_Dense", Some("2_Dense/config.json"))),
                Err(error) => assert!(error.to_string().contains(&format!("`{path}`")), "{error}"),
            }
        }
        let pooling = modules(&["1_Pooling"]);
        assert_eq!(config_of(&pooling, "Pooling").unwrap().as_deref(), Some("1_Pooling/config.json"));
        assert_eq!(config_of(&pooling, "SpladePooling").unwrap(), None);
    }

    #[test]
    fn a_second_pooling_is_refused() {
        assert!(refuse_unknown(&modules(&["1_Pooling"]), BackendKind::Candle).is_ok());
        let message = refuse_unknown(&modules(&["1_Pooling", "2_Pooling"]), BackendKind::Candle)
            .unwrap_err()
            .to_string();
        assert!(message.contains("`Pooling` more than once"), "{message}");
    }

    #[test]
    fn modules_are_known_and_in_order() {
        let table: [(&[&str], bool, Option<&str>); 8] = [
            (&["Transformer", "Pooling", "Dense", "LayerNorm", "Dense", "Normalize"], true, None),
            (&["Transformer", "Pooling", "LayerNorm"], false, None),
            (&["Transformer", "Pooling", "Normalize"], false, Some("`Normalize` in a cross-encoder,")),
            (&["Transformer", "SpladePooling"], true, Some("`SpladePooling`,")),
            (&["Transformer", "Pooling", "Normalize", "Dense"], true, Some("`Dense` behind `Normalize`,")),
            (&["Pooling", "Transformer"], true, Some("`Transformer` behind `Pooling`,")),
            (&["StaticEmbedding"], true, Some("`StaticEmbedding`,")),
            (&["Transformer", "LogitScore"], true, Some("`LogitScore`,")),
        ];
        for (classes, may_normalize, expected) in table {
            let modules =
                classes.iter().map(|class| Module { class: format!("x.{class}"), path: String::new() });
            let found = check_order(&modules.collect::<Vec<_>>(), may_normalize);
            let message = found.err().map(|error| error.to_string());
            assert_eq!(message.is_some(), expected.is_some(), "{classes:?}: {message:?}");
            let (message, part) = (message.unwrap_or_default(), expected.unwrap_or_default());
            assert!(message.contains(part), "{message}");
        }
    }
}
