// What kernels.cu uses of CUDA C++, for a compiler of the CPU. `emulated.cpp` runs the kernels.
//
// The threads of a block are fibers: one runs until it waits for its warp or its block, then the next. Blocks
// run one after another, and so do launches.
#pragma once

#include <math.h>
#include <string.h>

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __launch_bounds__(threads)
// All of it is in one section, which is filled with NaN before each block.
#define __shared__ static __attribute__((section("emulated_shared")))

struct Index {
    unsigned x, y, z;
};
extern Index threadIdx, blockIdx, blockDim, gridDim;

// As strict about its alignment as on the device, where a wide access to any other address is an error.
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

struct __nv_bfloat16 {
    unsigned short bits;
};
struct __half {
    unsigned short bits;
};
float __bfloat162float(__nv_bfloat16 value);
float __half2float(__half value);
__nv_bfloat16 __float2bfloat16_rn(float value);
__half __float2half_rn(float value);

// Waits for all threads of the block.
void __syncthreads();
// Waits for all threads of the warp; the value of the thread whose lane differs in the bits of `lanes`.
float __shfl_xor_sync(unsigned mask, float value, int lanes);
