#!/bin/bash
# Builds the emulated GPU of backends/candle/src/cuda/emulated, for tests of the code that drives a card:
#
#     eval "$(scripts/cuda-emulated.sh FOLDER)"
#     cargo test -p text-embeddings-backend-candle --lib -F cuda,flash-attn
#
# It prints the variables to export. FOLDER gets one library that has the names of all of CUDA's libraries,
# and a library for each file of candle's kernels. They need a C++ compiler; nothing needs a CUDA toolkit.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
sources=$(realpath "$here/../backends/candle/src/cuda/emulated")
folder=$(realpath -m "$1")
compiler=${CXX:-c++}
flags=(-std=c++17 -shared -fPIC -fno-strict-aliasing -fvisibility=hidden -U_FORTIFY_SOURCE -I "$sources")
mkdir -p "$folder/lib"

# Whether the library $1 is older than its sources.
is_stale() {
    local changed=("$sources" "$sources/../kernels.cu" "$here/cuda-emulated.sh")
    test ! -e "$1" || test -n "$(find "${changed[@]}" -newer "$1" -print -quit)"
}

if is_stale "$folder/lib/libcuda-emulated.so"; then
    # Undefined behaviour of a kernel, such as a misaligned wide access, is an illegal instruction.
    "$compiler" "${flags[@]}" -O2 -pthread -Wall -Wno-unknown-pragmas -fsanitize=undefined \
        -fsanitize-undefined-trap-on-error -Wl,-soname,libcuda-emulated.so \
        "$sources/driver.cpp" -o "$folder/libcuda-emulated.part"
    mv "$folder/libcuda-emulated.part" "$folder/lib/libcuda-emulated.so"
    for name in cuda cudart cublas cublasLt curand nvrtc; do
        ln -sf libcuda-emulated.so "$folder/lib/lib$name.so"
    done
fi

host=$(rustc --version --verbose | sed -n 's/^host: //p')
metadata=$(cargo metadata --format-version 1 --locked --filter-platform "$host" \
    --features text-embeddings-backend-candle/cuda --manifest-path "$here/../Cargo.toml")
candle=$(grep -o '"manifest_path":"[^"]*/candle-kernels-[^"]*"' <<< "$metadata" | cut -d '"' -f 4)
candle=$(dirname "$candle")/src
for name in affine binary cast fill indexing reduce ternary unary; do
    is_stale "$folder/lib/$name.so" || continue
    # The names of the kernels, after the preprocessor has written the ones that macros make.
    "$compiler" "${flags[@]}" -w -E -P -x c++ -I "$candle" "$candle/$name.cu" |
        grep -oE 'extern "C" [^(]*\(\(visibility\("default"\)\)\) *void +\w+' |
        sed -E 's/.* (\w+)$/LISTED(\1),/' > "$folder/$name.names"
    "$compiler" "${flags[@]}" -O1 -w -I "$candle" "-DSOURCE=\"$candle/$name.cu\"" \
        "-DNAMES=\"$folder/$name.names\"" "$sources/module.cpp" -o "$folder/$name.part"
    mv "$folder/$name.part" "$folder/lib/$name.so"
done

"$here/cuda-cutlass.sh" "$folder/cutlass" --empty
echo "export NVCC=$here/nvcc-check.sh CUDARC_CUDA_VERSION=13000 CUDA_COMPUTE_CAP=80"
echo "export LIBRARY_PATH=$folder/lib\${LIBRARY_PATH:+:\$LIBRARY_PATH}"
echo "export LD_LIBRARY_PATH=$folder/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
