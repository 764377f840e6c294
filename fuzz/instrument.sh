#!/bin/sh
# Runs rustc for cargo (RUSTC_WRAPPER). The crates under test get libFuzzer's counters of covered code, as
# cargo-fuzz would give them to every crate. The other dependencies stay as in an ordinary build. All flags
# are stable, so no nightly compiler is needed.
case "$*" in
*"--crate-name text_embeddings"* | *"--crate-name tokenizers "* | *"--crate-name minijinja "*)
    set -- "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0
    ;;
esac
exec "$@"
