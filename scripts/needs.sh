#!/bin/sh
# Announces a command, then ends with one sentence if the machine lacks something that the command needs:
#     scripts/needs.sh "Building the server" PYTHON
set -eu

echo "$1"
lacks() { echo "This needs $1." >&2; exit 1; }

command -v cargo >/dev/null 2>&1 && has=$(rustc --version 2>/dev/null) ||
    lacks "Rust: install it from https://rustup.rs, and open a new shell"
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
has=$(echo "$has" | sed 's/^rustc \([0-9.]*\).*/\1/')
[ "$(printf '%s\n%s\n' "$wanted" "$has" | sort -t . -k 1,1n -k 2,2n | head -n 1)" = "$wanted" ] ||
    lacks "Rust $wanted or newer, and this is $has: run \`rustup update\`"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#include <stdlib.h>\nint main(void) { return EXIT_SUCCESS; }\n' >"$work/main.c"
{ "${CC:-cc}" -o "$work/main" "$work/main.c" && "$work/main"; } >/dev/null 2>&1 ||
    lacks "a C compiler with its library's headers (Debian: apt-get install gcc libc6-dev; macOS: xcode-select --install)"

"$2" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    lacks "Python 3.11 or newer as $2: install it, or name it (PYTHON=/path/to/python3)"
"$2" -c 'import ensurepip, venv' 2>/dev/null ||
    lacks "Python's modules venv and ensurepip for $2 (Debian: apt-get install python3-venv)"
