//! The counts of a [`ModelShape`] are what loading takes and what the operations report, for every
//! architecture's fixture; and every shape can be measured with made-up weights.

use super::{
    architectures::{REFUSED, fixtures_of_architectures},
    *,
};
use crate::{
    cpu::timed::{ATTENTION, CONVOLUTION, DELTA_RULE, Log},
    load::Checkpoint,
    shape::{ModelShape, StoredValues},
    transformer::Transformer,
};
use std::time::Duration;

/// Whether a shape's parameters count a tensor of this shape: no norm, no bias, and no filter over tokens.
fn is_counted(shape: &[usize]) -> bool {
    shape.len() > 1 && !matches!(shape, [_, 1, _])
}

#[test]
fn parameters_are_the_values_that_loading_takes_and_work_is_what_the_operations_report() {
    let mut checked = 0;
    for fixture in fixtures_of_architectures() {
        // Adapters are added to a matrix while it is loaded, so that several tensors are taken for it.
        let is_adapted = !fixture.config["lora_adaptations"].is_null();
        if REFUSED.iter().any(|(name, _)| *name == fixture.name) || is_adapted {
            continue;
        }
        let options = fixture.options("last");
        let plan = models::plan(&fixture.config, &fixture.choices).unwrap();
        let shape = ModelShape { plan: plan.clone() };
        let checkpoint = Checkpoint::open(&options.weights).unwrap().renamed_for(&plan).unwrap();
        let log = Log::default();
        let mut operations = CpuOperations::start(1, InstructionSet::best(), DType::Float32).unwrap();
        operations = operations.timed(log.clone());
        let mut model = Transformer::load(&plan, &checkpoint, &mut operations).unwrap();
        let taken = checkpoint.requested_shapes().into_iter().filter(|shape| is_counted(shape));
        let taken: usize = taken.map(|shape| shape.iter().product::<usize>()).sum();
        assert_eq!(shape.parameter_count() as usize, taken, "{}", fixture.name);
        for (tokens, answer_rows) in [(1, 1), (9, 9), (23, 1), (40, 2)] {
            let mut builder = BatchBuilder::new(plan.packing());
            builder.push(&Text::new(vec![3; tokens], Wanted::WHOLE));
            let (batch, rows) = (builder.build(), (tokens - answer_rows..tokens).collect::<Vec<_>>());
            let cache = PrefixCache::new(0, token_shape(&plan, &operations));
            log.lock().unwrap().clear();
            model.extend_positions(&batch);
            model.forward(&mut operations, &mut Pass::new(&batch, &rows, &cache), &rows).unwrap();
            let calls = std::mem::take(&mut *log.lock().unwrap());
            let is_mixer = |name: &str| [ATTENTION, DELTA_RULE, CONVOLUTION].contains(&name);
            let products = calls.iter().filter(|(kind, _)| kind.name.contains("product"));
            let products: usize = products.map(|(_, cost)| cost.operations).sum();
            let mixers = calls.iter().filter(|(kind, _)| is_mixer(kind.name));
            let mixers: usize = mixers.map(|(_, cost)| cost.operations).sum();
            let work = shape.text_work(tokens, answer_rows);
            let what = format!("{}, {tokens} tokens, {answer_rows} for answers", fixture.name);
            assert!((2.0 * work.products - products as f64).abs() < 0.5, "{what}: {work:?}, {products}");
            // The log leaves out DeBERTa's scores with positions, and counts a convolution's gates.
            let is_exact = !plan.layers.iter().any(|layer| match &layer.mixer {
                MixerPlan::Attention(attention) => attention.disentangled.is_some(),
                MixerPlan::Convolution(_) => true,
                MixerPlan::Delta(_) => false,
            });
            assert!(
                !is_exact || (2.0 * work.attention - mixers as f64).abs() < 0.5,
                "{what}: {work:?}, {mixers}"
            );
        }
        checked += 1;
    }
    assert!(checked > 60 || std::env::var("ARCHITECTURE").is_ok(), "{checked}");
}

#[test]
fn every_shape_is_measured_without_its_weights() {
    for fixture in fixtures_of_architectures() {
        let Ok(shape) = ModelShape::from_config(&fixture.config) else { continue };
        let settings = PassSettings {
            set: InstructionSet::best(),
            threads: 2,
            dtype: DType::Int8,
            stored: StoredValues { bits: 32, are_bfloat16: false },
            tokens: 7,
            answer_rows: 1,
            time: Duration::ZERO,
        };
        let measured = shape.measure_text(&settings);
        if shape.layer_count() == 0 {
            assert!(measured.unwrap_err().to_string().contains("without layers"), "{}", fixture.name);
        } else {
            let seconds = measured.unwrap();
            assert!(seconds > 0.0 && seconds.is_finite(), "{}: {seconds}", fixture.name);
        }
    }
}

#[test]
fn the_memory_of_a_batch_is_what_the_loaded_model_says() {
    let mut checked = 0;
    for fixture in fixtures_of_architectures() {
        if REFUSED.iter().any(|(name, _)| *name == fixture.name) {
            continue;
        }
        let shape = ModelShape { plan: models::plan(&fixture.config, &fixture.choices).unwrap() };
        for (cache_bytes, tokens) in [(0, 0), (1 << 20, 1), (1 << 20, 7), (1 << 20, 1 << 20)] {
            let dtype = DType::BFloat16;
            let options = LoadOptions {
                dtype: Some(dtype),
                prefix_cache_bytes: cache_bytes,
                ..fixture.options("last")
            };
            let loaded = load(&options).unwrap();
            let expected =
                shape.batch_bytes(tokens, loaded.numbers.computed, cache_bytes, InstructionSet::best());
            let what = format!("{}, {cache_bytes} bytes, {tokens} tokens", fixture.name);
            assert_eq!(loaded.backend.batch_bytes(tokens) as u64, expected.unwrap(), "{what}");
        }
        if fixture.name.ends_with("-splade") {
            let options = fixture.options("splade");
            let vocabulary = fixture.config["vocab_size"].as_u64().unwrap();
            let logits = options.threads as u64 * 64 * vocabulary * 4;
            let loaded = load(&options).unwrap().backend.batch_bytes(0) as u64;
            assert_eq!((loaded, shape.logit_bytes(options.threads)), (logits, logits), "{}", fixture.name);
        }
        checked += 1;
    }
    assert!(checked > 60 || std::env::var("ARCHITECTURE").is_ok(), "{checked}");
}
