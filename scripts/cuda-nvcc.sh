#!/bin/bash
# nvcc for building candle-flash-attn in a tenth of the time:
#
#     NVCC=$PWD/scripts/cuda-nvcc.sh cargo build --release -F candle-cuda
#
# It compiles the kernels that the server calls, without options that the server never uses (ALiBi, soft caps,
# dropout, ranges of prefixes). The other kernels (heads of more than 256, paged keys) become functions that
# print the kernel's name and end the process. FLASH_KEEP is a regular expression of file names such as
# flash_fwd_hdim64_bf16_causal_sm80.cu; it chooses fewer kernels, for builds to try out, in a target folder of
# their own: cargo does not see that it changed. Every other file goes unchanged to REAL_NVCC, or to the nvcc
# of CUDA_HOME or PATH.
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
    # Each masked score asks for ranges of prefixes, which the server never has. Without the question, kernels
    # are a third smaller, and compile a sixth faster.
    changed=$(mktemp -d)
    trap 'rm -rf "$changed"' EXIT
    cp "$(dirname "$source")"/* "$changed"
    sed -i 's/if (\(params\.\)\?mm_prefix_ranges == nullptr || .*) {/if (true) {/' "$changed"/{mask,flash_fwd_kernel}.h
    if test "$(cat "$changed"/{mask,flash_fwd_kernel}.h | grep -c 'if (true) {')" != 2; then
        echo "$0: the ranges of prefixes are not as in candle-flash-attn 0.11.1" >&2
        exit 1
    fi
    # Masked heads of 65 to 128: blocks of 64 queries, which the library has for other cards, where all runs
    # of queries are short. Blocks of 128 would compute 256 rows for 136 queries.
    choice='if (is_sm8x || (Is_causal \&\& params.seqlen_q <= 192)) {'
    launches=$changed/flash_fwd_launch_template.h
    sed -i "/^void run_mha_fwd_hdim128/,/^}/s/if (is_sm8x) {/$choice/" "$launches"
    if test "$(grep -c 'params.seqlen_q <= 192' "$launches")" != 1; then
        echo "$0: the choice of blocks is not as in candle-flash-attn 0.11.1" >&2
        exit 1
    fi
    # UNEVEN_K stays: without it, heads of other sizes than 32, 64 and so on give wrong results.
    # The check behind each launch reads the runtime's error, which forgets it, and does nothing more. With
    # the other function, the error stays for the server (backends/candle/src/cuda/flash.rs).
    printf '#include <cuda_runtime.h>\n#define cudaGetLastError cudaPeekAtLastError\n' > "$changed/error_stays.h"
    "$nvcc" -include "$changed/error_stays.h" -DFLASHATTENTION_DISABLE_ALIBI -DFLASHATTENTION_DISABLE_SOFTCAP \
        -DFLASHATTENTION_DISABLE_DROPOUT "${@:1:$#-1}" "$changed/$name"
    exit
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
