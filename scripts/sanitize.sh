#!/bin/sh
# Runs rustc for cargo (RUSTC_WORKSPACE_WRAPPER), so that our crates are compiled with AddressSanitizer. Other
# crates and the standard library stay as in an ordinary build. The flag is unstable; RUSTC_BOOTSTRAP lets a
# stable compiler take it.
case "$*" in
*"--crate-type proc-macro"* | *"--crate-name build_script"*) exec "$@" ;;
*"--crate-name text_embeddings"*) RUSTC_BOOTSTRAP=1 exec "$@" -Zsanitizer=address ;;
esac
exec "$@"
