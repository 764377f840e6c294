//! Tests of static embeddings: the vectors of random tables, in each stored type, with and without mapping
//! and factors, equal the definition in double precision, whatever else is in the batch.

use super::*;
use half::f16;
use safetensors::{Dtype, tensor::TensorView};
use tempfile::TempDir;

const WIDTH: usize = 37;
const VOCABULARY: usize = 53;
const BLANK: u32 = 53;

/// A stored tensor, and its values as numbers.
struct Stored {
    dtype: Dtype,
    bytes: Vec<u8>,
    values: Vec<f64>,
}

fn random_tensor(rng: &mut StdRng, dtype: Dtype, count: usize) -> Stored {
    let numbers: Vec<f32> = (0..count).map(|_| rng.random_range(-100.0..100.0)).collect();
    let each = |to_bytes: fn(f32) -> (Vec<u8>, f64)| {
        let (bytes, values): (Vec<_>, Vec<_>) = numbers.iter().map(|&number| to_bytes(number)).unzip();
        Stored { dtype, bytes: bytes.concat(), values }
    };
    match dtype {
        Dtype::I8 => each(|x| (vec![(x as i8).cast_unsigned()], f64::from(x as i8))),
        Dtype::F16 => each(|x| (f16::from_f32(x).to_le_bytes().to_vec(), f16::from_f32(x).to_f64())),
        Dtype::F64 => each(|x| (f64::from(x).to_le_bytes().to_vec(), f64::from(x))),
        _ => each(|x| (x.to_le_bytes().to_vec(), f64::from(x))),
    }
}

/// A random model, and the vector of each token id by its definition.
struct Table {
    folder: TempDir,
    config: serde_json::Value,
    vectors: Vec<Vec<f64>>,
}

fn random_table(seed: u64, dtype: Dtype, mapped: Option<Dtype>, factors: Option<Dtype>) -> Table {
    let mut rng = StdRng::seed_from_u64(seed);
    let rows = if mapped.is_some() { 11 } else { VOCABULARY };
    let embeddings = random_tensor(&mut rng, dtype, rows * WIDTH);
    let mapping: Vec<usize> =
        (0..VOCABULARY).map(|id| if mapped.is_some() { rng.random_range(0..rows) } else { id }).collect();
    let weights = factors.map(|dtype| random_tensor(&mut rng, dtype, VOCABULARY));
    let map_bytes: Vec<u8> = match mapped {
        Some(Dtype::I32) => mapping.iter().flat_map(|&row| (row as i32).to_le_bytes()).collect(),
        _ => mapping.iter().flat_map(|&row| (row as i64).to_le_bytes()).collect(),
    };
    let mut tensors = vec![(
        "embeddings",
        TensorView::new(embeddings.dtype, vec![rows, WIDTH], &embeddings.bytes).unwrap(),
    )];
    if let Some(dtype) = mapped {
        tensors.push(("mapping", TensorView::new(dtype, vec![VOCABULARY], &map_bytes).unwrap()));
    }
    if let Some(weights) = &weights {
        tensors.push(("weights", TensorView::new(weights.dtype, vec![VOCABULARY], &weights.bytes).unwrap()));
    }
    let folder = tempfile::tempdir().unwrap();
    safetensors::serialize_to_file(tensors, None, &folder.path().join("model.safetensors")).unwrap();
    let config = serde_json::json!({
        "model_type": "model2vec", "hidden_size": WIDTH, "vocab_size": VOCABULARY, "table": "embeddings",
        "table_rows": rows, "has_mapping": mapped.is_some(), "has_weights": factors.is_some(), "blank_token_id": BLANK
    });
    let vector = |id: usize| {
        let factor = weights.as_ref().map_or(1.0, |weights| weights.values[id]);
        embeddings.values[mapping[id] * WIDTH..][..WIDTH].iter().map(|value| factor * value).collect()
    };
    let vectors = (0..VOCABULARY).map(vector).chain([vec![0.0; WIDTH]]).collect();
    Table { folder, config, vectors }
}

impl Table {
    fn options(&self) -> LoadOptions {
        LoadOptions {
            threads: 2,
            prefix_cache_bytes: 1 << 20,
            ..LoadOptions::new(
                self.config.clone(),
                vec![self.folder.path().join("model.safetensors").into()],
                Head::embedding(Pooling::Mean, Vec::new()),
            )
        }
    }

    fn backends(&self) -> Vec<(String, Box<dyn Backend>)> {
        let options = self.options();
        let on_cpu = |set| {
            let operations = CpuOperations::start(2, set, DType::Float32).unwrap();
            (format!("{set}"), load_on(operations, &options).unwrap())
        };
        let mut all: Vec<_> = InstructionSet::available().into_iter().map(on_cpu).collect();
        all.push(("candle".to_owned(), load_on(candle(), &options).unwrap()));
        all
    }
}

fn assert_near(got: &[f32], expected: &[f64], what: &str) {
    let largest = expected.iter().fold(1.0, |largest: f64, value| largest.max(value.abs()));
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        assert!((f64::from(*got) - expected).abs() <= 2e-6 * largest, "{what}: {got} for {expected}");
    }
}

#[test]
fn a_text_is_the_mean_of_its_rows_times_their_factors() {
    let tables = [
        (Dtype::F32, None, None),
        (Dtype::F16, None, Some(Dtype::F32)),
        (Dtype::I8, None, None),
        (Dtype::F32, Some(Dtype::I64), None),
        (Dtype::I8, Some(Dtype::I32), Some(Dtype::F64)),
        (Dtype::F16, Some(Dtype::I64), Some(Dtype::F64)),
    ];
    for (seed, (dtype, mapped, factors)) in (70..).zip(tables) {
        let table = random_table(seed, dtype, mapped, factors);
        let mut rng = StdRng::seed_from_u64(seed);
        let mut texts: Vec<Vec<u32>> =
            [1, 2, 7, 64, 129].map(|length| (0..length).map(|_| rng.random_range(0..BLANK)).collect()).into();
        texts.push(vec![BLANK]);
        for (name, mut backend) in table.backends() {
            let what = format!("{dtype:?} {mapped:?} {factors:?} {name}");
            assert_eq!(backend.packing(), Packing::SEPARATE);
            let mut builder = BatchBuilder::new(backend.packing());
            let wanted = Wanted { whole: true, tokens: true, sparse: false };
            for ids in &texts {
                builder.push(&Text::new(&ids[..], wanted));
            }
            let outputs = backend.predict(&builder.build()).unwrap().texts;
            for (ids, output) in texts.iter().zip(&outputs) {
                let rows = || ids.iter().map(|&id| &table.vectors[id as usize]);
                let sum = |place: usize| rows().map(|row| row[place]).sum::<f64>();
                let mean: Vec<f64> = (0..WIDTH).map(|place| sum(place) / ids.len() as f64).collect();
                assert_near(&output.whole, &mean, &what);
                assert_near(&output.tokens.values, &rows().flatten().copied().collect::<Vec<_>>(), &what);
                let alone = batch(BatchBuilder::new(backend.packing()), [ids]);
                let alone = backend.predict(&alone.build()).unwrap().texts;
                assert_eq!(alone[0].whole, output.whole, "{what}: alone as in company");
            }
            let unknown = batch(BatchBuilder::new(backend.packing()), [&vec![BLANK + 1]]);
            assert!(backend.predict(&unknown.build()).is_err(), "{what}");
        }
    }
}

#[test]
fn rows_beyond_the_table_and_infinite_factors_are_refused_by_name() {
    for (tensor, dtype, shape, value, part) in [
        (
            "mapping",
            Dtype::F64,
            vec![VOCABULARY],
            11.0,
            "the tensor `mapping` names a row that the table of 11",
        ),
        ("mapping", Dtype::F64, vec![VOCABULARY], -1.0, "the tensor `mapping` names"),
        ("mapping", Dtype::F64, vec![VOCABULARY], 0.5, "the tensor `mapping` names"),
        ("mapping", Dtype::F64, vec![VOCABULARY - 1], 0.0, "`mapping`"),
        ("weights", Dtype::F64, vec![VOCABULARY], f64::INFINITY, "the tensor `weights` holds a NaN"),
        ("weights", Dtype::F64, vec![VOCABULARY + 1], 1.0, "`weights`"),
    ] {
        let table = random_table(80, Dtype::F32, Some(Dtype::I64), Some(Dtype::F32));
        let path = table.folder.path().join("model.safetensors");
        let file = fs::read(&path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        let bytes: Vec<u8> = (0..shape.iter().product()).flat_map(|_| value.to_le_bytes()).collect();
        let tensors = tensors.tensors().into_iter().map(|(name, view)| {
            if name == tensor {
                (name, TensorView::new(dtype, shape.clone(), &bytes).unwrap())
            } else {
                (name, view)
            }
        });
        safetensors::serialize_to_file(tensors.collect::<Vec<_>>(), None, &path).unwrap();
        let message = load_on(candle(), &table.options()).err().unwrap().to_string();
        assert!(message.contains(part), "{message}");
    }
}
