#!/bin/sh
# Checks the promises of `router/src/features.rs` about the router's Cargo features: combinations that make no
# sense end the build with the reason, and the others compile. Features for GPUs are not checked, because they
# need a GPU toolkit.
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
refused "a server needs a transport" --no-default-features --features candle
cargo check --quiet -p text-embeddings-router --locked --features mkl,accelerate
cargo check --quiet -p text-embeddings-router --locked --no-default-features --features candle,http,ort
