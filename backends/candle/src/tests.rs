//! Tests of whole models: scores equal the reference's, whatever else is in the batch, on every device.
#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

mod architectures;
mod counted_work;
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub(crate) mod emulated_gpu;
mod heads;
mod heads_reference;
mod marks;
mod model_shapes;
pub(crate) mod padded;
mod prefix_cache;
mod random_model;
mod real_widths;
pub(crate) mod shapes;
mod spread;
mod static_tables;
mod timed;
mod unattended;

use super::*;
use crate::attention::{Heads, Mask, Scoring, queries_at};
use crate::cpu::attention::{Keys, Queries};
use crate::cpu::packed_keys::PackedKeys;
use crate::kernels::pack::{OperandFormat, Words};
use crate::operations::Rows;
use crate::plain::reference;
use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::{collections::HashMap, fs};
use text_embeddings_backend_core::{
    Activation, AnswerRule, AnswerToken, AnswerTokens, BatchBuilder, DenseModule, Head, HeadModule,
    ModelFile, Pooling, TokenHead, WeightChoices,
};

const MODELS: [&str; 4] = ["tied-bf16", "untied-bf16-shards", "tied-f32-bare", "untied-f16"];

/// This crate's folder: where cargo runs the tests, or where it compiled them. `scripts/gpu_kit.py` runs them
/// on another machine.
pub(crate) fn crate_folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

fn fixtures() -> PathBuf {
    crate_folder().join("../../integration_tests/reference/fixtures")
}

fn json(path: &str) -> serde_json::Value {
    serde_json::from_slice(&fs::read(fixtures().join(path)).unwrap()).unwrap()
}

fn answers() -> AnswerTokens {
    let prompt = json("expected/prompt.json");
    let id = |name: &str| u32::try_from(prompt[name].as_u64().unwrap()).unwrap();
    AnswerTokens::difference(id("yes"), Some(id("no")))
}

fn options(model: &str) -> LoadOptions {
    options_with(model, Head::answers(answers()))
}

fn options_with(model: &str, head: Head) -> LoadOptions {
    let folder = fixtures().join("models").join(model);
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    paths.sort();
    LoadOptions {
        dtype: Some(DType::Float32),
        threads: 2,
        ..LoadOptions::new(
            json(&format!("models/{model}/config.json")),
            paths.into_iter().map(ModelFile::Disk).collect(),
            head,
        )
    }
}

/// The ids of the pairs that are stored with all their ids.
fn pair_ids() -> HashMap<String, Vec<u32>> {
    let ids = json("expected/ids.json");
    let pairs = ids.as_object().unwrap().iter().filter(|(_, case)| case["ids"].is_array());
    pairs.map(|(name, case)| (name.clone(), serde_json::from_value(case["ids"].clone()).unwrap())).collect()
}

/// The ids and the reference's raw scores of the cases that are stored with all their ids.
fn cases(model: &str) -> Vec<(String, Vec<u32>, f32)> {
    let ids = pair_ids();
    let expected = json(&format!("expected/{model}.json"));
    let cases: Vec<_> = expected
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|case| {
            let name = case["name"].as_str().unwrap();
            Some((name.to_owned(), ids.get(name)?.clone(), case["raw"].as_f64().unwrap() as f32))
        })
        .collect();
    assert!(cases.len() > 50, "{model} has {} cases", cases.len());
    cases
}

/// candle's operations in `f32`.
fn candle() -> TensorOperations {
    candle_as(candle_core::DType::F32)
}

fn candle_as(products: candle_core::DType) -> TensorOperations {
    TensorOperations::new(device(), products)
}

/// A model on the GPU's path in 16 bits: on the GPU of a build for GPUs, or with a CPU in its role; `None` if
/// neither is available.
#[cfg(feature = "cuda")]
#[expect(clippy::unnecessary_wraps, reason = "other builds may have neither")]
fn on_gpu(dtype: candle_core::DType, has_flash: bool, options: &LoadOptions) -> Option<Box<dyn Backend>> {
    let gpu = cuda::device::Gpu::new(device(), dtype, has_flash).unwrap();
    Some(load_on(CudaOperations::new(gpu, dtype), options).unwrap())
}

#[cfg(all(not(feature = "cuda"), target_os = "linux"))]
fn on_gpu(dtype: candle_core::DType, has_flash: bool, options: &LoadOptions) -> Option<Box<dyn Backend>> {
    let operations = cuda::tests::stand_in::gpu(dtype, has_flash)?;
    Some(load_on(operations, options).unwrap())
}

#[cfg(all(not(feature = "cuda"), not(target_os = "linux")))]
fn on_gpu(_: candle_core::DType, _: bool, _: &LoadOptions) -> Option<Box<dyn Backend>> {
    None
}

/// The device of this build if candle drives it, otherwise candle's CPU device.
pub(crate) fn device() -> Device {
    match device::choose().unwrap() {
        #[cfg(feature = "tensors")]
        Chosen::Candle(device) => device,
        Chosen::Cpu => Device::Cpu,
    }
}

fn cpu(model: &str, threads: usize, set: InstructionSet) -> Box<dyn Backend> {
    cpu_as(DType::Float32, model, threads, set)
}

fn cpu_as(dtype: DType, model: &str, threads: usize, set: InstructionSet) -> Box<dyn Backend> {
    load_on(CpuOperations::start(threads, set, dtype).unwrap(), &options(model)).unwrap()
}

fn predict(backend: &mut dyn Backend, builder: BatchBuilder) -> Vec<f32> {
    backend.predict(&builder.build()).unwrap().texts.iter().map(|text| text.whole[0]).collect()
}

fn batch<'a>(mut builder: BatchBuilder, texts: impl IntoIterator<Item = &'a Vec<u32>>) -> BatchBuilder {
    texts.into_iter().for_each(|ids| builder.push(&Text::new(&ids[..], Wanted::WHOLE)));
    builder
}

pub(crate) fn assert_close(got: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), expected.len());
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= tolerance, "{what}, text {index}: {got} for {expected}");
    }
}

#[test]
fn every_checkpoint_scores_as_transformers_does() {
    for model in MODELS {
        let cases = cases(model);
        let mut backends: Vec<(String, Box<dyn Backend>)> = InstructionSet::available()
            .into_iter()
            .map(|set| (set.to_string(), cpu(model, 2, set)))
            .collect();
        let candle = load_on(candle(), &options(model)).unwrap();
        backends.push(("candle".to_owned(), candle));
        for (name, backend) in &mut backends {
            let builder = batch(BatchBuilder::new(Packing::SHARED), cases.iter().map(|(_, ids, _)| ids));
            let scores = predict(backend.as_mut(), builder);
            for ((case, _, expected), score) in cases.iter().zip(scores) {
                assert!((score - expected).abs() <= 1e-4, "{model}, {name}, {case}: {score} for {expected}");
            }
        }
    }
}

/// The allowed difference between a raw score and the reference's, which is computed in `f32`, and between
/// two batches. The fixtures' weights are random, and their raw scores reach 7. Trained weights lose less.
/// The measured differences were 0.28 and 0.10 in bfloat16, 0.35 and 0.25 in int8, 1.9 and 0.5 in int4. The
/// fast instructions are held to the portable ones: how they round differs as company does.
const LOWER_PRECISIONS: [(DType, f32, f32); 3] =
    [(DType::BFloat16, 0.3, 0.2), (DType::Int8, 0.5, 0.35), (DType::Int4, 2.2, 0.7)];

/// The largest error of 16-bit integers instead of bfloat16.
const OF_INT16: f32 = 0.03;

#[test]
fn lower_precision_stays_near_the_reference_in_any_company() {
    for (dtype, to_reference, to_each_other) in LOWER_PRECISIONS {
        for model in MODELS {
            let cases = cases(model);
            let exact: Vec<f32> = cases.iter().map(|(_, _, expected)| *expected).collect();
            let check = |name: &str, backend: &mut dyn Backend, (expected, tolerance): (&[f32], f32)| {
                let what = format!("{dtype} {name} {model}");
                let texts = || cases.iter().map(|(_, ids, _)| ids);
                let together = predict(backend, batch(BatchBuilder::new(Packing::SHARED), texts()));
                assert_close(&together, expected, tolerance, &what);
                assert_ne!(together, exact, "{dtype} must not be computed in float32");
                let alone = texts()
                    .flat_map(|ids| predict(backend, batch(BatchBuilder::new(Packing::SHARED), [ids])));
                let alone: Vec<f32> = alone.collect();
                assert_close(&alone, &together, to_each_other, &format!("{what}, alone"));
                together
            };
            let start = |set| cpu_as(dtype, model, 2, set);
            let obvious = check("portable", start(InstructionSet::Portable).as_mut(), (&exact, to_reference));
            let best = InstructionSet::best();
            let rounds_less = dtype == DType::BFloat16 && best.takes_int16();
            let expected = if rounds_less { (&exact[..], OF_INT16) } else { (&obvious[..], to_each_other) };
            check(&best.to_string(), start(best).as_mut(), expected);
            if dtype == DType::BFloat16 {
                let mut candle = load_on(candle_as(candle_core::DType::BF16), &options(model)).unwrap();
                check("candle", candle.as_mut(), (&exact, to_reference));
            }
        }
    }
}

/// A pair alone gives the same bits as in any batch, order and split, with or without prefix sharing, on one
/// thread or two.
#[test]
fn a_score_does_not_depend_on_company_order_sharing_or_threads() {
    let mut rng = StdRng::seed_from_u64(20);
    let dtypes = [DType::Float32, DType::BFloat16, DType::Int8, DType::Int4];
    for (dtype, model) in dtypes.iter().flat_map(|&dtype| MODELS.map(|model| (dtype, model))) {
        let mut texts: Vec<Vec<u32>> = cases(model).into_iter().map(|(_, ids, _)| ids).collect();
        texts.extend(random_texts(&mut rng));
        let mut one = cpu_as(dtype, model, 1, InstructionSet::best());
        let mut two = cpu_as(dtype, model, 2, InstructionSet::best());
        let alone: Vec<f32> = texts
            .iter()
            .flat_map(|ids| predict(one.as_mut(), batch(BatchBuilder::new(Packing::SHARED), [ids])))
            .collect();
        let check = |backend: &mut Box<dyn Backend>, builder: BatchBuilder, order: &[usize], what: &str| {
            let scores = predict(backend.as_mut(), batch(builder, order.iter().map(|&i| &texts[i])));
            let expected: Vec<f32> = order.iter().map(|&i| alone[i]).collect();
            assert_eq!(scores, expected, "{dtype} {model}, {what}");
        };
        let mut order: Vec<usize> = (0..texts.len()).collect();
        check(&mut two, BatchBuilder::new(Packing::SHARED), &order, "shared, two threads");
        check(&mut one, BatchBuilder::new(Packing::SHARED), &order, "shared, one thread");
        check(&mut two, BatchBuilder::new(Packing::SEPARATE), &order, "unshared");
        for round in 0..6 {
            order.shuffle(&mut rng);
            for part in order.chunks(rng.random_range(1..20)) {
                check(&mut two, BatchBuilder::new(Packing::SHARED), part, &format!("round {round}"));
            }
        }
    }
}

/// Texts of equal lengths (for which a batch without a causal mask gives wrong scores), forks after one
/// token, texts that are prefixes of others, and a duplicate.
fn random_texts(rng: &mut StdRng) -> Vec<Vec<u32>> {
    let mut ids = |len: usize| -> Vec<u32> { (0..len).map(|_| rng.random_range(0..1300)).collect() };
    let trunk = ids(45);
    let mut texts: Vec<Vec<u32>> = (0..6).map(|_| ids(33)).collect();
    texts.extend([1, 2, 31, 32, 33, 44].map(|shared| [&trunk[..shared], &ids(17)].concat()));
    texts.extend([1, 32, 45, 45].map(|len| trunk[..len].to_vec()));
    // Lengths on both sides of the end of attention's first step.
    let long = ids(530);
    texts.extend([479, 500, 511, 512, 513, 530].map(|shared| [&long[..shared], &ids(15)].concat()));
    texts
}

/// Four texts of each length, behind beginnings of several lengths that others share.
fn branching_batch(rng: &mut StdRng, lengths: &[usize]) -> Batch {
    let trunk: Vec<u32> = (0..260).map(|_| rng.random_range(0..3)).collect();
    let mut builder = BatchBuilder::new(Packing::SHARED);
    for &length in lengths {
        for shared in [0, 1, length / 2, length] {
            let own: Vec<u32> = (0..length).map(|_| rng.random_range(0..9)).collect();
            let ids = [&trunk[..shared.min(trunk.len())], &own[..]].concat();
            builder.push(&Text::new(ids, Wanted::WHOLE));
        }
    }
    builder.build()
}

#[test]
fn packed_attention_equals_the_obvious_one() {
    let mut rng = StdRng::seed_from_u64(21);
    for set in InstructionSet::available() {
        for (queries, keys, size, lengths) in [
            (2, 1, 2, vec![1, 2]),
            (4, 2, 24, vec![40, 33]),
            (8, 2, 16, vec![129, 7, 64]),
            (3, 3, 40, vec![31, 32, 33]),
            (2, 2, 128, vec![300]),
            // Sixteen heads of a query are packed together.
            (16, 4, 10, vec![20, 9]),
            (34, 17, 8, vec![20, 9]),
        ] {
            let heads = Heads { queries, keys, size };
            let batch = branching_batch(&mut rng, &lengths);
            let tokens = batch.token_ids().len();
            let mut values =
                |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-2.0..2.0)).collect() };
            let keys_values = values(tokens * 2 * keys * size);
            let mut places: Vec<usize> = (0..tokens).collect();
            places.shuffle(&mut StdRng::seed_from_u64(tokens as u64));
            let threads = Threads::start(2).unwrap();
            let compute = kernels::compute::Compute { set, threads };
            let packed = shapes::ATTENTION_FORMATS.map(|(format, tolerance)| {
                let mut packed = PackedKeys::new(format);
                packed.pack(&compute, &keys_values, &places, heads, &batch);
                (packed, tolerance)
            });
            let tensor = |values: &[f32], columns: usize| {
                Tensor::from_slice(values, ((), columns), &Device::Cpu).unwrap()
            };
            let mut last: Vec<usize> = batch.last_rows().collect();
            last.sort_unstable();
            last.dedup();
            let mut rng = StdRng::seed_from_u64(22);
            let some: Vec<usize> = (0..tokens).filter(|row| *row == 1 || rng.random_bool(0.4)).collect();
            let all: Vec<usize> = (0..tokens).collect();
            for spans in [all, last, some].map(|rows| queries_at(&batch, &rows)) {
                let rows: usize = spans.iter().map(|span| span.rows.len()).sum();
                let width = queries * size;
                let asked = values(rows * width);
                let asked_tensor = tensor(&asked, width);
                let keys_values = tensor(&keys_values, 2 * keys * size);
                let divisor = (size as f32).sqrt();
                let scoring =
                    Scoring { mask: Mask::CAUSAL, divisor, soft_cap: None, bias: None, disentangled: false };
                let rows =
                    Rows { batch: &batch, places: &places, spans: &spans, angles: None, heads, scoring };
                let expected = reference::attention(&asked_tensor, &keys_values, &rows).unwrap();
                let expected: Vec<f32> = expected.flatten_all().unwrap().to_vec1().unwrap();
                for (packed, tolerance) in &packed {
                    // Halved queries are doubled when they are prepared. So the test fails unless each row is
                    // prepared once.
                    let halved: Vec<f32> = asked.iter().map(|value| value / 2.0).collect();
                    let double = |row: usize, values: &mut [f32]| {
                        assert_eq!(values, &halved[row * width..][..width]);
                        for value in values {
                            *value *= 2.0;
                        }
                    };
                    let queries = Queries { values: &halved, spans: &spans, turn: double, gate: None };
                    let keys = Keys { packed, batch: &batch, heads, scoring, disentangled: None };
                    let got = cpu::attention::attention(
                        &compute,
                        &queries,
                        keys,
                        OperandFormat::F32,
                        Words::default(),
                    );
                    assert_close(
                        &got.values(),
                        &expected,
                        *tolerance,
                        &format!("{set} {heads:?} {lengths:?} {tolerance}"),
                    );
                }
            }
        }
    }
}

/// On a GPU, a read beyond the table would end all work on the device, and with it the server.
#[test]
fn a_token_outside_the_vocabulary_fails_its_batch_and_no_later_one() {
    let backends =
        [cpu("tied-bf16", 2, InstructionSet::best()), load_on(candle(), &options("tied-bf16")).unwrap()];
    for mut backend in backends {
        let before = predict(backend.as_mut(), batch(BatchBuilder::new(Packing::SHARED), [&vec![1, 2, 3]]));
        let error = backend
            .predict(&batch(BatchBuilder::new(Packing::SHARED), [&vec![1, 9_999_999]]).build())
            .unwrap_err();
        assert!(error.to_string().contains("token 9999999 is outside the model's vocabulary"), "{error}");
        let after = predict(backend.as_mut(), batch(BatchBuilder::new(Packing::SHARED), [&vec![1, 2, 3]]));
        assert_eq!(before, after);
    }
}

/// Loads the model with changed options or files, and returns the text of the error.
fn refusal(change: impl FnOnce(&mut LoadOptions)) -> String {
    let mut options = options("tied-bf16");
    change(&mut options);
    load(&options).err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let with = |key: &str, value: serde_json::Value| {
        refusal(|options| {
            options.config[key] = value;
        })
    };
    let with_false_answer = |id| {
        let answers = AnswerTokens::difference(answers().tokens[0].id, Some(id));
        refusal(|options| options.head = Head::answers(answers))
    };
    for (message, wanted) in [
        (with("model_type", "mamba".into()), "model_type \"mamba\""),
        (with("hidden_act", "mish".into()), "hidden_act \"mish\""),
        (with("attention_bias", true.into()), "no tensor `layers.0.self_attn.q_proj.bias`"),
        (with("rope_scaling", serde_json::json!({"rope_type": "mine", "factor": 4.0})), "rope type \"mine\""),
        (with("rope_scaling", serde_json::json!({"rope_type": "yarn"})), "lack factor"),
        (with("quantization_config", serde_json::json!({"bits": 4})), "quantization_config"),
        (
            with("layer_types", serde_json::json!(["full_attention", "chunked_attention"])),
            "layer_types \"chunked",
        ),
        (with("num_key_value_heads", 3.into()), "num_attention_heads a multiple"),
        (with("vocab_size", 7.into()), "`embed_tokens.weight`"),
        (with("intermediate_size", 64.into()), "has shape"),
        (with("num_hidden_layers", 2.into()), "not part of this architecture"),
        (with("num_hidden_layers", 4.into()), "no tensor `layers.3."),
        (with("tie_word_embeddings", false.into()), "no tensor `lm_head.weight`"),
        (with("hidden_size", serde_json::Value::Null), "config.json:"),
        (with_false_answer(9_000_000), "answer token 9000000"),
        (with_false_answer(answers().tokens[0].id), "every score would be 0.5"),
        (
            refusal(|options| options.weights = vec![PathBuf::from("/nowhere.safetensors").into()]),
            "/nowhere.safetensors",
        ),
    ] {
        assert!(message.contains(wanted), "{message:?} does not say {wanted:?}");
    }
}

#[test]
fn broken_weights_are_refused_with_file_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(options("tied-bf16").weights[0].path()).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        refusal(|options| options.weights = vec![path.as_path().into()])
    };
    for bytes in [&whole[..whole.len() - 1], &whole[..100], &whole[..4], &[][..], b"not a checkpoint at all"]
    {
        let message = refused(bytes);
        assert!(message.contains("model.safetensors") && message.contains("download it again"), "{message}");
    }
    let mut broken = whole.clone();
    let end = broken.len();
    broken[end - 1000..].fill(0xff);
    let message = refused(&broken);
    assert!(message.contains("holds a NaN") && message.contains("model.safetensors"), "{message}");
    assert_eq!(refused(&whole), "", "the unbroken file must load");
}
