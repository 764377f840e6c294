// The emulated libraries above the driver: cuBLAS, cuRAND, the runtime, and flash attention's entry.
//
// They are plain loops with sums in float32 or wider. What must hold: a call that the real library refuses is
// refused, and flash attention, which reports nothing, leaves its output as it is.
#pragma once

namespace {

enum Status {
    BLAS_SUCCESS = 0,
    BLAS_NOT_INITIALIZED = 1,
    BLAS_INVALID_VALUE = 7,
    BLAS_EXECUTION_FAILED = 13,
    BLAS_NOT_SUPPORTED = 15,
};
// The numbers of the types in cuBLAS.
enum Type { FLOAT = 0, HALF = 2, BFLOAT = 14 };
bool has_workspace = false;
constexpr int COMPUTE_FLOAT = 68, RUNTIME_INVALID_CONFIGURATION = 9;

// On a lost device, cuBLAS names neither the fault nor the kernel that caused it.
#define ENTER_BLAS(handle)                                        \
    ENTER                                                         \
    if (fault != SUCCESS) return BLAS_EXECUTION_FAILED;           \
    if (!has_context || (handle) != &calls) return BLAS_NOT_INITIALIZED;

// Inner loops of this file, which a test waits for.
#define VECTORIZED INNER __attribute__((optimize("O3")))

size_t size_of(int type) { return type == FLOAT ? 4 : 2; }

const std::vector<float> WIDE_HALVES = [] {
    std::vector<float> wide(1 << 16);
    for (unsigned bits = 0; bits < 1 << 16; ++bits) wide[bits] = HalfFormat::widen(bits);
    return wide;
}();

VECTORIZED inline float read(const void* from, int type, size_t at) {
    if (type == FLOAT) return static_cast<const float*>(from)[at];
    const unsigned short bits = static_cast<const unsigned short*>(from)[at];
    return type == BFLOAT ? with_bits_of<float>(unsigned(bits) << 16) : WIDE_HALVES.data()[bits];
}

VECTORIZED float dot(const float* left, const float* right, int count) {
    float sums[16] = {};
    int k = 0;
    for (; k + 16 <= count; k += 16) {
        for (int lane = 0; lane < 16; ++lane) sums[lane] += left[k + lane] * right[k + lane];
    }
    for (; k < count; ++k) sums[k % 16] += left[k] * right[k];
    float sum = 0;
    for (const float part : sums) sum += part;
    return sum;
}

void write(void* to, int type, size_t at, float value) {
    if (type == FLOAT) static_cast<float*>(to)[at] = value;
    if (type == HALF) static_cast<__half*>(to)[at] = value;
    if (type == BFLOAT) static_cast<__nv_bfloat16*>(to)[at] = value;
}

// A matrix in column-major order; `rows` and `columns` are those of its use, after transposition.
struct Matrix {
    char* first;
    int type;
    bool is_turned;
    int rows, columns, stride;
    long long batch_stride;

    int stored_rows() const { return is_turned ? columns : rows; }
    size_t values() const { return size_t(stride) * ((is_turned ? rows : columns) - 1) + stored_rows(); }
    // Whether `batches` of them lie in memory that this stream may use.
    bool is_usable(const char* what, int batches) const {
        const size_t values = this->values() + batch_stride * (batches - 1);
        const Address address = reinterpret_cast<Address>(first);
        if (address % size_of(type) != 0) return lose_device(MISALIGNED_ADDRESS, "%s is misaligned", what) == SUCCESS;
        if (use(what, address, values * size_of(type), PER_THREAD) != nullptr) return true;
        fault = ILLEGAL_ADDRESS;
        return false;
    }
    // Its values in `f32`, row after row.
    VECTORIZED std::vector<float> rows_of(int batch) const {
        std::vector<float> values(size_t(rows) * columns);
        const char* const from = first + batch * batch_stride * size_of(type);
        for (int row = 0; row < rows; ++row) {
            for (int column = 0; column < columns; ++column) {
                const size_t at = is_turned ? size_t(row) * stride + column : size_t(column) * stride + row;
                values[size_t(row) * columns + column] = read(from, type, at);
            }
        }
        return values;
    }
};

// out = alpha · a · b + beta · out.
int multiply(const Matrix& a, const Matrix& b, const Matrix& out, float alpha, float beta, int batches) {
    const bool are_types_right = a.type == b.type && (out.type == a.type || out.type == FLOAT);
    if (!are_types_right) return BLAS_NOT_SUPPORTED;
    for (const Matrix& matrix : {a, b, out}) {
        const bool is_wide_enough = matrix.stride >= max(1, matrix.stored_rows());
        if (matrix.rows < 0 || matrix.columns < 0 || !is_wide_enough) return BLAS_INVALID_VALUE;
    }
    if (out.rows == 0 || out.columns == 0 || batches == 0) return BLAS_SUCCESS;
    if (!a.is_usable("a product's first operand", batches) || !b.is_usable("a product's second operand", batches) ||
        !out.is_usable("a product's result", batches)) {
        return BLAS_SUCCESS;
    }
    on_device("a product", [&] {
        for (int batch = 0; batch < batches; ++batch) {
            const std::vector<float> rows = a.rows_of(batch);
            Matrix turned = b;
            turned.is_turned = !b.is_turned;
            std::swap(turned.rows, turned.columns);
            const std::vector<float> columns = turned.rows_of(batch);
            char* const to = out.first + batch * out.batch_stride * size_of(out.type);
            for (int column = 0; column < out.columns; ++column) {
                for (int row = 0; row < out.rows; ++row) {
                    const size_t inputs = a.columns;
                    const float sum = dot(&rows[row * inputs], &columns[column * inputs], a.columns);
                    const size_t at = size_t(column) * out.stride + row;
                    // Without `beta`, the old values are not read: they may be NaN.
                    write(to, out.type, at, alpha * sum + (beta == 0 ? 0 : beta * read(to, out.type, at)));
                }
            }
        }
    });
    return BLAS_SUCCESS;
}

}  // namespace

EXPORTED int cublasCreate_v2(void** handle) {
    ENTER
    if (fault != SUCCESS || !has_context) return BLAS_NOT_INITIALIZED;
    *handle = &calls;
    return BLAS_SUCCESS;
}
EXPORTED int cublasDestroy_v2(void*) {
    ENTER
    return BLAS_SUCCESS;
}
EXPORTED int cublasSetStream_v2(void* handle, Stream stream) {
    ENTER_BLAS(handle)
    return stream == PER_THREAD ? BLAS_SUCCESS : fail(BLAS_NOT_SUPPORTED, "only the stream of each thread is emulated");
}
EXPORTED int cublasSetWorkspace_v2(void* handle, Address workspace, size_t bytes) {
    ENTER_BLAS(handle)
    if (use("a workspace", workspace, bytes, PER_THREAD) == nullptr) return BLAS_INVALID_VALUE;
    has_workspace = true;
    return BLAS_SUCCESS;
}
EXPORTED int cublasSetMathMode(void* handle, int) {
    ENTER_BLAS(handle)
    return BLAS_SUCCESS;
}
EXPORTED int cublasGemmStridedBatchedEx(void* handle, int turns_a, int turns_b, int m, int n, int k, const void* alpha,
                                        const void* a, int type_a, int stride_a, long long batch_a, const void* b,
                                        int type_b, int stride_b, long long batch_b, const void* beta, void* out,
                                        int type, int stride, long long batch, int batches, int compute, int) {
    ENTER_BLAS(handle)
    if (compute != COMPUTE_FLOAT) return fail(BLAS_NOT_SUPPORTED, "sums of type %d are not emulated", compute);
    if (is_on_device(alpha) || is_on_device(beta)) return fail(BLAS_INVALID_VALUE, "scalars on the device");
    const float scales[] = {*(const float*)alpha, *(const float*)beta};
    if (recorded && !has_workspace) return fail(BLAS_NOT_SUPPORTED, "a product in a graph without memory for it");
    return now_or_later([=] {
        return multiply({(char*)a, type_a, turns_a == 1, m, k, stride_a, batch_a},
                        {(char*)b, type_b, turns_b == 1, k, n, stride_b, batch_b},
                        {(char*)out, type, false, m, n, stride, batch}, scales[0], scales[1], batches);
    });
}
EXPORTED int cublasGemmEx(void* handle, int turns_a, int turns_b, int m, int n, int k, const void* alpha,
                          const void* a, int type_a, int stride_a, const void* b, int type_b, int stride_b,
                          const void* beta, void* out, int type, int stride, int compute, int algorithm) {
    {
        ENTER_BLAS(handle)
    }
    return cublasGemmStridedBatchedEx(handle, turns_a, turns_b, m, n, k, alpha, a, type_a, stride_a, 0, b, type_b,
                                      stride_b, 0, beta, out, type, stride, 0, 1, compute, algorithm);
}

EXPORTED int curandCreateGenerator(void** generator, int) {
    ENTER
    *generator = &planned;
    return SUCCESS;
}
EXPORTED int curandSetStream(void*, Stream) { return SUCCESS; }
EXPORTED int curandSetPseudoRandomGeneratorSeed(void*, unsigned long long) { return SUCCESS; }
EXPORTED int curandDestroyGenerator(void*) { return SUCCESS; }

// The runtime's last error of this thread, which is forgotten.
EXPORTED int cudaGetLastError() {
    const std::lock_guard<std::mutex> lock(one_call_at_a_time);
    const int last = fault != SUCCESS ? fault : runtime_error;
    runtime_error = SUCCESS;
    return last;
}

namespace {

// Heads of rows of 16-bit values: the addresses of their values, and the distances between rows and heads.
struct Heads {
    unsigned short* first;
    unsigned row, head, count;
};

// The values in `f32` of some rows, row after row and head after head.
VECTORIZED std::vector<float> widen(const Heads& heads, unsigned size, int type, long start, long end) {
    std::vector<float> values;
    values.reserve((end - start) * heads.count * size);
    for (long row = start; row < end; ++row) {
        for (unsigned head = 0; head < heads.count; ++head) {
            const size_t at = size_t(row) * heads.row + head * heads.head;
            for (unsigned i = 0; i < size; ++i) values.push_back(read(heads.first, type, at + i));
        }
    }
    return values;
}

// The mean of the values that a query sees: keys and values are those of one head, `stride` values apart.
VECTORIZED void attend(const float* query, const float* keys, const float* values, unsigned size, size_t stride,
                       long seen, float scale, float* out) {
    std::vector<double> weights(seen), sums(size);
    double most = -INFINITY, whole = 0;
    for (long key = 0; key < seen; ++key) {
        weights[key] = double(dot(query, keys + key * stride, size)) * scale;
        most = max(most, weights[key]);
    }
    for (long key = 0; key < seen; ++key) {
        const double weight = exp(weights[key] - most);
        whole += weight;
        for (unsigned i = 0; i < size; ++i) sums[i] += weight * values[key * stride + i];
    }
    for (unsigned i = 0; i < size; ++i) out[i] = seen > 0 ? sums[i] / whole : 0;
}

}  // namespace

// Flash attention's library reports nothing: a launch that fails leaves the output as it is, and an error in the
// runtime.
EXPORTED void run_mha(const void* q, const void* k, const void* v, void* out, float* sums, const void* alibi,
                      const int* query_starts, const int* key_starts, unsigned, unsigned, unsigned, unsigned, unsigned,
                      unsigned q_row, unsigned k_row, unsigned v_row, unsigned out_row, unsigned q_head,
                      unsigned k_head, unsigned v_head, unsigned out_head, unsigned sequences, unsigned heads,
                      unsigned key_heads, unsigned size, unsigned rounded_size, float scale, unsigned max_queries,
                      unsigned max_keys, unsigned, unsigned, unsigned total, int is_bf16, int is_causal, int unpadded,
                      int before, int after, float cap, const int* table, unsigned, int, const int* ranges, unsigned,
                      int, Stream stream) {
    const std::lock_guard<std::mutex> lock(one_call_at_a_time);
    const int code = planned_failure(__func__);
    if (code != SUCCESS || fault != SUCCESS || !has_context) {
        runtime_error = code;
        return;
    }
    now_or_later([=] {
        const Heads queries{(unsigned short*)q, q_row, q_head, heads}, keys{(unsigned short*)k, k_row, k_head, key_heads},
            values{(unsigned short*)v, v_row, v_head, key_heads}, result{(unsigned short*)out, out_row, out_head, heads};
        const int type = is_bf16 ? BFLOAT : HALF;
        // The real kernels read 16 bytes at a time, of heads whose size is a multiple of 8.
        bool is_right = size % 8 == 0 && size <= 256 && rounded_size == (size + 31) / 32 * 32 && heads % key_heads == 0 &&
                        unpadded == 1 && alibi == nullptr && table == nullptr && ranges == nullptr && cap == 0;
        for (const Heads& side : {queries, keys, values, result}) {
            is_right &= side.row % 8 == 0 && side.head % 8 == 0 && reinterpret_cast<Address>(side.first) % 16 == 0;
        }
        if (!is_right) {
            lose_device(MISALIGNED_ADDRESS, "flash attention: heads of %u, or strides and addresses that do not fit", size);
            return SUCCESS;
        }
        if (sequences == 0 || sequences > 65535 || heads > 65535 || max_queries == 0) {
            runtime_error = RUNTIME_INVALID_CONFIGURATION;
            return SUCCESS;
        }
        const size_t starts = (sequences + 1) * sizeof(int);
        if (!use("flash attention's sequences", (Address)query_starts, starts, stream) ||
            !use("flash attention's sequences", (Address)key_starts, starts, stream) ||
            !use("flash attention's sums", (Address)sums, size_t(heads) * total * sizeof(float), stream) ||
            !use("flash attention's queries", (Address)q, 2, stream) ||
            !use("flash attention's keys", (Address)k, 2, stream) ||
            !use("flash attention's values", (Address)v, 2, stream) ||
            !use("flash attention's result", (Address)out, 2, stream)) {
            fault = ILLEGAL_ADDRESS;
            return SUCCESS;
        }
        on_device("flash attention", [&] {
            for (unsigned sequence = 0; sequence < sequences; ++sequence) {
                const long first = query_starts[sequence], end = query_starts[sequence + 1];
                const long first_key = key_starts[sequence], end_key = key_starts[sequence + 1];
                const bool is_short = end - first <= max_queries && end_key - first_key <= max_keys;
                if (first > end || first_key > end_key || !is_short || end > total) {
                    lose_device(ILLEGAL_ADDRESS, "flash attention: sequence %u is not as announced", sequence);
                    return;
                }
                const std::vector<float> wide_queries = widen(queries, size, type, first, end),
                                         wide_keys = widen(keys, size, type, first_key, end_key),
                                         wide_values = widen(values, size, type, first_key, end_key);
                std::vector<float> context(size);
                for (long query = first; query < end; ++query) {
                    // The last query is at the position of the last key.
                    const long own = query - end + end_key - first_key, count = end_key - first_key;
                    const long start = is_causal || before < 0 ? 0 : max(0, own - before);
                    const long stop = is_causal ? own + 1 : after < 0 ? count : min(count, own + after + 1);
                    for (unsigned head = 0; head < heads; ++head) {
                        const size_t stride = size_t(key_heads) * size;
                        const size_t at = start * stride + head / (heads / key_heads) * size;
                        attend(&wide_queries[((query - first) * heads + head) * size], wide_keys.data() + at,
                               wide_values.data() + at, size, stride, max(0, stop - start), scale, context.data());
                        for (unsigned i = 0; i < size; ++i) {
                            write(result.first, type, query * out_row + head * out_head + i, context[i]);
                        }
                    }
                }
            }
        });
        return SUCCESS;
    });
}
