#!/bin/sh
# Lays out the headers of CUTLASS 3.5.0 for candle-flash-attn on a machine that cannot reach github.com:
#
#     eval "$(scripts/cuda-cutlass.sh FOLDER)"
#
# It prints the variable to export. Without it, candle-flash-attn's build script clones CUTLASS. The crate
# candle-flash-attn 0.9.1 contains the same files. With `--empty` after FOLDER there are no headers, which is
# enough for a build that compiles no kernel.
set -eu
commit=7d49e6c7e2f8896c47f586706e67e1fb215529dc
folder=$(realpath -m "$1")
# cudaforge takes this folder if it has an `include` and git says that this commit is checked out there.
checkout=$folder/git/checkouts/cutlass-$(echo "$commit" | cut -c1-16)
if ! test -d "$checkout/include"; then
    git init --quiet "$checkout"
    echo "$commit" > "$checkout/.git/HEAD"
    if test "${2-}" = --empty; then
        mkdir "$checkout/include.part"
    else
        # `cargo info` outside of a project fetches the crate. cargo checks the registry's checksum.
        (cd / && cargo info --quiet candle-flash-attn@0.9.1) > /dev/null
        source=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/src" -path '*/candle-flash-attn-0.9.1/cutlass/include' -prune | head -n 1)
        test -n "$source" || { echo "cargo has fetched no candle-flash-attn 0.9.1 with cutlass/include" >&2; exit 1; }
        cp -r "$source" "$checkout/include.part"
    fi
    mv "$checkout/include.part" "$checkout/include"
fi
echo "export CUDAFORGE_HOME=$folder"
