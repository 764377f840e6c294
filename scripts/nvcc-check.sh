#!/bin/bash
# An nvcc that compiles nothing, for type-checking the code for GPUs on a machine without CUDA:
#
#     NVCC=$PWD/scripts/nvcc-check.sh CUDARC_CUDA_VERSION=13000 CUDA_COMPUTE_CAP=80 cargo check -F cuda
#
# It answers the build scripts' questions and leaves empty files. A binary that is built with it cannot run.
set -euo pipefail
output= folder=. kind= previous=
for argument in "$@"; do
    case $previous in
    -o) output=$argument ;;
    --output-directory) folder=$argument ;;
    esac
    case $argument in
    --version) printf 'nvcc: NVIDIA (R) Cuda compiler driver\n\n\nCuda compilation tools, release 13.0, V13.0.0\n' && exit ;;
    --list-gpu-code) echo "sm_80" && exit ;;
    --ptx | --lib | -c) kind=$argument ;;
    esac
    previous=$argument
done
case $kind in
--ptx) name=$(basename -- "$previous" .cu) && printf '.version 9.0\n.target sm_80\n// %s\n' "$name" > "$folder/$name.ptx" ;;
--lib) rm -f "$output" && ar rcs "$output" ;;
-c) "${CC:-cc}" -x c -c -o "$output" - < /dev/null ;;
esac
