#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
use super::*;
use std::{fs, path::Path};

/// Compares the generic description of a `config.json` with the description by its architecture, for all
/// architectures.
#[test]
fn what_any_configuration_says_is_what_its_architecture_knows() {
    let fixtures =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../integration_tests/reference/fixtures/architectures");
    let mut compared = 0;
    for entry in fs::read_dir(fixtures).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let config: Value = serde_json::from_slice(&fs::read(path.join("config.json")).unwrap()).unwrap();
        // Some fixtures exist to be refused.
        let Ok(native) = describe(&config, &WeightChoices::default(), BackendKind::Candle) else { continue };
        for backend in [BackendKind::Ort, BackendKind::Python] {
            let any = describe(&config, &WeightChoices::default(), backend).unwrap();
            assert_eq!((any.hidden, any.vocabulary), (native.hidden, native.vocabulary), "{name}");
            assert!(!native.has_token_types || any.has_token_types, "{name}");
            assert_eq!(any.max_length, native.max_length, "{name}");
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn a_backend_that_is_not_built_in_is_refused_by_the_name_of_its_feature() {
    for kind in BackendKind::ALL {
        assert!(not_built_in(kind).contains(&format!("--features {kind}")));
    }
    assert!(is_built_in(BackendKind::Candle));
}
