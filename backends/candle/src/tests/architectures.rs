//! Tests of every architecture: hidden states, vectors, scores and sparse weights equal the reference's, on
//! all relevant instruction sets, whatever else is in the batch.
//!
//! The fixtures are small random checkpoints with the outputs of `transformers`, or of another reference
//! (`integration_tests/reference/README.md`).

use super::*;
use serde_json::{Value, json};

/// Fixtures with a setting that is refused, and a part of the refusal.
pub(super) const REFUSED: [(&str, &str); 1] = [("new-logn", "logn_attention_scale")];

/// The outputs in fixtures, which are also the heads that compute them.
const OUTPUTS: [&str; 6] = ["cls", "mean", "last", "logits", "splade", "embedding"];

/// A fixture.
pub(super) struct Fixture {
    pub(super) name: String,
    pub(super) config: Value,
    pub(super) choices: WeightChoices,
    cases: Vec<Value>,
}

pub(super) fn fixtures_of_architectures() -> Vec<Fixture> {
    let only = std::env::var("ARCHITECTURE").ok();
    let folder = fixtures().join("architectures");
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| only.as_ref().is_none_or(|only| name.contains(only)))
        .collect();
    names.sort();
    assert!(only.is_some() || names.len() > 70, "{} fixtures", names.len());
    let fixture = |name: String| {
        let expected = json(&format!("architectures/{name}/expected.json"));
        let config = json(&format!("architectures/{name}/config.json"));
        let number_after = |mark| name.rsplit_once(mark).map(|(_, number)| number.parse::<usize>().unwrap());
        let choices = WeightChoices {
            lora_task: number_after("-task-")
                .map(|task| config["lora_adaptations"][task].as_str().unwrap().to_owned()),
            cutoff_layers: number_after("-cutoff-"),
        };
        Fixture { cases: expected["cases"].as_array().unwrap().clone(), config, choices, name }
    };
    names.into_iter().map(fixture).collect()
}

impl Fixture {
    fn head(&self, output: &str) -> Head {
        let pooling = match output {
            "logits" => return Head::classification(self.values(0, output).len()),
            "splade" => return Head::SPLADE,
            "cls" => Pooling::First,
            "last" => Pooling::Last,
            _ => Pooling::Mean,
        };
        Head::embedding(pooling, Vec::new())
    }

    pub(super) fn options(&self, output: &str) -> LoadOptions {
        LoadOptions {
            choices: self.choices.clone(),
            dtype: Some(DType::Float32),
            threads: 2,
            ..LoadOptions::new(
                self.config.clone(),
                vec![fixtures().join("architectures").join(&self.name).join("model.safetensors").into()],
                self.head(output),
            )
        }
    }

    /// The outputs that all cases have.
    fn outputs(&self) -> impl Iterator<Item = &'static str> {
        let has = |output: &str| self.cases.iter().all(|case| !case[output].is_null());
        // If a vector is more than a pooled state, another fixture tests the states.
        let states = !has("embedding");
        OUTPUTS.into_iter().filter(move |output| has(output) && (states || *output == "embedding"))
    }

    fn values(&self, case: usize, output: &str) -> Vec<f32> {
        serde_json::from_value(self.cases[case][output].clone()).unwrap()
    }

    fn text(&self, case: usize, output: &str) -> Text {
        let ids: Vec<u32> = serde_json::from_value(self.cases[case]["ids"].clone()).unwrap();
        let second = self.cases[case]["second"].as_u64().map(|second| second as usize);
        let tokens = !self.cases[case]["hidden"].is_null() && output == "mean";
        let wanted = if output == "splade" { Wanted::SPARSE } else { Wanted { tokens, ..Wanted::WHOLE } };
        Text { second, ..Text::new(ids, wanted) }
    }

    /// Why a backend's values of an output differ from the reference's, if they differ by too much.
    #[expect(clippy::print_stdout, reason = "shows the errors that docs/models.md states")]
    fn failure(&self, output: &str, backend: TestedBackend) -> Option<String> {
        let (name, tolerance, mut backend) = backend;
        let texts: Vec<Text> = (0..self.cases.len()).map(|case| self.text(case, output)).collect();
        let all: Vec<f32> = (0..texts.len()).flat_map(|case| self.expected(case, output)).collect();
        let mut exceeded = Vec::new();
        let mut worst = 0.0_f32;
        for (case, got) in run(backend.as_mut(), &texts).iter().enumerate() {
            let (got, expected) = (values(got, output), self.expected(case, output));
            let (off, is_exceeded) = tolerance.exceeded(&got, &expected, &all);
            worst = worst.max(off);
            if is_exceeded {
                exceeded.push(format!("{} {output} {name}, case {case}: off by {off}", self.name));
            }
        }
        // With `--nocapture`.
        println!("{:24} {output:10} {name:36} {worst:.5}", self.name);
        // A rounded router may choose another expert, which changes all values.
        let may_leap = matches!(tolerance, Tolerance::Share(_)) && self.name == "nomic-moe";
        let has_failed = exceeded.len() > if may_leap { texts.len() / 2 } else { 0 };
        has_failed.then(|| exceeded.remove(0))
    }

    /// All values of a case's output, from the reference.
    fn expected(&self, case: usize, output: &str) -> Vec<f32> {
        if output == "splade" {
            let entries: Vec<(u32, f32)> = serde_json::from_value(self.cases[case][output].clone()).unwrap();
            return sparse(entries.into_iter());
        }
        let mut values = self.values(case, output);
        if output == "mean"
            && let Some(rows) = self.cases[case]["hidden"].as_array()
        {
            values
                .extend(rows.iter().flat_map(|row| serde_json::from_value::<Vec<f32>>(row.clone()).unwrap()));
        }
        values
    }
}

/// A sparse vector as a dense one, so that an additional entry shows as a difference.
fn sparse(entries: impl Iterator<Item = (u32, f32)>) -> Vec<f32> {
    let mut values = vec![0.0; 1000];
    entries.for_each(|(index, value)| values[index as usize] = value);
    values
}

fn values(output: &Output, kind: &str) -> Vec<f32> {
    if kind == "splade" {
        return sparse(output.sparse.iter().map(|entry| (entry.index, entry.value)));
    }
    [&output.whole[..], &output.tokens.values[..]].concat()
}

fn run(backend: &mut dyn Backend, texts: &[Text]) -> Vec<Output> {
    let mut builder = BatchBuilder::new(backend.packing());
    for text in texts {
        builder.push(text);
    }
    backend.predict(&builder.build()).unwrap().texts
}

/// The allowed difference between the values of a text and the reference's.
enum Tolerance {
    /// The largest difference of a value.
    Each(f32),
    /// The root mean square of the differences, relative to the root mean square of the values of all texts.
    Share(f32),
    /// Only the number of values is compared, and all must be finite.
    Finite,
}

/// A backend with its name and its allowed error.
type TestedBackend = (String, Tolerance, Box<dyn Backend>);

impl Tolerance {
    /// The difference, and whether it is too large. `all` are the values of all texts.
    fn exceeded(&self, got: &[f32], expected: &[f32], all: &[f32]) -> (f32, bool) {
        let off = || got.iter().zip(expected).map(|(got, expected)| (got - expected).abs());
        let root = |values: &[f32]| {
            (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt()
        };
        let (off, most) = match self {
            Self::Each(most) => (off().fold(0.0_f32, f32::max), *most),
            Self::Share(most) => (root(&off().collect::<Vec<_>>()) / root(all), *most),
            Self::Finite => (0.0, 0.0),
        };
        let is_number = got.iter().all(|value| value.is_finite());
        (off, got.len() != expected.len() || !is_number || off > most)
    }
}

/// The relative errors allowed in lower precisions. The fixtures' weights are random and large, and trained
/// weights lose far less. The measured errors were at most 0.14 in bfloat16 and 0.29 in int8, both for single
/// scores. Vectors stayed below 0.09 and 0.13.
const LOWER_PRECISIONS: [(DType, f32); 2] = [(DType::BFloat16, 0.2), (DType::Int8, 0.4)];

/// The same for the GPU's path, with flash attention and without. bfloat16 differs from float16 in the
/// kernels alone, so the second and the third are used for one output of a fixture.
const GPU_PRECISIONS: [(&str, candle_core::DType, bool, f32); 4] = [
    ("GPU float16", candle_core::DType::F16, true, 0.03),
    ("GPU float16 without flash attention", candle_core::DType::F16, false, 0.03),
    ("GPU bfloat16", candle_core::DType::BF16, true, 0.2),
    ("GPU bfloat16 without flash attention", candle_core::DType::BF16, false, 0.2),
];

/// The combinations of arithmetic and device. Only the first `gpu_precisions` of the GPU's are used.
fn backends(options: &LoadOptions, gpu_precisions: usize) -> Vec<TestedBackend> {
    let cpu = |set, dtype| load_on(CpuOperations::start(2, set, dtype).unwrap(), options).unwrap();
    let mut backends: Vec<TestedBackend> = vec![
        ("best".to_owned(), Tolerance::Each(1e-4), cpu(InstructionSet::best(), DType::Float32)),
        ("portable".to_owned(), Tolerance::Each(1e-4), cpu(InstructionSet::Portable, DType::Float32)),
        ("candle".to_owned(), Tolerance::Each(1e-4), load_on(candle(), options).unwrap()),
    ];
    for (dtype, share) in LOWER_PRECISIONS {
        backends.push((dtype.to_string(), Tolerance::Share(share), cpu(InstructionSet::best(), dtype)));
    }
    for (name, dtype, has_flash, share) in GPU_PRECISIONS.into_iter().take(gpu_precisions) {
        let backend = on_gpu(dtype, has_flash, options);
        backends.extend(backend.map(|backend| (name.to_owned(), Tolerance::Share(share), backend)));
    }
    // Random weights give other values in four bits. Tests in `kernels` compare such products with the
    // formula, and a test with a trained model shows the loss (`integration_tests/test_trained_model.py`).
    backends.push(("int4".to_owned(), Tolerance::Finite, cpu(InstructionSet::best(), DType::Int4)));
    backends
}

/// The longest of all tests, and libtest starts it among the last: on one thread, a core would idle.
#[test]
fn every_architecture_gives_what_its_reference_gives() {
    let fixtures = fixtures_of_architectures();
    let (first, second) = fixtures.split_at(fixtures.len() / 2);
    let failures = std::thread::scope(|scope| {
        let second = scope.spawn(|| failures_of(second));
        [failures_of(first), second.join().unwrap()].concat()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn failures_of(fixtures: &[Fixture]) -> Vec<String> {
    let mut failures = Vec::new();
    for fixture in fixtures {
        if REFUSED.iter().any(|(name, _)| *name == fixture.name) {
            continue;
        }
        for output in fixture.outputs() {
            let is_last = fixture.outputs().last() == Some(output);
            let gpu_precisions = if is_last { GPU_PRECISIONS.len() } else { 1 };
            if let Err(error) = load(&fixture.options(output)) {
                failures.push(format!("{} {output}: {error}", fixture.name));
                continue;
            }
            for backend in backends(&fixture.options(output), gpu_precisions) {
                failures.extend(fixture.failure(output, backend));
            }
        }
    }
    failures
}

/// One output of each fixture in float16 with flash attention, of some also in the other combinations. On an
/// emulated GPU, the test above would take an hour.
#[cfg(feature = "cuda")]
#[test]
#[serial_test::serial]
fn every_architecture_gives_what_its_reference_gives_on_the_card() {
    let mut failures = Vec::new();
    for (index, fixture) in fixtures_of_architectures().into_iter().enumerate() {
        if REFUSED.iter().any(|(name, _)| *name == fixture.name) {
            continue;
        }
        let outputs: Vec<&str> = fixture.outputs().collect();
        let output = outputs[index % outputs.len()];
        let precisions = if index % 4 == 0 { GPU_PRECISIONS.len() } else { 1 };
        for (name, dtype, has_flash, share) in GPU_PRECISIONS.into_iter().take(precisions) {
            let backend = on_gpu(dtype, has_flash, &fixture.options(output)).unwrap();
            let backend = (name.to_owned(), Tolerance::Share(share), backend);
            failures.extend(fixture.failure(output, backend));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A text alone gives the same values as in any batch and order, on one thread or two, and where each thread
/// computes parts of the batch.
#[test]
fn a_text_of_any_architecture_does_not_depend_on_its_company() {
    let mut rng = StdRng::seed_from_u64(70);
    for fixture in fixtures_of_architectures() {
        if REFUSED.iter().any(|(name, _)| *name == fixture.name) {
            continue;
        }
        let Some(output) = fixture.outputs().last() else { continue };
        let options = fixture.options(output);
        let start = |threads, part_tokens| {
            let operations = CpuOperations::start(threads, InstructionSet::best(), DType::Float32).unwrap();
            load_on(operations.with_parts_of(part_tokens), &options).unwrap()
        };
        let (mut one, mut two, mut in_parts) = (start(1, usize::MAX), start(2, usize::MAX), start(2, 1));
        let mut texts: Vec<Text> = (0..fixture.cases.len()).map(|case| fixture.text(case, output)).collect();
        // Texts with a common prefix, and a duplicate text.
        let longest = texts.iter().max_by_key(|text| text.ids.len()).unwrap().clone();
        let half = longest.ids[..longest.ids.len() / 2].to_vec();
        texts.extend([longest.clone(), Text { second: None, ids: half, ..longest }]);
        let alone: Vec<Vec<f32>> = texts
            .iter()
            .map(|text| values(&run(one.as_mut(), std::slice::from_ref(text))[0], output))
            .collect();
        for round in 0..3 {
            let mut order: Vec<usize> = (0..texts.len()).collect();
            let backend = if round == 2 && !in_parts.packing().shares_prefixes {
                // Enough tokens for two parts per thread.
                order = order.repeat(4);
                &mut in_parts
            } else {
                &mut two
            };
            order.shuffle(&mut rng);
            let shuffled: Vec<Text> = order.iter().map(|&index| texts[index].clone()).collect();
            for (output_of, &index) in run(backend.as_mut(), &shuffled).iter().zip(&order) {
                let largest = alone[index].iter().fold(1.0_f32, |largest, value| largest.max(value.abs()));
                let what = format!("{} {output}, text {index}", fixture.name);
                assert_close(&values(output_of, output), &alone[index], 2e-5 * largest, &what);
            }
        }
    }
}

/// Gemma's authors and T5's code in transformers rule float16 out.
#[test]
fn the_plan_says_where_float16_is_too_small() {
    for fixture in fixtures_of_architectures() {
        let Ok(plan) = models::plan(&fixture.config, &fixture.choices) else {
            assert!(REFUSED.iter().any(|(name, _)| *name == fixture.name), "{}", fixture.name);
            continue;
        };
        let is_known = ["gemma", "t5"].iter().any(|name| fixture.name.contains(name));
        assert_eq!(plan.exceeds_float16, is_known, "{}", fixture.name);
    }
}

/// The plan of a fixture's configuration with other fields; those that are null are removed instead.
fn changed_plan(fixture: &str, fields: &Value) -> String {
    let mut config = json(&format!("architectures/{fixture}/config.json"));
    for (name, value) in fields.as_object().unwrap() {
        config[name] = value.clone();
        if value.is_null() {
            config.as_object_mut().unwrap().remove(name);
        }
    }
    format!("{:?}", models::plan(&config, &WeightChoices::default()).unwrap())
}

/// Pairs of configurations that transformers 5.23 computes alike: fields that it leaves out when it saves a
/// model, fields that a class does not read, and old names next to new ones.
#[test]
fn what_transformers_leaves_out_ignores_or_names_twice_is_understood() {
    let linear = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0});
    let twice = json!({"rope_type": "linear", "type": "default", "factor": 2.0, "rope_theta": 500.0});
    let other = json!({"rope_type": "default", "rope_theta": 77.0});
    let yarn = |name: &str, value: Value| {
        let mut scaling = json!({"rope_type": "yarn", "factor": 5.0, "mscale": 0.7});
        scaling[name] = value;
        json!({ "rope_scaling": scaling })
    };
    let no_rope = |theta: Value| json!({"rope_parameters": null, "rope_scaling": null, "rope_theta": theta});
    for (fixture, fields, same) in [
        ("gemma2-embedding", json!({"sliding_window": null}), json!({"sliding_window": 4096})),
        ("gemma2-embedding", json!({"query_pre_attn_scalar": null}), json!({"query_pre_attn_scalar": 256})),
        (
            "gemma2-embedding",
            json!({"attn_logit_softcapping": null}),
            json!({"attn_logit_softcapping": 50.0}),
        ),
        (
            "gemma2-embedding",
            json!({"final_logit_softcapping": null}),
            json!({"final_logit_softcapping": 30.0}),
        ),
        ("gemma3-embedding", json!({"query_pre_attn_scalar": null}), json!({"query_pre_attn_scalar": 256})),
        ("gemma3-embedding", json!({"sliding_window": null}), json!({"sliding_window": 4096})),
        ("mistral-embedding", json!({"sliding_window": null}), json!({"sliding_window": 4096})),
        ("gte-native", no_rope(json!(null)), no_rope(json!(160_000.0))),
        ("nomic-bert-native", no_rope(json!(null)), no_rope(json!(1_000.0))),
        ("jina-v3-native", no_rope(json!(null)), no_rope(json!(20_000.0))),
        ("gemma-embedding", json!({"hidden_act": "gelu"}), json!({"hidden_act": "gelu_pytorch_tanh"})),
        ("gemma-embedding", json!({"hidden_activation": "relu"}), json!({})),
        ("qwen2-embedding", json!({"attention_bias": true, "mlp_bias": true}), json!({})),
        ("qwen3-sliding", json!({"mlp_bias": true}), json!({})),
        ("mistral-embedding", json!({"attention_bias": true, "mlp_bias": true}), json!({})),
        ("llama-linear", json!({"rope_parameters": twice}), json!({"rope_parameters": linear})),
        (
            "llama-linear",
            json!({"rope_parameters": other, "rope_scaling": linear}),
            json!({"rope_parameters": null, "rope_scaling": linear}),
        ),
        (
            "lfm2-causal",
            json!({"rope_scaling": linear}),
            json!({"rope_parameters": null, "rope_scaling": linear}),
        ),
        ("gemma3-embedding", json!({"rope_parameters": linear}), json!({"rope_parameters": null})),
        ("llama-yarn", yarn("mscale_all_dim", json!(0)), yarn("mscale_all_dim", json!(null))),
        ("llama-yarn", yarn("beta_fast", json!(0)), yarn("beta_fast", json!(32))),
        ("llama-yarn", yarn("beta_slow", json!(0.0)), yarn("beta_slow", json!(1))),
        ("t5-relu", json!({"feed_forward_proj": "silu"}), json!({})),
        (
            "t5-relu",
            json!({"feed_forward_proj": null, "dense_act_fn": "silu"}),
            json!({"dense_act_fn": "silu"}),
        ),
        ("t5-gated", json!({"dense_act_fn": null}), json!({"dense_act_fn": "gelu_new"})),
        ("t5-gated", json!({"feed_forward_proj": "relu"}), json!({})),
    ] {
        let what = format!("{fixture} with {fields}");
        assert_eq!(changed_plan(fixture, &fields), changed_plan(fixture, &same), "{what}");
    }
    for fixture in
        ["gemma-embedding", "gemma2-embedding", "gemma3-embedding", "llama-embedding", "mistral-embedding"]
    {
        let (plan, changed) = (json!({}), json!({"is_causal": false}));
        assert_ne!(changed_plan(fixture, &plan), changed_plan(fixture, &changed), "{fixture}");
    }
    // A window without order reaches as far as its size, one with order holds as many tokens.
    let window = |fields: Value| changed_plan("qwen2-sliding", &fields);
    assert!(window(json!({"sliding_window": 9, "is_causal": false})).contains("before: 9, after: 9"));
    assert!(window(json!({"sliding_window": 9})).contains("before: 8, after: 0"));
    assert_ne!(
        changed_plan("gemma-embedding", &json!({"hidden_act": "relu"})),
        changed_plan("gemma-embedding", &json!({}))
    );
    let mut config = json("architectures/lfm2-causal/config.json");
    config["is_causal"] = false.into();
    assert!(plan_error(&config, &WeightChoices::default()).contains("is_causal false"));
}

#[test]
fn settings_without_a_plan_are_refused_by_name() {
    for (name, part) in REFUSED {
        let error =
            plan_error(&json(&format!("architectures/{name}/config.json")), &WeightChoices::default());
        assert!(error.contains(part), "{name}: {error}");
    }
}

#[test]
fn settings_of_encoders_that_no_plan_carries_out_are_refused_by_name() {
    for (name, key, value, part) in [
        (
            "bert-embedding",
            "position_embedding_type",
            "relative_key".into(),
            "position_embedding_type \"relative_key\"",
        ),
        ("bert-embedding", "is_decoder", true.into(), "is_decoder true"),
        ("bert-embedding", "num_hidden_layers", 10_001.into(), "num_hidden_layers 10001 cannot be"),
        ("distilbert-embedding", "n_layers", u64::MAX.into(), "cannot be: at most 10000"),
        ("distilbert-embedding", "n_heads", u64::MAX.into(), "cannot be: at most 10000"),
        ("distilbert-embedding", "hidden_dim", i64::MAX.into(), "cannot be: at most 16777216"),
        ("nomic-moe", "n_layer", 1_000_000_000.into(), "n_layer 1000000000 cannot be"),
        ("nomic-moe", "num_experts", 1_000_000_000.into(), "num_experts 1000000000 cannot be"),
        (
            "bert-embedding",
            "hidden_act",
            "quick_gelu".into(),
            "hidden_act \"quick_gelu\" is not supported for bert; supported: gelu, ",
        ),
        ("bert-embedding", "num_attention_heads", 4.into(), "hidden_size must be a positive multiple"),
        ("distilbert-embedding", "activation", "mish".into(), "activation \"mish\""),
        ("mpnet-embedding", "relative_attention_num_buckets", 64.into(), "relative_attention_num_buckets 64"),
        ("electra-embedding", "embedding_size", "20".into(), "embedding_size"),
        ("deberta-v2-string", "pos_att_type", "c2p|p2p".into(), "pos_att_type \"p2p\""),
        ("deberta-v2-string", "position_buckets", 200.into(), "position_buckets"),
        ("deberta-v2-string", "embedding_size", 20.into(), "embedding_size"),
        ("deberta-v2-string", "pooler_hidden_act", "mish".into(), "pooler_hidden_act \"mish\""),
        ("deberta-v2-conv", "conv_kernel_size", 4.into(), "conv_kernel_size 4"),
        ("deberta-v2-conv", "conv_groups", 2.into(), "conv_groups"),
        ("modernbert-embedding", "layer_types", serde_json::json!(["full_attention"]), "names 1, but"),
        ("modernbert-embedding", "layer_types", serde_json::json!(["conv"]), "layer_types \"conv\""),
        ("modernbert-embedding", "sliding_window", 128.into(), "sliding_window that is not half"),
        ("gemma-embedding", "use_bidirectional_attention", true.into(), "use_bidirectional_attention true"),
        ("gemma2-embedding", "use_bidirectional_attention", true.into(), "use_bidirectional_attention true"),
        ("modernbert-embedding", "classifier_pooling", "max".into(), "classifier_pooling \"max\""),
        ("modernbert-old-keys", "global_attn_every_n_layers", 0.into(), "config.json:"),
        ("eurobert-embedding", "classifier_pooling", "max".into(), "classifier_pooling \"max\""),
        ("new-base-en", "layer_norm_type", "rms_norm".into(), "layer_norm_type \"rms_norm\""),
        ("new-base-en", "position_embedding_type", "absolute".into(), "position_embedding_type \"absolute\""),
        ("new-base-en", "pack_qkv", false.into(), "pack_qkv false"),
        (
            "new-large-en",
            "rope_scaling",
            serde_json::json!({"type": "ntk", "factor": 2.0, "mixed_b": 0.6}),
            "mixed_b in rope_scaling",
        ),
        ("nomic-v1.5", "prenorm", true.into(), "prenorm true"),
        ("nomic-v1.5", "rotary_emb_fraction", 0.5.into(), "rotary_emb_fraction"),
        ("nomic-v1.5", "activation_function", "glu".into(), "activation_function \"glu\""),
        ("nomic-moe", "num_shared_experts", 1.into(), "num_shared_experts 1"),
        ("nomic-moe", "num_experts", 0.into(), "num_experts"),
        ("nomic-moe", "activation_function", "swiglu".into(), "activation_function \"swiglu\""),
        ("jina-v2-base", "feed_forward_type", "original".into(), "feed_forward_type \"original\""),
        ("jina-v2-base", "is_decoder", true.into(), "is_decoder true"),
        ("jina-v3", "position_embedding_type", "alibi".into(), "position_embedding_type \"alibi\""),
        ("minicpm-layerwise", "start_layer", 0.into(), "start_layer 0"),
        ("minicpm-layerwise", "head_type", "raw".into(), "head_type \"raw\""),
        ("minicpm-layerwise", "head_multi", false.into(), "head_multi false"),
        ("minicpm-layerwise", "scale_depth", 0.into(), "a scale"),
        (
            "minicpm-layerwise",
            "architectures",
            serde_json::json!(["MiniCPMForCausalLM"]),
            "LayerWiseMiniCPMForCausalLM",
        ),
    ] {
        assert_refused(name, key, value, part);
    }
}

/// Checks that a fixture with this setting is refused with a sentence that contains `part`.
fn assert_refused(name: &str, key: &str, value: Value, part: &str) {
    let mut config = json(&format!("architectures/{name}/config.json"));
    config[key] = value;
    let error = plan_error(&config, &WeightChoices::default());
    assert!(error.contains(part), "{name}: {error}");
}

#[test]
fn settings_of_delta_rules_that_no_plan_carries_out_are_refused_by_name() {
    for (key, value, part) in [
        ("attn_output_gate", false.into(), "attn_output_gate false"),
        ("attention_bias", true.into(), "attention_bias true"),
        ("use_bidirectional_attention", true.into(), "attention to later tokens"),
        ("hidden_act", "gelu".into(), "hidden_act \"gelu\""),
        ("layer_types", serde_json::json!(["full_attention"]), "the kind of each layer"),
        ("layer_types", serde_json::json!(vec!["full_attention"; 99]), "names 99, but num_hidden_layers is"),
        ("layer_types", serde_json::json!(["sliding_attention"]), "sliding_attention"),
        ("linear_num_value_heads", 3.into(), "a multiple of linear_num_key_heads"),
        ("linear_num_key_heads", 0.into(), "must be positive"),
        ("linear_num_value_heads", 10_002.into(), "cannot be: at most 10000"),
        ("linear_conv_kernel_dim", 65.into(), "linear_conv_kernel_dim at most 64"),
        ("linear_key_head_dim", 1025.into(), "both head sizes at most 1024"),
        (
            "rope_parameters",
            serde_json::json!({"rope_theta": 1e4, "partial_rotary_factor": 0.2}),
            "partial_rotary_factor 0.2",
        ),
    ] {
        assert_refused("qwen3_5-text", key, value, part);
    }
}

#[test]
fn settings_of_newer_models_that_no_plan_carries_out_are_refused_by_name() {
    let json = |text: &str| serde_json::from_str(text).unwrap();
    for (name, key, value, part) in [
        ("t5-relu", "relative_attention_num_buckets", "10", "must be a multiple of 4"),
        ("t5-relu", "relative_attention_max_distance", "3", "larger than a quarter of it"),
        ("t5-relu", "dense_act_fn", r#""mish""#, "dense_act_fn \"mish\""),
        ("t5-relu", "d_kv", "0", "must be positive"),
        ("t5-relu", "architectures", r#"["T5ForSequenceClassification"]"#, "the architecture T5ForSequence"),
        ("t5-relu", "num_heads", "10001", "num_heads 10001 cannot be"),
        ("albert-embedding", "inner_group_num", "2", "inner_group_num 2"),
        ("albert-embedding", "num_hidden_groups", "6", "between 1 and num_hidden_layers, 5"),
        ("lfm2-causal", "conv_bias", "true", "conv_bias true"),
        ("lfm2-causal", "conv_L_cache", "65", "conv_L_cache 65"),
        ("lfm2-causal", "layer_types", r#"["conv"]"#, "the kind of each layer"),
        ("lfm2-causal", "num_hidden_layers", "1", "but num_hidden_layers is 1"),
        ("gemma3-embedding", "layer_types", r#"["full_attention"]"#, "names 1, but"),
        ("gemma3-embedding", "num_hidden_layers", "1", "but num_hidden_layers is 1"),
        ("lfm2-causal", "layer_types", r#"["moe"]"#, "layer_types \"moe\""),
        ("lfm2-causal", "num_key_value_heads", "2", "must be a multiple of"),
        ("lfm2-bidirectional", "conv_L_cache", "4", "conv_L_cache 4 without a middle"),
        ("embedding-gemma2-text", "attention_bias", "true", "attention_bias true"),
        ("embedding-gemma2-text", "layer_types", r#"["full_attention"]"#, "the kind of each layer"),
        ("embedding-gemma2-text", "per_layer_config", r#"{"1":{"head_dim":8}}"#, "must have the same heads"),
        ("embedding-gemma2-text", "per_layer_config", r#"{"1":{"sliding_window":8}}"#, "unknown field"),
        ("embedding-gemma2-text", "num_key_value_heads", "3", "must be a multiple of"),
    ] {
        assert_refused(name, key, json(value), part);
    }
}

#[test]
fn a_choice_among_the_weights_is_one_of_the_models_own() {
    let task = |task: &str| WeightChoices { lora_task: Some(task.to_owned()), ..Default::default() };
    let cutoff = |layers| WeightChoices { cutoff_layers: Some(layers), ..Default::default() };
    let config = |name: &str| json(&format!("architectures/{name}/config.json"));
    for (name, choices, part) in [
        (
            "jina-v3",
            task("clustering"),
            "`--lora-task clustering`: the model has no adapter for the task \"clustering\": choose one of \
             retrieval.query, retrieval.passage, separation",
        ),
        (
            "bert-embedding",
            task("separation"),
            "`--lora-task separation`: the task \"separation\" was chosen, but",
        ),
        ("bert-embedding", cutoff(2), "`--cutoff-layers 2`: a number of layers was chosen, but"),
        ("minicpm-layerwise", cutoff(1), "but this model scores after 2 to 6 layers: choose one of these"),
        ("minicpm-layerwise", cutoff(7), "`--cutoff-layers 7`: the score after 7 layers was requested"),
    ] {
        let error = plan_error(&config(name), &choices);
        assert!(error.contains(part), "{name}: {error}");
    }
    for (choices, layers) in [(WeightChoices::default(), 6), (cutoff(2), 2), (cutoff(5), 5)] {
        let description = describe(&config("minicpm-layerwise"), &choices).unwrap();
        assert_eq!(description.cutoff_layers, Some(layers));
    }
}

fn plan_error(config: &Value, choices: &WeightChoices) -> String {
    models::plan(config, choices).map(drop).unwrap_err().to_string()
}
