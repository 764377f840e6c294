#!/bin/sh
# Checks with Rust's standard library for another system, or compiled with a sanitizer. Debian has both, so
# they run in a Debian of their own:
#     scripts/cross-check.sh arm    for ARM64, under QEMU: the kernels' tests with three sets of instructions,
#                                   then the server with the clients' tests
#     scripts/cross-check.sh wheel  the wheel for ARM64 as a release builds it, and its tests in a Debian for
#                                   ARM64
#     scripts/cross-check.sh races  tests of connections, engine and kernels under ThreadSanitizer
#
# Run it as root, with Debian's package debootstrap. Both the system and compiled crates are kept in
# target/cross.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
. "$repository/scripts/chroot.sh"
cache=$(realpath -m "${CARGO_TARGET_DIR:-$repository/target}")/cross
case ${1:-} in
arm | wheel | races) check=$1 ;;
*) echo "usage: scripts/cross-check.sh arm | wheel | races" >&2; exit 2 ;;
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
wheel)
    zig=/repository/.venv/lib/python3.11/site-packages/ziglang
    rm -rf "$cache/target/wheels"
    inside "PATH=/repository/.venv/bin:$zig:/usr/bin:/bin" maturin build --release --locked \
        --target aarch64-unknown-linux-gnu --zig --compatibility manylinux_2_28 --out /target/wheels
    # Until the script ends, this machine runs ARM64's programs.
    formats=/proc/sys/fs/binfmt_misc
    [ -e "$formats/register" ] || mount -t binfmt_misc none "$formats"
    if ! [ -e "$formats/qemu-aarch64" ]; then
        header='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
        mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
        printf '%s' ":qemu-aarch64:M::$header:$mask:$root/usr/bin/qemu-aarch64:F" >"$formats/register"
        trap 'echo -1 >"$formats/qemu-aarch64"' EXIT
    fi
    arm=$cache/debian-arm64
    if ! [ -d "$arm" ]; then
        echo "making a Debian for ARM64 in $arm"
        rm -rf "$arm.part"
        debootstrap --arch=arm64 --variant=minbase --include=ca-certificates,python3-venv \
            bookworm "$arm.part" http://deb.debian.org/debian >"$cache/debootstrap.log"
        mkdir -p "$arm.part/repository" "$arm.part/target"
        mv "$arm.part" "$arm"
    fi
    mount --bind "$repository" "$arm/repository"
    mount --bind "$cache/target" "$arm/target"
    mount_system "$arm"
    # The tests' own settings (conftest.py) need browsers and clients that these tests do not.
    chroot "$arm" env -i HOME=/root PATH=/usr/bin:/bin sh -ec '
        [ -d /tests ] || python3 -m venv /tests
        /tests/bin/pip install --quiet mypy pytest requests uv
        cd /repository
        WHEEL=$(echo /target/wheels/*.whl) /tests/bin/python -m pytest --noconftest integration_tests/test_python_wheel.py'
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
