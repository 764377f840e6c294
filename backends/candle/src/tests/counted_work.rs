//! A forward pass does the work of its tokens and no more. It computes no row of padding; with a window,
//! attention multiplies the keys of the window and of whole panels around it; an expert multiplies the rows
//! that are routed to it.
//!
//! The work is counted where it is done: [`TileKernel`](crate::kernels::tile::TileKernel) adds up its
//! multiplications, padding included. What must hold: a model runs on one thread, because each thread counts
//! its own. The unit is the same call for a text of one token, so no test repeats how operands are padded.

use super::{
    architectures::{REFUSED, fixtures_of_architectures},
    *,
};
use crate::{
    cpu::timed::{ATTENTION, CONVOLUTION, CallCost, CallKind, DELTA_RULE, Log},
    kernels::{layout::COLUMNS, tile::MAX_ROWS},
};
use std::collections::HashSet;

type Calls = Vec<(CallKind, CallCost)>;

/// A model whose calls are logged.
struct LoggedModel {
    backend: Box<dyn Backend>,
    log: Log,
}

impl LoggedModel {
    fn load(options: &LoadOptions, set: InstructionSet, dtype: DType) -> Self {
        let log = Log::default();
        let operations = CpuOperations::start(1, set, dtype).unwrap().timed(log.clone());
        Self { backend: load_on(operations, options).unwrap(), log }
    }

    /// The calls of a forward pass over one batch.
    fn calls(&mut self, texts: &[Vec<u32>]) -> Calls {
        self.log.lock().unwrap().clear();
        let builder = batch(BatchBuilder::new(self.backend.packing()), texts);
        self.backend.predict(&builder.build()).unwrap();
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    /// The numbers of rows that a pass must compute, and that its last layer must compute for the last
    /// tokens' states. Texts that share prefixes have one row for each different beginning.
    fn rows(&self, texts: &[Vec<u32>]) -> (usize, usize) {
        if !self.backend.packing().shares_prefixes {
            return (texts.iter().map(Vec::len).sum(), texts.len());
        }
        let beginnings = texts.iter().flat_map(|text| (1..=text.len()).map(|length| &text[..length]));
        (beginnings.collect::<HashSet<_>>().len(), texts.iter().collect::<HashSet<_>>().len())
    }
}

/// The multiplications of each call whose name contains `name`.
fn multiplications(calls: &[(CallKind, CallCost)], name: &str) -> Vec<usize> {
    calls.iter().filter(|(kind, _)| kind.name.contains(name)).map(|(_, cost)| cost.multiplications).collect()
}

/// Short texts of different lengths. Some begin with the same tokens, and some are equal.
fn short_texts(rng: &mut StdRng) -> Vec<Vec<u32>> {
    let text = |_| (0..rng.random_range(1..40)).map(|_| rng.random_range(3..6)).collect();
    (0..12).map(text).collect()
}

#[test]
fn a_batch_computes_one_row_for_each_token_and_the_last_layer_only_the_rows_of_answers() {
    let mut rng = StdRng::seed_from_u64(91);
    for fixture in fixtures_of_architectures() {
        // The last test counts the rows of experts.
        if fixture.name == "nomic-moe" || REFUSED.iter().any(|(name, _)| *name == fixture.name) {
            continue;
        }
        for dtype in [DType::Float32, DType::Int8] {
            let what = format!("{} {dtype}", fixture.name);
            let mut model = LoggedModel::load(&fixture.options("last"), InstructionSet::best(), dtype);
            let texts = short_texts(&mut rng);
            let (all, last) = model.rows(&texts);
            assert!(all > last, "{what}");
            let (one, calls) = (model.calls(&[vec![3]]), model.calls(&texts));
            // The product before the last attention makes the last layer's queries, or there are two: queries
            // and gates. A delta rule and a convolution have gates only.
            let mixers = [ATTENTION, DELTA_RULE, CONVOLUTION];
            let mixer = calls.iter().rposition(|(kind, _)| mixers.contains(&kind.name)).unwrap();
            let plan = models::plan(&fixture.config, &fixture.choices).unwrap();
            let is_gated = |attention: &plan::AttentionPlan| attention.gate.is_some();
            let has_both = plan.layers.last().unwrap().mixer.as_attention().is_some_and(is_gated);
            let queries = multiplications(&calls[..mixer], "product").len() - 1 - usize::from(has_both);
            let (one_row, products) = (multiplications(&one, "product"), multiplications(&calls, "product"));
            let expected: Vec<usize> = one_row
                .iter()
                .enumerate()
                .map(|(index, of_row)| of_row * if index < queries { all } else { last })
                .collect();
            assert!(one_row.iter().all(|&of_row| of_row > 0), "{what}");
            assert_eq!(products, expected, "{what}: {all} rows, {last} in the last layer");
            let looked_up = |calls: &Calls| -> usize {
                calls.iter().filter(|(kind, _)| kind.name == "embedding").map(|(_, cost)| cost.bytes).sum()
            };
            assert_eq!(looked_up(&calls), all * looked_up(&one), "{what}: vectors of the embedding");
        }
    }
}

/// Fixtures with windows in some layers or in all, and whether their texts share prefixes.
const WINDOWED: [(&str, bool); 5] = [
    ("modernbert-embedding", false),
    ("gemma3-bidirectional", false),
    ("gemma3-embedding", true),
    ("mistral-embedding", true),
    ("qwen3-sliding", true),
];

/// For each layer, its mask, and the pairs of a query and a key that attention multiplied, in all heads.
fn pairs(config: &serde_json::Value, calls: &Calls, one: &Calls) -> Vec<(Mask, usize)> {
    let plan = models::plan(config, &WeightChoices::default()).unwrap();
    let (calls, one) = (multiplications(calls, ATTENTION), multiplications(one, ATTENTION));
    assert_eq!([calls.len(), one.len()], [plan.layers.len(); 2]);
    let layers = plan.layers.iter().zip(calls.iter().zip(one));
    let of_layer = |(layer, (count, one)): (&plan::LayerPlan, (&usize, usize))| {
        // In a text of one token, the query of each head meets one panel of keys.
        let view = &plan.views[layer.mixer.as_attention().unwrap().view];
        let pairs_of_one = view.heads.queries * COLUMNS;
        assert!(one > 0 && (count * pairs_of_one).is_multiple_of(one), "{count} {one}");
        (view.mask, count * pairs_of_one / one)
    };
    layers.map(of_layer).collect()
}

/// The most keys that a query may meet if it sees `mask`. The queries of a tile see a longer range together
/// than each alone, and ranges are rounded to whole panels on both sides.
fn max_keys(Mask { before, after }: Mask) -> usize {
    before + 1 + after + (MAX_ROWS - 1) + 2 * (COLUMNS - 1)
}

/// The pairs of a query and a key that it sees, in a text of `length` tokens.
fn seen(Mask { before, after }: Mask, length: usize) -> usize {
    (0..length)
        .map(|query| {
            (0..length)
                .filter(|&key| query <= key.saturating_add(before) && key <= query.saturating_add(after))
                .count()
        })
        .sum()
}

#[test]
fn attention_with_a_window_multiplies_the_keys_in_the_window() {
    let mut rng = StdRng::seed_from_u64(92);
    let mut ids = |count: usize| -> Vec<u32> { (0..count).map(|_| rng.random_range(3..100)).collect() };
    let (length, trunk) = (300, ids(700));
    let (short, long) = (vec![ids(length)], vec![ids(4 * length)]);
    // Branches of the trunk, a branch of a branch, and a text that is the beginning of others.
    let mut forest: Vec<Vec<u32>> =
        [700, 700, 699, 650, 31].iter().map(|&shared| [&trunk[..shared], &ids(250)].concat()).collect();
    forest.push([&forest[0][..800], &ids(90)].concat());
    forest.push(trunk[..333].to_vec());
    let fixtures = fixtures_of_architectures();
    for (name, shares) in WINDOWED {
        let Some(fixture) = fixtures.iter().find(|fixture| fixture.name == name) else { continue };
        let dtypes = |set| [DType::Float32, DType::BFloat16].map(|dtype| (set, dtype));
        for (set, dtype) in InstructionSet::available().into_iter().flat_map(dtypes) {
            let mut model = LoggedModel::load(&fixture.options("last"), set, dtype);
            assert_eq!(model.backend.packing().shares_prefixes, shares, "{name}");
            let one = model.calls(&[vec![3]]);
            let [of_short, of_long, of_forest] =
                [&short, &long, &forest].map(|texts| pairs(&fixture.config, &model.calls(texts), &one));
            let heads = models::plan(&fixture.config, &fixture.choices).unwrap().views[0].heads.queries;
            let (all, needed) = model.rows(&forest);
            let last = of_short.len() - 1;
            for (index, &(mask, in_short)) in of_short.iter().enumerate() {
                let (in_long, in_forest) = (of_long[index].1, of_forest[index].1);
                let what = format!("{name} {set} {dtype}, layer {index}: {in_short} {in_long} {in_forest}");
                let is_last = index == last;
                if mask.before == usize::MAX {
                    // Without a window, the bounds below would not hold.
                    assert!(is_last || in_long > 12 * in_short, "{what}");
                    continue;
                }
                let rows = if is_last { [1, 1, needed] } else { [length, 4 * length, all] };
                for (pairs, rows) in [in_short, in_long, in_forest].into_iter().zip(rows) {
                    assert!(pairs <= rows * heads * max_keys(mask), "{what}: {rows} rows");
                }
                if !is_last {
                    assert!(in_short >= heads * seen(mask, length), "{what}");
                    assert!(in_long >= heads * seen(mask, 4 * length), "{what}");
                    assert!(in_long <= 4 * in_short + MAX_ROWS * heads * max_keys(mask), "{what}");
                }
            }
            assert!(of_short.iter().any(|(mask, _)| mask.before < length), "{name} has no window");
        }
    }
}

/// Sizes of the fixture `nomic-moe`.
const HIDDEN: usize = 24;
const EXPERTS: usize = 8;

/// Changes a tensor of the fixture `nomic-moe` so that a token's experts follow from its id. A token's first
/// hidden state is 1 at one place and 0 elsewhere. All that is added to it is 0, so norms only shift and
/// scale it. The router then gives the token `id` the experts `id` and `id + 1`, modulo 8.
fn routed(name: &str, tensor: &Tensor) -> Tensor {
    let is = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let value = |row: usize, column: usize| -> Option<f32> {
        Some(match name {
            _ if is(&["word_embeddings"]) => f32::from(u8::from(row % HIDDEN == column)),
            _ if is(&["router"]) => match (column + EXPERTS - row) % EXPERTS {
                0 => 2.0,
                // The column's expert is the one before.
                7 => 1.0,
                _ => 0.0,
            },
            _ if is(&["norm1.weight", "norm2.weight", "emb_ln.weight"]) => 1.0,
            _ if is(&["norm1", "norm2", "emb_ln", "out_proj", "fc2", "w2", "experts.bias", "token_type"]) => {
                0.0
            }
            _ => return None,
        })
    };
    if value(0, 0).is_none() {
        return tensor.clone();
    }
    let columns = *tensor.dims().last().unwrap();
    let values = (0..tensor.elem_count()).map(|index| value(index / columns, index % columns).unwrap());
    Tensor::from_iter(values, &Device::Cpu).unwrap().reshape(tensor.dims()).unwrap()
}

#[test]
fn each_expert_multiplies_the_rows_that_are_routed_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("model.safetensors");
    let stored = fixtures().join("architectures/nomic-moe/model.safetensors");
    let tensors = candle_core::safetensors::load(stored, &Device::Cpu).unwrap();
    let tensors: HashMap<String, Tensor> =
        tensors.iter().map(|(name, tensor)| (name.clone(), routed(name, tensor))).collect();
    candle_core::safetensors::save(&tensors, &weights).unwrap();
    let head = Head::embedding(Pooling::Last, Vec::new());
    let config = json("architectures/nomic-moe/config.json");
    let options = LoadOptions { config, weights: vec![weights.into()], ..options_with("tied-bf16", head) };
    let mut rng = StdRng::seed_from_u64(93);
    for dtype in [DType::Float32, DType::BFloat16, DType::Int8] {
        let mut model = LoggedModel::load(&options, InstructionSet::best(), dtype);
        let one = experts_calls(&model.calls(&[vec![3]]));
        for round in 0..10 {
            let count = rng.random_range(2..9);
            let text = |_| (0..rng.random_range(1..12)).map(|_| rng.random_range(0..128)).collect();
            let texts: Vec<Vec<u32>> = (0..count).map(text).collect();
            let all = texts.concat();
            let last: Vec<u32> = texts.iter().map(|text| text[text.len() - 1]).collect();
            let calls = experts_calls(&model.calls(&texts));
            assert_eq!([calls.len(), one.len()], [2; 2], "the second and the last layer have experts");
            for ((calls, one), ids) in calls.iter().zip(&one).zip([&all, &last]) {
                let mut expected = [0; EXPERTS];
                for id in ids {
                    expected[*id as usize % EXPERTS] += 1;
                    expected[(*id as usize + 1) % EXPERTS] += 1;
                }
                let expected: Vec<usize> = expected.into_iter().filter(|&rows| rows > 0).collect();
                assert_eq!(expected.iter().sum::<usize>(), 2 * ids.len());
                assert_eq!(calls.router, ids.len() * one.router, "{dtype}, {round}");
                let times = |of_rows: &[usize]| expected.iter().map(|rows| rows * of_rows[0]).collect();
                let expected: [Vec<usize>; 2] = [times(&one.up), times(&one.down)];
                assert_eq!([calls.up.clone(), calls.down.clone()], expected, "{dtype}, {round}: {ids:?}");
            }
        }
    }
}

/// The multiplications of a layer's experts.
struct ExpertsCalls {
    router: usize,
    /// The first product of each expert that has rows.
    up: Vec<usize>,
    /// The second.
    down: Vec<usize>,
}

/// The calls of the layers with experts. Each begins with a router and ends with the experts' bias.
fn experts_calls(calls: &Calls) -> Vec<ExpertsCalls> {
    let is_router = |(kind, _): &(CallKind, CallCost)| kind.sizes == Some((HIDDEN, EXPERTS));
    let routers = calls.iter().enumerate().filter(|(_, call)| is_router(call));
    let layer = |(index, (_, router)): (usize, &(CallKind, CallCost))| {
        let calls = &calls[index + 1..];
        let end = calls.iter().position(|(kind, _)| kind.name == "embedding").unwrap();
        let up = multiplications(&calls[..end], "activated product");
        let products = multiplications(&calls[..end], "product").len();
        let down = calls[..end].iter().filter(|(kind, _)| kind.name == "product");
        let down: Vec<usize> = down.map(|(_, cost)| cost.multiplications).collect();
        assert_eq!([down.len(), products], [up.len(), 2 * up.len()]);
        ExpertsCalls { router: router.multiplications, up, down }
    };
    routers.map(layer).collect()
}
