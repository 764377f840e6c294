#!/bin/sh
# Checks the promises of `router/src/features.rs` about the router's Cargo features: combinations that make no
# sense end the build with the reason, and the others compile. Every other crate compiles alone, without the
# features that the router's other crates request of common dependencies. The code for NVIDIA's GPUs is
# type-checked without a CUDA toolkit, flash attention included.
set -eu

refused() {
    reason=$1
    shift
    echo "cargo check $* must say: $reason"
    if output=$(cargo check --quiet -p text-embeddings-router --locked "$@" 2>&1); then
        echo "it was built" >&2
        exit 1
    fi
    case $output in
    *"$reason"*) ;;
    *)
        echo "$output" >&2
        exit 1
        ;;
    esac
}

refused "a server needs a backend" --no-default-features --features http
# With the features that the checks around it have: so hardly a dependency is compiled again.
refused "a server needs a transport" --no-default-features --features candle,demo,python,tls,traces
cargo check --quiet -p text-embeddings-router --locked --features mkl,accelerate
cargo check --quiet -p text-embeddings-router --locked --no-default-features --features candle,http,ort
for crate in $(cargo tree --quiet --workspace --depth 0 --prefix none --locked | cut -d ' ' -f 1 | sort -u); do
    test "$crate" = text-embeddings-router || cargo check --quiet -p "$crate" --locked --no-default-features
done
for feature in grpc tls; do
    cargo check --quiet -p text-embeddings-door --locked --features "$feature"
done
if cargo tree --quiet -p text-embeddings-router --locked --edges normal --invert candle-core > /dev/null 2>&1; then
    echo "a build for the CPU depends on candle: only the backend's feature tensors may bring it" >&2
    exit 1
fi
# These packages have build scripts that run again when the variables change. An optimisation level of their
# own keeps them apart from a real build for GPUs, whose kernels compile for hours. Instead of CUTLASS's
# headers, which only its kernels need, flash attention's build script finds an empty folder.
apart() { for package; do echo "--config profile.dev.package.$package.opt-level=2"; done; }
eval "$(scripts/cuda-cutlass.sh "${CARGO_TARGET_DIR:-target}/no-cutlass" --empty)"
# shellcheck disable=SC2046
NVCC=$PWD/scripts/nvcc-check.sh CUDARC_CUDA_VERSION=13000 CUDA_COMPUTE_CAP=80 \
    cargo check --quiet -p text-embeddings-backend-candle --all-targets --locked --features cuda,flash-attn \
    $(apart cudarc candle-kernels candle-flash-attn text-embeddings-backend-candle)
