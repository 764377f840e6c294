#!/bin/sh
# Lays out a CUDA 13.0 toolkit from PyPI's packages, to build the `cuda` feature on a machine that has none,
# or no GPU:
#     eval "$(scripts/cuda-toolkit.sh FOLDER)"
# prints what to export. Where a toolkit is installed, this is not needed.
set -eu
folder=$(realpath -m "$1")
python3 -m pip install --quiet --no-deps --target "$folder" \
    nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 \
    nvidia-cuda-cccl==13.0.85 nvidia-cuda-nvrtc==13.0.88 nvidia-cublas==13.1.2.11 nvidia-curand==10.4.5.25 >&2
toolkit=$folder/nvidia/cu13
ln -sfn lib "$toolkit/lib64"
# The linker looks for names without versions.
for library in "$toolkit"/lib/lib*.so.*; do
    name=${library##*/}
    ln -sf "$name" "$toolkit/lib/${name%%.so.*}.so"
done
# libcuda comes with the driver: for the linker, here is one of the same name that knows no device.
mkdir -p "$toolkit/lib/stubs"
grep -rhoE '\bcu[A-Z][A-Za-z0-9_]*' "$toolkit/include/cuda.h" | sort -u | sed 's/.*/int &(void) { return 100; }/' \
    | gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -x c - -o "$toolkit/lib/stubs/libcuda.so"
echo "export CUDA_HOME=$toolkit CUDA_PATH=$toolkit PATH=$toolkit/bin:\$PATH"
