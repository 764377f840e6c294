#!/bin/bash
# nvcc for building candle-flash-attn in a tenth of the time: NVCC=$PWD/scripts/cuda-nvcc.sh cargo build -F candle-cuda
#
# It compiles the kernels that the server calls, without what it never asks of them (ALiBi, soft caps, dropout). In place of
# the others, heads of more than 256 and paged keys, it compiles functions that end the process with the kernel's name.
# FLASH_KEEP, a regular expression of names such as flash_fwd_hdim64_bf16_causal_sm80.cu, keeps fewer: for builds to try out.
# Everything else goes to REAL_NVCC, or the nvcc of CUDA_HOME or PATH, as it is.
set -euo pipefail
nvcc=${REAL_NVCC:-${CUDA_HOME:+$CUDA_HOME/bin/}nvcc}
keep=${FLASH_KEEP:-'^flash_fwd_hdim(32|64|96|128|160|192|224|256)_'}
source=${*: -1}
name=${source##*/}
case $name in
flash_fwd_*.cu) ;;
*) exec "$nvcc" "$@" ;;
esac
if [[ $name =~ $keep ]]; then
    # Not UNEVEN_K: it decides whether heads of 40 are right.
    exec "$nvcc" -DFLASHATTENTION_DISABLE_ALIBI -DFLASHATTENTION_DISABLE_SOFTCAP -DFLASHATTENTION_DISABLE_DROPOUT "$@"
fi
output=
previous=
for argument in "$@"; do
    test "$previous" != -o || output=$argument
    previous=$argument
done
# The function that the file defines, from its name to its brace, with the types that are part of its symbol.
definition=$(sed -n '/^void run_mha_fwd/p' "$source")
if test -z "$output" || test "$(wc -l <<< "$definition")" != 1 || test -z "$definition"; then
    echo "$0: $source is not as in candle-flash-attn 0.11.1" >&2
    exit 1
fi
"${CXX:-c++}" -std=c++17 -O1 -fPIC -w -x c++ -c -o "$output" - << END
#include <stdio.h>
#include <stdlib.h>
namespace cutlass { struct half_t; struct bfloat16_t; }
struct Flash_fwd_params;
typedef struct CUstream_st *cudaStream_t;
template<typename T, int Headdim, bool Is_causal> void run_mha_fwd_(Flash_fwd_params &params, cudaStream_t stream);
template<typename T, int Headdim, bool Is_causal> void run_mha_fwd_splitkv_paged_(Flash_fwd_params &params, cudaStream_t stream);
template<>
$definition
    fprintf(stderr, "$name is not in this build\\n");
    abort();
}
END
