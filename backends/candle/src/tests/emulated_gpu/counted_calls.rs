//! The calls that passes make on a GPU: each takes some microseconds of the host's time, whatever the sizes.
//!
//! The emulated GPU counts them. For the layers of Qwen3-Reranker-0.6B it computes nothing, so that passes of
//! real sizes take no time.

use super::{
    super::{
        random_model::{RandomModel, Sizes, VOCABULARY},
        real_widths::WIDTHS,
    },
    *,
};
use std::time::Instant;

const ALLOCATE: &str = "cuMemAllocAsync";
const UPLOAD: &str = "cuMemcpyHtoDAsync_v2";
const DOWNLOAD: &str = "cuMemcpyDtoHAsync_v2";
/// The functions whose calls are counted: of the driver, of cuBLAS, and the start of flash attention.
const COUNTED: [&str; 8] = [
    "cuLaunchKernel",
    "cublasGemmEx",
    "run_mha",
    ALLOCATE,
    "cuMemFreeAsync",
    UPLOAD,
    DOWNLOAD,
    "cuGraphLaunch",
];
const WITH_BYTES: [&str; 3] = [ALLOCATE, UPLOAD, DOWNLOAD];

/// The calls of a pass, and the bytes that they allocate, upload and download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Calls {
    counts: [u32; COUNTED.len()],
    bytes: [u64; WITH_BYTES.len()],
}

/// Queries with their documents, as token ids.
struct Workload {
    name: &'static str,
    queries: u32,
    /// Documents of a query.
    documents: usize,
    /// Tokens of a query, with which all its texts begin.
    shared: u32,
    /// Tokens of a document.
    own: usize,
    /// Whether earlier passes have left the queries in the prefix cache.
    is_known: bool,
    /// With one layer, and with two, for a pass of a new shape.
    expected: [Calls; 2],
    /// With two layers, when the same texts come for the fourth time.
    again: Calls,
}

/// The sizes of the workloads of `docs/gpu.md`, and 64 clients with a pair each.
const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "W1",
        queries: 1,
        documents: 32,
        shared: 69,
        own: 136,
        is_known: false,
        expected: [
            Calls { counts: [13, 5, 1, 1, 0, 6, 2, 0], bytes: [278_528, 195_664, 131_076] },
            Calls { counts: [19, 9, 2, 1, 0, 7, 2, 0], bytes: [557_056, 195_664, 131_076] },
        ],
        again: Calls { counts: [3, 1, 0, 0, 0, 4, 1, 2], bytes: [0, 160_496, 131_072] },
    },
    Workload {
        name: "W2",
        queries: 1,
        documents: 1,
        shared: 70,
        own: 50,
        is_known: true,
        expected: [
            Calls { counts: [10, 5, 1, 0, 0, 3, 1, 0], bytes: [0, 28_724, 4096] },
            Calls { counts: [15, 9, 2, 0, 0, 4, 1, 0], bytes: [0, 28_724, 4096] },
        ],
        again: Calls { counts: [3, 1, 0, 0, 0, 4, 1, 2], bytes: [0, 28_724, 4096] },
    },
    Workload {
        name: "W3",
        queries: 1,
        documents: 8,
        shared: 69,
        own: 1051,
        is_known: false,
        expected: [
            Calls { counts: [13, 5, 1, 1, 0, 6, 2, 0], bytes: [278_528, 714_160, 32_772] },
            Calls { counts: [19, 9, 2, 1, 0, 7, 2, 0], bytes: [557_056, 714_160, 32_772] },
        ],
        again: Calls { counts: [3, 1, 0, 0, 0, 4, 1, 2], bytes: [0, 679_008, 32_768] },
    },
    Workload {
        name: "64 pairs",
        queries: 64,
        documents: 1,
        shared: 70,
        own: 50,
        is_known: false,
        expected: [
            Calls { counts: [76, 5, 1, 64, 0, 69, 2, 0], bytes: [18_087_936, 224_100, 262_148] },
            Calls { counts: [82, 9, 2, 64, 0, 70, 2, 0], bytes: [36_175_872, 224_100, 262_148] },
        ],
        again: Calls { counts: [3, 1, 0, 0, 0, 4, 1, 2], bytes: [0, 186_960, 262_144] },
    },
];

impl Workload {
    /// A batch of the texts, with other documents each time. Queries of one `round` begin alike.
    fn batch(&self, rng: &mut StdRng, round: u32) -> Batch {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        let vocabulary = VOCABULARY as u32;
        for query in 0..self.queries {
            for _ in 0..self.documents {
                let beginning = (0..self.shared).map(|token| (query + token * (round + 1)) % vocabulary);
                let own = (0..self.own).map(|_| rng.random_range(0..vocabulary));
                let ids: Vec<u32> = beginning.chain(own).collect();
                builder.push(&Text { reusable: self.shared as usize, ..Text::new(ids, Wanted::WHOLE) });
            }
        }
        builder.build()
    }

    /// The calls of a pass with this number of layers, without graphs or with the graphs of earlier passes.
    fn calls(&self, gpu: &EmulatedGpu, layers: usize, has_graphs: bool) -> Calls {
        let sizes = Sizes { layers, ..WIDTHS[0] };
        let model = RandomModel::with_sizes(72, "", candle_core::DType::BF16, sizes);
        let options = LoadOptions {
            head: Head::answers(AnswerTokens::difference(3, Some(5))),
            weights: model.weights.iter().cloned().map(ModelFile::Disk).collect(),
            config: model.config.clone(),
            prefix_cache_bytes: 1 << 30,
            ..gpu_options("tied-bf16", DType::BFloat16)
        };
        gpu.reset(0);
        let mut backend = load(&options).unwrap().backend;
        let mut rng = StdRng::seed_from_u64(73);
        let refuse_graphs = || {
            if !has_graphs {
                gpu.fail("cuStreamBeginCapture_v2", 1, INVALID_VALUE);
            }
        };
        refuse_graphs();
        // The first passes find out how much memory they need.
        for round in 0..3 {
            gpu.compute_nothing();
            backend.predict(&self.batch(&mut rng, round)).unwrap();
        }
        let batch = self.batch(&mut rng, if self.is_known { 2 } else { 3 });
        for _ in 0..if has_graphs { 3 } else { 0 } {
            backend.predict(&batch).unwrap();
        }
        gpu.reset(0);
        gpu.compute_nothing();
        refuse_graphs();
        let start = Instant::now();
        backend.predict(&batch).unwrap();
        eprintln!("{}, {layers} layers: {} µs in the emulation", self.name, start.elapsed().as_micros());
        Calls {
            counts: COUNTED.map(|function| gpu.calls(function)),
            bytes: WITH_BYTES.map(|function| gpu.total_bytes(function)),
        }
    }
}

#[test]
#[serial]
fn a_pass_makes_the_counted_calls() {
    let Some(gpu) = EmulatedGpu::new() else { return };
    let counted = WORKLOADS.each_ref().map(|workload| {
        let new = [1, 2].map(|layers| workload.calls(&gpu, layers, false));
        (workload.name, new, workload.calls(&gpu, 2, true))
    });
    let expected = WORKLOADS.each_ref().map(|workload| (workload.name, workload.expected, workload.again));
    assert_eq!(counted, expected, "{COUNTED:?}, bytes of {WITH_BYTES:?}");
    gpu.reset(0);
}
