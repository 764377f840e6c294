//! Embedding models and classifiers give the values of `sentence-transformers` and `transformers`.

use super::*;

/// A text and its reference values.
struct Case {
    name: String,
    ids: Vec<u32>,
    wanted: Wanted,
    expected: Vec<f32>,
}

/// The numbers in `value`, a list or a list of lists.
fn numbers(value: &serde_json::Value) -> Vec<f32> {
    match value {
        serde_json::Value::Array(list) => list.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap() as f32],
    }
}

/// The cases of a model that have `field`.
fn cases(model: &str, field: &str, wanted: Wanted) -> Vec<Case> {
    let pairs = pair_ids();
    let expected = json(&format!("expected/{model}.json"));
    let cases = expected.as_array().unwrap().iter().filter(|case| case.get(field).is_some());
    cases
        .filter_map(|case| {
            let name = case["name"].as_str().unwrap().to_owned();
            let own = || case["ids"].as_array().map(|_| serde_json::from_value(case["ids"].clone()).unwrap());
            let ids = own().or_else(|| pairs.get(&name).cloned())?;
            Some(Case { name, ids, wanted, expected: numbers(&case[field]) })
        })
        .collect()
}

fn check(model: &str, head: Head, cases: &[Case], enough: usize) {
    assert!(cases.len() >= enough, "{model} has {} cases", cases.len());
    let options = options_with(model, head);
    let mut backends = vec![("candle".to_owned(), load_on(candle(), &options).unwrap())];
    for set in InstructionSet::available() {
        let backend = load_on(CpuOperations::start(2, set, DType::Float32).unwrap(), &options).unwrap();
        backends.push((set.to_string(), backend));
    }
    for (backend_name, backend) in &mut backends {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        for case in cases {
            builder.push(&Text::new(&case.ids[..], case.wanted));
        }
        let predictions = backend.predict(&builder.build()).unwrap();
        assert_eq!(predictions.texts.len(), cases.len());
        for (case, got) in cases.iter().zip(&predictions.texts) {
            let what = format!("{model}, {:?}, {backend_name}, {}", options.head, case.name);
            let values = [&got.whole[..], &got.tokens.values[..]].concat();
            let width = if got.whole.is_empty() { got.tokens.width } else { got.whole.len() };
            assert_close(&values, &case.expected, 1e-4, &what);
            for (got, expected) in values.chunks(width).zip(case.expected.chunks(width)) {
                assert!(got.len() < 4 || cosine(got, expected) >= 0.999_999, "{what}");
            }
        }
    }
}

pub(super) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn every_embedding_model_gives_the_vectors_of_sentence_transformers() {
    let embedding = |pool, dense: &[DenseModule]| heads::embedding(pool, dense.to_vec());
    for (pool, field) in [(Pooling::Last, "raw"), (Pooling::Mean, "mean"), (Pooling::First, "cls")] {
        let mut all = cases("embedding-last", field, Wanted::WHOLE);
        all.extend(cases("embedding-last", "tokens", Wanted::TOKENS));
        check("embedding-last", embedding(pool, &[]), &all, 40);
    }
    let dense = DenseModule {
        weights: fixtures().join("models/embedding-mean-dense/2_Dense/model.safetensors").into(),
        in_features: 32,
        out_features: 19,
        bias: true,
        activation: Activation::Tanh,
    };
    let mut all = cases("embedding-mean-dense", "raw", Wanted::WHOLE);
    all.extend(cases("embedding-mean-dense", "tokens", Wanted::TOKENS));
    check("embedding-mean-dense", embedding(Pooling::Mean, &[dense]), &all, 30);
}

#[test]
fn every_classifier_gives_the_logits_of_transformers() {
    for (model, labels, enough) in [("seq-cls-1", 1, 50), ("seq-cls-2", 2, 50), ("seq-cls-3", 3, 11)] {
        let all = cases(model, "logits", Wanted::WHOLE);
        assert!(all.iter().all(|case| case.expected.len() == labels));
        check(model, Head::classification(labels), &all, enough);
    }
}

/// A padding token at the end does not count: transformers 5.23 gives the same logits for texts with and
/// without it.
#[test]
fn a_classifier_reads_the_last_token_that_is_not_padding() {
    let (words, one) = ([-2.257_752_4, 0.199_491_59, 2.172_665], [-0.284_576_4, 2.155_493_7, 2.007_991]);
    let padding = [-1.964_630_6, 2.506_331_2, -1.048_192_4];
    let case = |ids: &[u32], expected: [f32; 3]| Case {
        name: format!("{ids:?}"),
        ids: ids.to_vec(),
        wanted: Wanted::WHOLE,
        expected: expected.to_vec(),
    };
    let cases = [
        case(&[951, 82, 11], words),
        case(&[951, 82, 11, 1300, 1300], words),
        case(&[1300, 951], one),
        case(&[1300, 951, 1300, 1300], one),
        case(&[1300], padding),
        case(&[1300, 1300], padding),
    ];
    check("seq-cls-3", Head::classification(3), &cases, 6);
}

/// A checkpoint converted to one label scores like the original.
#[test]
fn a_converted_checkpoint_scores_as_the_causal_one() {
    let pairs: Vec<Vec<u32>> = super::cases("untied-f16").into_iter().map(|(_, ids, _)| ids).collect();
    let converted = options_with("seq-cls-1", Head::classification(1));
    let scores = [options("untied-f16"), converted].map(|options| {
        let mut backend =
            load_on(CpuOperations::start(2, InstructionSet::best(), DType::Float32).unwrap(), &options)
                .unwrap();
        predict(backend.as_mut(), batch(BatchBuilder::new(Packing::SHARED), &pairs))
    });
    assert_eq!(scores[0], scores[1]);
}
