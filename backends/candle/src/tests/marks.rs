//! Tests of a listwise re-ranker: the vectors of marked tokens give the reference's cosines, with every
//! implementation of the operations, whatever else is in the batch and in the prefix cache.

use super::*;

/// The allowed error of cosines in lower precisions, relative to the reference's root mean square. The
/// fixture's weights are random and large. The measured errors were 0.0092 and 0.0112.
const LOWER_PRECISIONS: [(DType, f64); 2] = [(DType::BFloat16, 0.02), (DType::Int8, 0.025)];

fn folder() -> PathBuf {
    fixtures().join("rerankers/jina-reranker-v3")
}

fn options(prefix_cache_bytes: usize) -> LoadOptions {
    LoadOptions {
        dtype: Some(DType::Float32),
        threads: 2,
        prefix_cache_bytes,
        ..LoadOptions::new(
            json("rerankers/jina-reranker-v3/config.json"),
            vec![folder().join("model.safetensors").into()],
            Head::PROJECTOR,
        )
    }
}

/// The prompts of requests with a single prompt, and the cosines of their documents. A prompt's marks are of
/// both kinds. The query's mark is the last.
fn prompts() -> Vec<(Text, Vec<f64>)> {
    let tokenizer = json("rerankers/jina-reranker-v3/tokenizer.json");
    let marks: Vec<u64> = ["<|embed_token|>", "<|rerank_token|>"]
        .map(|content| {
            let tokens = tokenizer["added_tokens"].as_array().unwrap().iter();
            tokens.clone().find(|token| token["content"] == content).unwrap()["id"].as_u64().unwrap()
        })
        .to_vec();
    let rows = json("rerankers/jina-reranker-v3.expected.json")["rows"].as_array().unwrap().clone();
    let prompt = |row: &serde_json::Value| {
        let ids: Vec<u32> = serde_json::from_value(row["prompts"][0].clone()).unwrap();
        let is_mark = |index: &usize| marks.contains(&u64::from(ids[*index]));
        let marks: Vec<usize> = (0..ids.len()).filter(is_mark).collect();
        let text = Text { marks, reusable: 120, ..Text::new(ids, Wanted::TOKENS) };
        (text, serde_json::from_value(row["raw"].clone()).unwrap())
    };
    rows.iter()
        .filter(|row| row["prompts"].as_array().unwrap().len() == 1)
        .map(prompt)
        .filter(|(text, _)| text.ids.len() < 1500)
        .collect()
}

fn vectors(backend: &mut dyn Backend, texts: &[Text]) -> Vec<Vec<f32>> {
    let mut builder = BatchBuilder::new(backend.packing());
    for text in texts {
        builder.push(text);
    }
    let outputs = backend.predict(&builder.build()).unwrap().texts;
    let check = |(output, text): (Output, &Text)| {
        assert_eq!(output.tokens.width, 512);
        assert_eq!(output.tokens.values.len(), 512 * text.marks.len());
        assert!(output.whole.is_empty());
        output.tokens.values
    };
    outputs.into_iter().zip(texts).map(check).collect()
}

/// The cosines of the last vector with each of the others.
fn cosines(vectors: &[f32]) -> Vec<f64> {
    let rows: Vec<&[f32]> = vectors.chunks_exact(512).collect();
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
    let (query, documents) = rows.split_last().unwrap();
    let cosine = |a: &&[f32]| dot(a, query) / (dot(a, a) * dot(query, query)).sqrt();
    documents.iter().map(cosine).collect()
}

#[test]
fn the_cosines_are_the_references() {
    let prompts = prompts();
    assert!(prompts.len() > 6);
    let texts: Vec<Text> = prompts.iter().map(|(text, _)| text.clone()).collect();
    let check = |name: &str, mut backend: Box<dyn Backend>, most: f64, is_share: bool| {
        let (mut off, mut all) = (Vec::new(), Vec::new());
        for (found, (_, expected)) in vectors(backend.as_mut(), &texts).iter().zip(&prompts) {
            let cosines = cosines(found);
            assert_eq!(cosines.len(), expected.len());
            off.extend(cosines.iter().zip(expected).map(|(a, b)| (a - b).abs()));
            all.extend(expected.iter().copied());
        }
        let root = |values: &[f64]| {
            (values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64).sqrt()
        };
        let off = if is_share { root(&off) / root(&all) } else { off.into_iter().fold(0.0, f64::max) };
        assert!(off <= most, "{name}: off by {off}");
    };
    let cpu = |set, dtype| load_on(CpuOperations::start(2, set, dtype).unwrap(), &options(0)).unwrap();
    check("best", cpu(InstructionSet::best(), DType::Float32), 1e-4, false);
    check("portable", cpu(InstructionSet::Portable, DType::Float32), 1e-4, false);
    check("candle", load_on(candle(), &options(0)).unwrap(), 1e-4, false);
    for (dtype, share) in LOWER_PRECISIONS {
        check(&dtype.to_string(), cpu(InstructionSet::best(), dtype), share, true);
    }
}

/// A vector alone equals the vector in any batch and order, on one thread or two, with any content of the
/// prefix cache.
#[test]
fn the_vectors_do_not_depend_on_the_prompts_company() {
    let mut rng = StdRng::seed_from_u64(3);
    let start = |threads, bytes| {
        let operations = CpuOperations::start(threads, InstructionSet::best(), DType::Float32).unwrap();
        load_on(operations, &options(bytes)).unwrap()
    };
    let (mut one, mut two) = (start(1, 0), start(2, 1 << 20));
    let mut texts: Vec<Text> = prompts().into_iter().map(|(text, _)| text).collect();
    // The same prompt with fewer marks, and a prompt that ends early.
    let first = texts[0].clone();
    texts.push(Text { marks: first.marks[1..3].to_vec(), ..first.clone() });
    texts.push(Text { marks: vec![149], ids: first.ids[..150].to_vec(), ..first.clone() });
    let alone: Vec<Vec<f32>> =
        texts.iter().map(|text| vectors(one.as_mut(), std::slice::from_ref(text)).remove(0)).collect();
    assert_close(&alone[texts.len() - 2], &alone[0][512..3 * 512], 1e-6, "fewer marks");
    let mut was_known = 0;
    for _ in 0..4 {
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.shuffle(&mut rng);
        order.truncate(5);
        let shuffled: Vec<Text> = order.iter().map(|&index| texts[index].clone()).collect();
        was_known += shuffled.iter().map(|text| two.known_tokens(text)).sum::<usize>();
        for (found, &index) in vectors(two.as_mut(), &shuffled).iter().zip(&order) {
            let largest = alone[index].iter().fold(1.0_f32, |largest, value| largest.max(value.abs()));
            assert_close(found, &alone[index], 2e-5 * largest, &format!("prompt {index}"));
        }
    }
    assert!(was_known > 0);
}

#[test]
fn marks_need_an_architecture_with_a_projector_and_such_a_model_has_no_windows() {
    let other = LoadOptions { head: Head::PROJECTOR, ..super::options("tied-bf16") };
    let error = load(&other).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no listwise head"), "{error}");
    let mut config = json("rerankers/jina-reranker-v3/config.json");
    config["use_sliding_window"] = true.into();
    config["sliding_window"] = 64.into();
    config["layer_types"] = serde_json::json!(["full_attention", "sliding_attention"]);
    let error = models::plan(&config, &WeightChoices::default()).map(drop).unwrap_err().to_string();
    assert!(error.contains("a sliding window of a listwise re-ranker"), "{error}");
}
