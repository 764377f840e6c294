// The fused kernels around cuBLAS and flash attention.
//
// Input and output: matrices in row-major order, of `T` (suffix `_bf16` or `_f16`) or `float`. All sums and
// functions are float32; a value is rounded to `T` once, when it is stored. Each row is read once and written
// once, with the exceptions that "per_row" below describes. `twins.rs` has each kernel in plain Rust. The
// tests compile this very file for the CPU (`emulated/`).
//
// Launch: blocks and threads have one dimension, and no kernel takes dynamic shared memory. The number of
// threads per block must be a multiple of 32, at most 1,024. Every number of blocks and threads gives the
// same result up to rounding in sums, because each kernel loops over the rest of its rows and columns.
// Rounding depends only on the number of threads. These shapes are fast:
//
// | kernel                                       | blocks                      | threads                |
// |----------------------------------------------|-----------------------------|------------------------|
// | norm, add_norm, norm_columns, embed,         | rows                        | per_row(columns)       |
// |   activate, gate (inner columns), add_bias   |                             |                        |
// | gather_turned                                | count                       | per_row(columns / 2)   |
// | gather_rows                                  | count                       | per_row(bytes / 2)     |
// | copy_layers                                  | layers · count              | per_row(bytes / 2)     |
// | mean_rows                                    | texts · ceil(columns / 32)  | 256                    |
// | not_finite                                   | tensors · ceil(count/part)  | 256                    |
//
// per_row(n) = min(1024, 32 · ceil(n / 256)): eight values per thread. For a norm, each thread keeps 16
// values of its row in registers and reads the rest again for each sum. So rows of up to 16 · threads columns
// (16,384 with 1,024 threads) are read once, if all accesses are wide.
//
// Bytes moved per row, with c columns and T of 2 bytes; weights and angles stay in the cache:
//   norm 4c + 2c (+ 4c in_place); add_norm 2c + 8c (float x: 12c); norm_columns 4c; embed: its tables' rows
//   + 4c; activate 4c; gate 6·inner; add_bias 4c (float: 8c); gather_turned 4c; gather_rows and copy_layers
//   2·bytes; mean_rows 4c for each row it averages; not_finite 2 per value.
//
// Wide accesses (16 bytes) need pointers aligned to 16 bytes and sizes that are multiples of 8 values;
// otherwise, the same code handles one value at a time.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
// The number of values in a wide access.
constexpr int WIDE = 8;
// The number of a row's values that a thread keeps in registers if its accesses are wide; otherwise two.
constexpr int KEPT = 16;
constexpr int MOST_THREADS = 1024;

// The numbers of `NormKind`, as `twins.rs` gives them.
constexpr int NO_NORM = 0;
constexpr int LAYER_NORM = 2;

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float to_float(__half value) { return __half2float(value); }

__device__ inline void round_to(float& to, float value) { to = value; }
__device__ inline void round_to(__nv_bfloat16& to, float value) { to = __float2bfloat16_rn(value); }
__device__ inline void round_to(__half& to, float value) { to = __float2half_rn(value); }

// Loads COUNT values from `from` on. If COUNT is not 1, `from` must be aligned to 16 bytes.
template <int COUNT, class T>
__device__ inline void load(const T* from, float (&values)[COUNT]) {
    if constexpr (COUNT == 1) {
        values[0] = to_float(*from);
    } else {
        constexpr int PIECES = COUNT * sizeof(T) / sizeof(uint4);
        uint4 pieces[PIECES];
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) pieces[piece] = reinterpret_cast<const uint4*>(from)[piece];
        T stored[COUNT];
        memcpy(stored, pieces, sizeof(stored));
#pragma unroll
        for (int i = 0; i < COUNT; ++i) values[i] = to_float(stored[i]);
    }
}

// The reverse of `load`.
template <int COUNT, class T>
__device__ inline void store(T* to, const float (&values)[COUNT]) {
    if constexpr (COUNT == 1) {
        round_to(*to, values[0]);
    } else {
        // The compiler writes four bytes at a time, unless each piece is made of whole words.
        constexpr int PER_WORD = sizeof(unsigned) / sizeof(T), PER_PIECE = 4 * PER_WORD;
#pragma unroll
        for (int first = 0; first < COUNT; first += PER_PIECE) {
            unsigned words[4];
#pragma unroll
            for (int word = 0; word < 4; ++word) {
                T stored[PER_WORD];
#pragma unroll
                for (int i = 0; i < PER_WORD; ++i) round_to(stored[i], values[first + word * PER_WORD + i]);
                memcpy(&words[word], stored, sizeof(unsigned));
            }
            __stwb(reinterpret_cast<uint4*>(to + first), uint4{words[0], words[1], words[2], words[3]});
        }
    }
}

template <class... P>
__device__ inline bool are_aligned(const P*... pointers) {
    return ((reinterpret_cast<unsigned long long>(pointers) % sizeof(uint4) == 0) && ...);
}

template <int VALUES>
struct Width {
    static constexpr int VALUE = VALUES;
};

// Calls `work` with the number of values per access.
template <class Work>
__device__ inline void with_width(bool is_wide, Work work) {
    if (is_wide) {
        work(Width<WIDE>{});
    } else {
        work(Width<1>{});
    }
}

// Calls `work` for each row of this block, in all of its threads.
template <class Work>
__device__ inline void for_rows(int rows, Work work) {
#pragma unroll 1
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) work(row);
}

// Calls `work` with the first column of each of this thread's groups of COUNT columns.
template <int COUNT, class Work>
__device__ inline void for_columns(int columns, Work work) {
#pragma unroll 1
    for (int column = threadIdx.x * COUNT; column < columns; column += blockDim.x * COUNT) work(column);
}

// The sum over all threads of the block. Every thread gets it.
__device__ float block_sum(float value) {
    __shared__ float of_warps[MOST_THREADS / WARP];
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(ALL_LANES, value, offset);
    if (blockDim.x == WARP) return value;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    // Waits for threads that still read the previous sum from `of_warps`.
    __syncthreads();
    if (lane == 0) of_warps[warp] = value;
    __syncthreads();
    value = lane < static_cast<int>(blockDim.x) / WARP ? of_warps[lane] : 0.0f;
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}

// The norm of rows of `columns` values.
struct Norm {
    const float* __restrict__ weight;
    const float* __restrict__ bias;
    int columns;
    float epsilon;
    int kind;
};

// `read(column, values)` gives COUNT values of the row; `write(column, values)` takes their new values. A
// thread writes a column only after its last read, so input and output may share memory.
template <int COUNT, class Read, class Write>
__device__ inline void norm_row(const Norm& norm, Read read, Write write) {
    constexpr int GROUPS = COUNT == 1 ? 2 : KEPT / COUNT;
    const int step = blockDim.x * COUNT, first = threadIdx.x * COUNT, columns = norm.columns;
    float kept[GROUPS][COUNT];
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        if (first + group * step < columns) read(first + group * step, kept[group]);
    }
    auto for_groups = [&](auto work) {
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            if (first + group * step < columns) work(first + group * step, kept[group]);
        }
#pragma unroll 1
        for (int column = first + GROUPS * step; column < columns; column += step) {
            float again[COUNT];
            read(column, again);
            work(column, again);
        }
    };
    float mean = 0.0f, scale = 1.0f;
    if (norm.kind == LAYER_NORM) {
        float sum = 0.0f;
        for_groups([&](int, float(&values)[COUNT]) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) sum += values[i];
        });
        mean = block_sum(sum) / columns;
    }
    if (norm.kind != NO_NORM) {
        float squares = 0.0f;
        for_groups([&](int, float(&values)[COUNT]) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) squares += (values[i] - mean) * (values[i] - mean);
        });
        scale = 1.0f / sqrtf(block_sum(squares) / columns + norm.epsilon);
    }
    for_groups([&](int column, float(&values)[COUNT]) {
        if (norm.kind != NO_NORM) {
            float weight[COUNT];
            load(norm.weight + column, weight);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) values[i] = (values[i] - mean) * scale * weight[i];
            if (norm.bias != nullptr) {
                float bias[COUNT];
                load(norm.bias + column, bias);
#pragma unroll
                for (int i = 0; i < COUNT; ++i) values[i] += bias[i];
            }
        }
        write(column, values);
    });
}

template <class T>
__device__ void norm_rows(const float* x, T* out, float* in_place, int rows, const Norm& norm) {
    const int columns = norm.columns;
    const bool is_wide = columns % WIDE == 0 && are_aligned(x, norm.weight, norm.bias, out, in_place);
    with_width(is_wide, [&](auto width) {
        constexpr int COUNT = decltype(width)::VALUE;
        for_rows(rows, [&](long long row) {
            const long long start = row * columns;
            norm_row<COUNT>(
                norm, [&](int column, float(&values)[COUNT]) { load(x + start + column, values); },
                [&](int column, const float(&values)[COUNT]) {
                    if (out != nullptr) store(out + start + column, values);
                    if (in_place != nullptr) store(in_place + start + column, values);
                });
        });
    });
}

template <class T>
__device__ void add_norm_rows(const T* x, float* sum, int rows, const Norm& norm) {
    const int columns = norm.columns;
    const bool is_wide = columns % WIDE == 0 && are_aligned(x, norm.weight, norm.bias, sum);
    with_width(is_wide, [&](auto width) {
        constexpr int COUNT = decltype(width)::VALUE;
        for_rows(rows, [&](long long row) {
            const long long start = row * columns;
            norm_row<COUNT>(
                norm, [&](int column, float(&values)[COUNT]) { load(x + start + column, values); },
                [&](int column, const float(&values)[COUNT]) {
                    float sums[COUNT];
                    load(sum + start + column, sums);
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) sums[i] += values[i];
                    store(sum + start + column, sums);
                });
        });
    });
}

template <class T>
__device__ void norm_first_columns(T* x, int rows, int stride, const Norm& norm) {
    const bool is_wide =
        norm.columns % WIDE == 0 && stride % WIDE == 0 && are_aligned(x, norm.weight, norm.bias);
    with_width(is_wide, [&](auto width) {
        constexpr int COUNT = decltype(width)::VALUE;
        for_rows(rows, [&](long long row) {
            T* const first = x + row * stride;
            norm_row<COUNT>(
                norm, [&](int column, float(&values)[COUNT]) { load(first + column, values); },
                [&](int column, const float(&values)[COUNT]) { store(first + column, values); });
        });
    });
}

// One of the tables whose vectors `embed_rows` adds up; `ids` is null if the table is absent.
template <class E>
struct Lookup {
    const E* __restrict__ table;
    const unsigned* __restrict__ ids;
};

template <class E>
__device__ void embed_rows(const Lookup<E> (&lookups)[3], float scale, float* out, int rows, const Norm& norm) {
    const int columns = norm.columns;
    const bool is_wide =
        columns % WIDE == 0 &&
        are_aligned(lookups[0].table, lookups[1].table, lookups[2].table, norm.weight, norm.bias, out);
    with_width(is_wide, [&](auto width) {
        constexpr int COUNT = decltype(width)::VALUE;
        for_rows(rows, [&](long long row) {
            const E* vectors[3];
#pragma unroll
            for (int i = 0; i < 3; ++i) {
                const Lookup<E>& lookup = lookups[i];
                const bool is_there = lookup.table != nullptr && lookup.ids != nullptr;
                vectors[i] = is_there ? lookup.table + static_cast<long long>(lookup.ids[row]) * columns : nullptr;
            }
            norm_row<COUNT>(
                norm,
                [&](int column, float(&values)[COUNT]) {
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) values[i] = 0.0f;
#pragma unroll
                    for (int table = 0; table < 3; ++table) {
                        if (vectors[table] == nullptr) continue;
                        float more[COUNT];
                        load(vectors[table] + column, more);
#pragma unroll
                        for (int i = 0; i < COUNT; ++i) values[i] += more[i];
                    }
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) values[i] *= scale;
                },
                [&](int column, const float(&values)[COUNT]) { store(out + row * columns + column, values); });
        });
    });
}

// The heads at the start of each row, their norm (no weight: none) and their angles (no cosines: none).
struct TurnedHeads {
    const float* __restrict__ weight;
    const float* __restrict__ cosines;
    const float* __restrict__ sines;
    const unsigned* __restrict__ of_rows;
    int heads;
    int size;
    float epsilon;
};

// Normalises (if there is a weight) and rotates (if there are angles) the heads of one row. A group of lanes
// has one head: lane i takes the head's i-th group of COUNT pairs, and then every group that is 32 groups
// further. The first group is kept in registers, the others are read again.
template <int COUNT, class T>
__device__ inline void turn_row(const T* x, T* out, const TurnedHeads& turned, long long angles) {
    const int heads = turned.heads, size = turned.size, half = size / 2;
    const float *const weight = turned.weight, *const cosines = turned.cosines, *const sines = turned.sines;
    int lanes_log = 0;
    while ((COUNT << lanes_log) < half && (1 << lanes_log) < WARP) ++lanes_log;
    const int lanes = 1 << lanes_log, step = COUNT << lanes_log;
    // All threads stay in this loop together, because a shuffle needs whole warps.
    for (int first = 0; first < heads << lanes_log; first += blockDim.x) {
        const int head = (first + static_cast<int>(threadIdx.x)) >> lanes_log;
        const int start = head < heads ? (threadIdx.x & (lanes - 1)) * COUNT : half;
        const T* const from = x + head * size;
        T* const to = out + head * size;
        float a[COUNT], b[COUNT];
        if (start < half) {
            load(from + start, a);
            load(from + half + start, b);
        }
        float scale = 1.0f;
        if (weight != nullptr) {
            float squares = 0.0f;
#pragma unroll 1
            for (int pair = start; pair < half; pair += step) {
                float c[COUNT], d[COUNT];
                if (pair != start) {
                    load(from + pair, c);
                    load(from + half + pair, d);
                }
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    const float left = pair == start ? a[i] : c[i], right = pair == start ? b[i] : d[i];
                    squares += left * left + right * right;
                }
            }
            for (int offset = lanes / 2; offset > 0; offset /= 2) {
                squares += __shfl_xor_sync(ALL_LANES, squares, offset);
            }
            scale = 1.0f / sqrtf(squares / size + turned.epsilon);
        }
#pragma unroll 1
        for (int pair = start; pair < half; pair += step) {
            if (pair != start) {
                load(from + pair, a);
                load(from + half + pair, b);
            }
            if (weight != nullptr) {
                float of_a[COUNT], of_b[COUNT];
                load(weight + pair, of_a);
                load(weight + half + pair, of_b);
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    a[i] *= scale * of_a[i];
                    b[i] *= scale * of_b[i];
                }
            }
            if (cosines != nullptr) {
                float cosine[COUNT], sine[COUNT];
                load(cosines + angles + pair, cosine);
                load(sines + angles + pair, sine);
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    const float left = a[i] * cosine[i] - b[i] * sine[i];
                    b[i] = b[i] * cosine[i] + a[i] * sine[i];
                    a[i] = left;
                }
            }
            store(to + pair, a);
            store(to + half + pair, b);
        }
    }
}

// The numbers of `Activation`, as `twins.rs` gives them.
__device__ inline float activated(float x, int activation) {
    switch (activation) {
        case 1: return x / (1.0f + expf(-x));
        case 2: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
        case 3: return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
        // `fmaxf` would turn NaN into a number.
        case 4: return x < 0.0f ? 0.0f : x;
        case 5: return tanhf(x);
        case 6: return 1.0f / (1.0f + expf(-x));
        default: return x;
    }
}

// Adds the values of `bias` from `column` on, if there is a bias.
template <int COUNT>
__device__ inline void add(const float* __restrict__ bias, int column, float (&values)[COUNT]) {
    if (bias == nullptr) return;
    float more[COUNT];
    load(bias + column, more);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) values[i] += more[i];
}

template <class T>
__device__ void activate_rows(const T* x, const float* bias, T* out, int rows, int columns, int activation) {
    with_width(columns % WIDE == 0 && are_aligned(x, bias, out), [&](auto width) {
        constexpr int COUNT = decltype(width)::VALUE;
        for_rows(rows, [&](long long row) {
            for_columns<COUNT>(columns, [&](int column) {
                float values[COUNT];
                load(x + row * columns + column, values);
                add(bias, column, values);
#pragma unroll
                for (int i = 0; i < COUNT; ++i) values[i] = activated(values[i], activation);
                store(out + row * columns + column, values);
            });
        });
    });
}

template <class T>
__device__ void gate_rows(const T* x, const float* bias, T* out, int rows, int inner, int activation) {
    with_width(inner % WIDE == 0 && are_aligned(x, bias, out), [&](auto width) {
        constexpr int COUNT = decltype(width)::VALUE;
        for_rows(rows, [&](long long row) {
            const T* const gates = x + 2 * row * inner;
            for_columns<COUNT>(inner, [&](int column) {
                float gate[COUNT], up[COUNT];
                load(gates + column, gate);
                load(gates + inner + column, up);
                add(bias, column, gate);
                add(bias, inner + column, up);
#pragma unroll
                for (int i = 0; i < COUNT; ++i) up[i] *= activated(gate[i], activation);
                store(out + row * inner + column, up);
            });
        });
    });
}

template <class T>
__device__ void add_bias_rows(T* x, const float* bias, int rows, int columns) {
    with_width(columns % WIDE == 0 && are_aligned(x, bias), [&](auto width) {
        constexpr int COUNT = decltype(width)::VALUE;
        for_rows(rows, [&](long long row) {
            for_columns<COUNT>(columns, [&](int column) {
                float values[COUNT];
                load(x + row * columns + column, values);
                add(bias, column, values);
                store(x + row * columns + column, values);
            });
        });
    });
}

// The place of a row: the first `own` rows are in x, `stride` bytes apart. Row own + j is at the address
// others[2 j] in the first layer, and others[2 j + 1] bytes further in each next one.
struct RowPlaces {
    const char* x;
    int own;
    int stride;
    const long long* __restrict__ others;
    int layer;

    __device__ inline const char* at(long long row) const {
        if (row < own) return x + row * stride;
        const long long* const other = others + 2 * (row - own);
        return reinterpret_cast<const char*>(other[0] + layer * other[1]);
    }
};

// `bytes` must be even.
__device__ inline void copy_row(const char* from, char* to, int bytes) {
    if (bytes % sizeof(uint4) == 0 && are_aligned(from, to)) {
        for (int at = threadIdx.x; at < bytes / static_cast<int>(sizeof(uint4)); at += blockDim.x) {
            reinterpret_cast<uint4*>(to)[at] = reinterpret_cast<const uint4*>(from)[at];
        }
    } else {
        for (int at = threadIdx.x; at < bytes / 2; at += blockDim.x) {
            reinterpret_cast<unsigned short*>(to)[at] = reinterpret_cast<const unsigned short*>(from)[at];
        }
    }
}

template <class T>
__device__ void gather_turned_rows(const RowPlaces& from, const unsigned* rows, T* out, int out_stride, int count,
                                   int columns, const TurnedHeads& heads) {
    const int half = heads.size / 2;
    const bool is_wide = half % WIDE == 0 && from.stride % sizeof(uint4) == 0 && out_stride % WIDE == 0 &&
                         are_aligned(from.x, out, heads.weight, heads.cosines, heads.sines);
    with_width(is_wide, [&](auto width) {
        for_rows(count, [&](long long i) {
            const long long row = rows == nullptr ? i : rows[i];
            if (row >= from.own) return;
            const long long angles = heads.cosines == nullptr ? 0 : static_cast<long long>(heads.of_rows[row]) * half;
            turn_row<decltype(width)::VALUE>(reinterpret_cast<const T*>(from.x + row * from.stride),
                                             out + i * out_stride, heads, angles);
        });
    });
    // A loop of its own: together, the two need more registers than a thread has.
    for_rows(count, [&](long long i) {
        const long long row = rows == nullptr ? i : rows[i];
        const int turned = row < from.own ? heads.heads * heads.size : 0;
        const char* const source = from.at(row) + turned * sizeof(T);
        char* const to = reinterpret_cast<char*>(out + i * out_stride + turned);
        if (source != to) copy_row(source, to, (columns - turned) * sizeof(T));
    });
}

// A block looks at `part` values of one of the tensors at a time. `part` is a multiple of WIDE.
template <class T>
__device__ void find_not_finite(const long long* tensors, int* flag, int tensor_count, int count, int part) {
    const int parts = (count + part - 1LL) / part;
    bool is_found = false;
    for_rows(tensor_count * parts, [&](long long piece) {
        const T* const x = reinterpret_cast<const T*>(tensors[piece / parts]);
        const long long first = piece % parts * part, end = first + part < count ? first + part : count;
        const long long wide = are_aligned(x) ? first + (end - first) / WIDE * WIDE : first;
        for (long long at = first + threadIdx.x * WIDE; at < wide; at += blockDim.x * WIDE) {
            float values[WIDE];
            load(x + at, values);
#pragma unroll
            for (int i = 0; i < WIDE; ++i) is_found |= !(fabsf(values[i]) <= 3.402823466e38f);
        }
        for (long long at = wide + threadIdx.x; at < end; at += blockDim.x) {
            is_found |= !(fabsf(to_float(x[at])) <= 3.402823466e38f);
        }
    });
    // All threads that write the flag write the same value.
    if (is_found) *flag = 1;
}

}  // namespace

#define KERNEL extern "C" __global__ void __launch_bounds__(1024)

// Kernels whose values are stored as T.
//
// norm: out = norm(x). Either of out and in_place may be null; in_place may be x.
// norm_columns: norms the first `columns` of each row of `stride` in place.
// gather_turned: as gather_rows, for rows of `columns` values. Of rows in x, the first `heads` heads get:
//   RMS norm (weight [size]; null: none), then (a, b) -> (a cos - b sin, b cos + a sin) for the halves, with
//   cosines and sines [angles, size / 2] (null: none) and for each row of x the index of its angles. out may
//   be x with all of its rows: then only the heads change.
// activate: out = activation(x + bias); bias may be null, out may be x.
// gate: x [rows, 2 inner] has the gate first; out [rows, inner] = activation(gate + bias) * (up + bias).
// not_finite: sets flag to 1 if the tensors at these addresses, of `count` values each, have one that is not
//   finite.
#define KERNELS_OF_16_BITS(SUFFIX, T)                                                                        \
    KERNEL norm_##SUFFIX(const float* x, const float* weight, const float* bias, T* out, float* in_place,    \
                         int rows, int columns, float epsilon, int kind) {                                   \
        norm_rows(x, out, in_place, rows, Norm{weight, bias, columns, epsilon, kind});                       \
    }                                                                                                        \
    KERNEL norm_columns_##SUFFIX(T* x, const float* weight, const float* bias, int rows, int columns,        \
                                 int stride, float epsilon, int kind) {                                      \
        norm_first_columns(x, rows, stride, Norm{weight, bias, columns, epsilon, kind});                     \
    }                                                                                                        \
    KERNEL gather_turned_##SUFFIX(const char* x, int own, int stride, const long long* others, int layer,    \
                                  const unsigned* rows, T* out, int out_stride, int count, int columns,      \
                                  const float* weight, const float* cosines, const float* sines,             \
                                  const unsigned* of_rows, int heads, int size, float epsilon) {             \
        gather_turned_rows(RowPlaces{x, own, stride, others, layer}, rows, out, out_stride, count, columns,       \
                           TurnedHeads{weight, cosines, sines, of_rows, heads, size, epsilon});                    \
    }                                                                                                        \
    KERNEL activate_##SUFFIX(const T* x, const float* bias, T* out, int rows, int columns, int activation) { \
        activate_rows(x, bias, out, rows, columns, activation);                                              \
    }                                                                                                        \
    KERNEL gate_##SUFFIX(const T* x, const float* bias, T* out, int rows, int inner, int activation) {       \
        gate_rows(x, bias, out, rows, inner, activation);                                                    \
    }                                                                                                        \
    KERNEL not_finite_##SUFFIX(const long long* tensors, int* flag, int tensor_count, int count, int part) {     \
        find_not_finite<T>(tensors, flag, tensor_count, count, part);                                            \
    }

// Kernels whose values are stored as T, which may be `float`.
//
// add_norm: sum += norm(x).
// add_bias: x += bias.
// embed: out = norm(scale * the sum of up to three looked-up vectors); a table and its ids may be null.
#define KERNELS_OF_ALL(SUFFIX, T)                                                                            \
    KERNEL add_norm_##SUFFIX(const T* x, const float* weight, const float* bias, float* sum, int rows,       \
                             int columns, float epsilon, int kind) {                                         \
        add_norm_rows(x, sum, rows, Norm{weight, bias, columns, epsilon, kind});                             \
    }                                                                                                        \
    KERNEL add_bias_##SUFFIX(T* x, const float* bias, int rows, int columns) {                               \
        add_bias_rows(x, bias, rows, columns);                                                               \
    }                                                                                                        \
    KERNEL embed_##SUFFIX(const T* a, const unsigned* a_ids, const T* b, const unsigned* b_ids, const T* c,  \
                          const unsigned* c_ids, float scale, const float* weight, const float* bias,        \
                          float* out, int rows, int columns, float epsilon, int kind) {                      \
        const Lookup<T> lookups[3] = {{a, a_ids}, {b, b_ids}, {c, c_ids}};                                   \
        embed_rows(lookups, scale, out, rows, Norm{weight, bias, columns, epsilon, kind});                   \
    }

KERNELS_OF_16_BITS(bf16, __nv_bfloat16)
KERNELS_OF_16_BITS(f16, __half)
KERNELS_OF_ALL(bf16, __nv_bfloat16)
KERNELS_OF_ALL(f16, __half)
KERNELS_OF_ALL(f32, float)

// out[i] = row rows[i], or row i without `rows`, for rows of `bytes`, an even number; see RowPlaces.
KERNEL gather_rows(const char* x, int own, int stride, const long long* others, int layer, const unsigned* rows,
                   char* out, int count, int bytes) {
    const RowPlaces from{x, own, stride, others, layer};
    for_rows(count, [&](long long i) { copy_row(from.at(rows == nullptr ? i : rows[i]), out + i * bytes, bytes); });
}

// out[layer][i] = row rows[i], of `bytes`, of the layer at layers[layer]. `bytes` is even.
KERNEL copy_layers(const long long* layers, const unsigned* rows, char* out, int layer_count, int count, int bytes) {
    for_rows(layer_count * count, [&](long long i) {
        const char* const layer = reinterpret_cast<const char*>(layers[i / count]);
        copy_row(layer + static_cast<long long>(rows[i % count]) * bytes, out + i * bytes, bytes);
    });
}

// out[t] = the mean of x[rows[starts[t]..starts[t + 1]]]. A block computes 32 columns of a text at a time:
// each of its warps sums every warps-th row, and the first warp adds up these sums.
KERNEL mean_rows(const float* x, const unsigned* starts, const unsigned* rows, float* out, int texts, int columns) {
    __shared__ float sums[MOST_THREADS];
    const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int tiles = (columns + WARP - 1) / WARP;
    for (long long part = blockIdx.x; part < static_cast<long long>(texts) * tiles; part += gridDim.x) {
        const long long text = part / tiles;
        const int column = static_cast<int>(part % tiles) * WARP + lane;
        const unsigned start = starts[text], end = starts[text + 1];
        float sum = 0.0f;
        if (column < columns) {
#pragma unroll 4
            for (unsigned i = start + warp; i < end; i += warps) {
                sum += x[static_cast<long long>(rows[i]) * columns + column];
            }
        }
        __syncthreads();
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (warp == 0 && column < columns) {
            for (int other = 1; other < warps; ++other) sum += sums[other * WARP + lane];
            out[text * columns + column] = end > start ? sum / static_cast<float>(end - start) : 0.0f;
        }
    }
}
