#!/bin/sh
# Checks with Rust's standard library for another system, or compiled with a sanitizer. Debian has both, so
# they run in a Debian of their own:
#     scripts/cross-check.sh arm    for ARM64, under QEMU: the kernels' tests with three sets of instructions,
#                                   then the server with the clients' tests
#     scripts/cross-check.sh races  tests of connections, engine and kernels under ThreadSanitizer
#
# Run it as root, with Debian's package debootstrap. Both the system and compiled crates are kept in
# target/cross.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
. "$repository/scripts/chroot.sh"
cache=$(realpath -m "${CARGO_TARGET_DIR:-$repository/target}")/cross
case ${1:-} in
arm | races) check=$1 ;;
*) echo "usage: scripts/cross-check.sh arm | races" >&2; exit 2 ;;
esac

require_tools "debootstrap util-linux" debootstrap unshare
enter_namespace "$@"

root=$cache/debian
if ! [ -d "$root" ]; then
    echo "making a Debian with compilers for other systems in $root"
    rm -rf "$root.part"
    mkdir -p "$cache"
    # The first of Debian's versions whose Rust is new enough, and the clang of that Rust's LLVM. An older
    # debootstrap knows how to make it only as sid.
    packages=ca-certificates,cargo,clang-22,g++,g++-aarch64-linux-gnu,git,libclang-rt-22-dev,llvm-22,qemu-user
    debootstrap --variant=minbase --include=$packages,rust-src,rustc \
        forky "$root.part" http://deb.debian.org/debian /usr/share/debootstrap/scripts/sid >"$cache/debootstrap.log"
    chroot "$root.part" sh -c 'dpkg --add-architecture arm64
        # A mirror may be weeks old.
        apt-get --option Acquire::Check-Valid-Until=false --quiet=2 update
        apt-get --quiet=2 --yes --no-install-recommends install libstd-rust-dev:arm64' >>"$cache/debootstrap.log"
    mkdir -p "$root.part/repository" "$root.part/target"
    mv "$root.part" "$root"
fi
mkdir -p "$cache/target"
mount --bind "$repository" "$root/repository"
mount --bind "$cache/target" "$root/target"
mount_system "$root"

# Runs cargo in that Debian, with variables before its name.
inside() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin CARGO_TARGET_DIR=/target \
        sh -c 'cd /repository && exec env "$@"' sh "$@"
}

case $check in
arm)
    target=aarch64-unknown-linux-gnu
    linker=CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    # neon, neon+dotprod, and all that QEMU knows.
    for cpu in cortex-a72 neoverse-n1 max; do
        echo "kernels on $cpu"
        inside "$linker" "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64 -cpu $cpu -L /usr/aarch64-linux-gnu" \
            cargo test --workspace -p text-embeddings-backend-candle --lib --locked --target $target -- kernels::
    done
    inside "$linker" cargo build --workspace --bins --locked --target $target
    # QEMU and its libraries are that Debian's. The tests, their Python and the server's files are not.
    server=$cache/text-embeddings-router
    printf '#!/bin/sh\nexec %s --library-path %s %s -L %s %s "$@"\n' "$root/lib64/ld-linux-x86-64.so.2" \
        "$root/usr/lib/x86_64-linux-gnu" "$root/usr/bin/qemu-aarch64" "$root/usr/aarch64-linux-gnu" \
        "$cache/target/$target/debug/text-embeddings-router" >"$server"
    chmod +x "$server"
    cd "$repository"
    TEXT_EMBEDDINGS_ROUTER=$server .venv/bin/python -m pytest integration_tests/test_clients.py \
        integration_tests/test_rerank_clients.py integration_tests/test_grpc.py integration_tests/test_reference.py
    ;;
races)
    # Only a standard library that the sanitizer watches as well shows when threads have met.
    flags='-Zsanitizer=thread -Zexternal-clangrt -Clinker=clang-22 -Clink-arg=-fsanitize=thread'
    watched() {
        package=$1
        shift
        inside RUSTC_BOOTSTRAP=1 CC=clang-22 CXX=clang++-22 "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS=$flags" \
            TSAN_OPTIONS=external_symbolizer_path=/usr/bin/llvm-symbolizer-22 \
            cargo test -Zbuild-std --target x86_64-unknown-linux-gnu --lib --locked -p "text-embeddings-$package" -- "$@"
    }
    # Whatever has threads of its own. Comparisons with references take a hundred times as long here.
    watched door
    watched core infer:: queue:: service::
    watched backend-candle kernels:: cpu:: attention:: prefix_cache::
    ;;
esac
