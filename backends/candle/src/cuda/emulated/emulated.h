// The parts of CUDA C++ that kernels.cu and candle's kernels use, for a CPU's compiler. `emulated.cpp` runs the
// kernels.
//
// The threads of a block are fibers: one runs until it waits for its warp or its block, then the next one
// runs. Blocks run one after another, and so do launches.
#pragma once

#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#define __CUDA_ARCH__ 800
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __global__ __attribute__((visibility("default")))
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define assert(condition) ((condition) ? 0 : raise(SIGTRAP))
// All shared memory is in one section, which is filled with NaN before each block. The compiler leaves out
// variables of templates.
#define __shared__ static __attribute__((section("emulated_shared")))

struct Index {
    unsigned x, y, z;
};
extern __global__ Index threadIdx, blockIdx, blockDim, gridDim;

// They are aligned as on the device, where a wide access to any other address is an error.
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline void __stwb(uint4* to, uint4 value) { *to = value; }
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

// A number that is stored in 16 bits. Every operation computes in float32 and rounds its result.
template <class Format>
struct Rounded {
    unsigned short bits;

    Rounded() = default;
    template <class T, class = std::enable_if_t<std::is_convertible_v<T, float> && !std::is_same_v<T, Rounded>>>
    Rounded(T value) : bits(Format::round(static_cast<float>(value))) {}
    static Rounded from_bits(unsigned short bits) {
        Rounded value;
        value.bits = bits;
        return value;
    }
    operator float() const { return Format::widen(bits); }

    friend Rounded operator+(Rounded a, Rounded b) { return float(a) + float(b); }
    friend Rounded operator-(Rounded a, Rounded b) { return float(a) - float(b); }
    friend Rounded operator*(Rounded a, Rounded b) { return float(a) * float(b); }
    friend Rounded operator/(Rounded a, Rounded b) { return float(a) / float(b); }
    friend Rounded operator-(Rounded a) { return -float(a); }
    template <class T>
    Rounded& operator+=(T other) { return *this = *this + Rounded(other); }
    template <class T>
    Rounded& operator*=(T other) { return *this = *this * Rounded(other); }
};
struct HalfFormat {
    static __global__ unsigned short round(float value);
    static __global__ float widen(unsigned short bits);
};
struct BfloatFormat {
    static __global__ unsigned short round(float value);
    static __global__ float widen(unsigned short bits);
};
using __half = Rounded<HalfFormat>;
using __nv_bfloat16 = Rounded<BfloatFormat>;

inline float __bfloat162float(__nv_bfloat16 value) { return value; }
inline float __half2float(__half value) { return value; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
inline __nv_bfloat16 __float2bfloat16(float value) { return value; }
inline __half __float2half_rn(float value) { return value; }
inline __half __float2half(float value) { return value; }
inline unsigned short __half_as_ushort(__half value) { return value.bits; }
inline __half __ushort_as_half(unsigned short bits) { return __half::from_bits(bits); }

template <class F> bool __hisnan(Rounded<F> x) { return isnan(float(x)); }
template <class F> Rounded<F> __habs(Rounded<F> x) { return fabsf(x); }
template <class F> Rounded<F> hsqrt(Rounded<F> x) { return sqrtf(x); }
template <class F> Rounded<F> hcos(Rounded<F> x) { return cosf(x); }
template <class F> Rounded<F> hsin(Rounded<F> x) { return sinf(x); }
template <class F> Rounded<F> hlog(Rounded<F> x) { return logf(x); }
template <class F> Rounded<F> hexp(Rounded<F> x) { return expf(x); }
template <class F> Rounded<F> __hmax_nan(Rounded<F> a, Rounded<F> b) {
    return isnan(float(a)) || float(a) > float(b) ? a : b;
}
template <class F> Rounded<F> __hmin_nan(Rounded<F> a, Rounded<F> b) {
    return isnan(float(a)) || float(a) < float(b) ? a : b;
}

struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x + b.x, a.y + b.y}; }
inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x * b.x, a.y * b.y}; }

// Numbers of 8 bits are not emulated.
struct __nv_fp8_e4m3 {
    unsigned char __x;
    __nv_fp8_e4m3() = default;
    template <class T, class = std::enable_if_t<std::is_convertible_v<T, float>>>
    explicit __nv_fp8_e4m3(T) { __builtin_trap(); }
    operator float() const { __builtin_trap(); }
};
enum { __NV_E4M3 };
inline __half __nv_cvt_fp8_to_halfraw(unsigned char, int) { __builtin_trap(); }

template <class A, class B>
inline std::common_type_t<A, B> min(A a, B b) { return a < b ? a : b; }
template <class A, class B>
inline std::common_type_t<A, B> max(A a, B b) { return a > b ? a : b; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double normcdf(double x) { return erfc(-x * M_SQRT1_2) / 2; }
inline float normcdff(float x) { return static_cast<float>(normcdf(x)); }

// Fibers do not interrupt each other, so these need no care.
template <class T, class U>
inline T atomicAdd(T* to, U value) {
    const T old = *to;
    *to = old + T(value);
    return old;
}
template <class T, class U>
inline T atomicMin(T* to, U value) {
    const T old = *to;
    *to = min(old, T(value));
    return old;
}
template <class T, class U>
inline T atomicMax(T* to, U value) {
    const T old = *to;
    *to = max(old, T(value));
    return old;
}
template <class T, class U>
inline T atomicCAS(T* to, T expected, U value) {
    const T old = *to;
    if (old == expected) *to = value;
    return old;
}
template <class To, class From>
inline To with_bits_of(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}
inline float __uint_as_float(unsigned bits) { return with_bits_of<float>(bits); }
inline float __int_as_float(int bits) { return with_bits_of<float>(bits); }
inline unsigned __float_as_uint(float value) { return with_bits_of<unsigned>(value); }
inline int __float_as_int(float value) { return with_bits_of<int>(value); }
inline double __longlong_as_double(long long bits) { return with_bits_of<double>(bits); }
inline long long __double_as_longlong(double value) { return with_bits_of<long long>(value); }

// Waits for all threads of the block.
__global__ void __syncthreads();
// Waits for all threads of the warp. Returns the bits of the thread whose lane differs in the bits of `lanes`.
__global__ uint64_t exchange_bits(unsigned mask, uint64_t bits, int lanes);
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int = 32) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(value));
    bits = exchange_bits(mask, bits, lanes);
    memcpy(&value, &bits, sizeof(value));
    return value;
}
