#!/bin/sh
# Holds the router's Cargo features to what `router/src/features.rs` promises: a feature that cannot be true ends the
# build with its reason, and the others build. Builds for a GPU want its toolkit, so that they are not tried here.
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

refused "sentence-transformers is not run" --features python
refused "a server needs a backend" --no-default-features --features http
refused "a server needs a transport" --no-default-features --features candle
cargo check --quiet -p text-embeddings-router --locked --features mkl,accelerate
cargo check --quiet -p text-embeddings-router --locked --no-default-features --features candle,http,ort
