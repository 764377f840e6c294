#!/bin/sh
# Runs README's two commands in an empty Debian 12 with nothing but README's requirements, in a new clone of
# HEAD, as root and as a plain user:
#     scripts/fresh-check.sh
# FRESH_COMMANDS (default: "demo test") and FRESH_USERS (default: "root plain") narrow it. FRESH_COMMANDS
# takes any targets of the Makefile.
#
# Run it as root, with Debian's package debootstrap. It uses this machine's Rust, certificates and network.
# The system is kept in target/fresh/base. Each run gets a copy, so that it starts with nothing.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
. "$repository/scripts/chroot.sh"
cache=$(realpath -m "${CARGO_TARGET_DIR:-$repository/target}")/fresh
commands=${FRESH_COMMANDS:-demo test}
users=${FRESH_USERS:-root plain}

require_tools "debootstrap util-linux" debootstrap unshare
enter_namespace "$@"

mkdir -p "$cache"
if ! [ -d "$cache/base" ]; then
    echo "making an empty Debian 12 in $cache/base"
    rm -rf "$cache/base.part"
    # The C compiler, make and Python of README, git for the clone, and certificates.
    debootstrap --variant=minbase --include=ca-certificates,gcc,git,libc6-dev,make,python3,python3-venv bookworm \
        "$cache/base.part" >"$cache/debootstrap.log"
    mv "$cache/base.part" "$cache/base"
fi

failed=""
for user in $users; do
    root=$cache/root-$user
    home=/root
    rm -rf "$root"
    cp -a "$cache/base" "$root"
    if [ "$user" != root ]; then
        home=/home/$user
        chroot "$root" useradd --create-home --shell /bin/sh "$user"
    fi
    git clone --quiet --depth 1 "file://$repository" "$root$home/clone"
    chroot "$root" chown -R "$user:" "$home"
    mkdir -p "$root/usr/local/rust"
    mount --bind -o ro "$(rustc --print sysroot)" "$root/usr/local/rust"
    mount_system "$root"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    for command in $commands; do
        started=$(date +%s)
        log=$cache/$command-$user.log
        echo "make $command as $user, log in $log"
        # shellcheck disable=SC2016 # expanded by the inner shell
        if chroot --userspec="$user:" "$root" env -i HOME="$home" USER="$user" PATH=/usr/local/rust/bin:/usr/local/bin:/usr/bin:/bin \
            sh -c 'cd "$HOME/clone" && exec make "$0"' "$command" >"$log" 2>&1; then
            echo "make $command as $user: passed in $(($(date +%s) - started)) s"
        else
            echo "make $command as $user: FAILED after $(($(date +%s) - started)) s; the end of its log:" >&2
            tail -n 20 "$log" >&2
            failed="$failed $command-$user"
        fi
        grep -E 'are skipped|^SKIPPED|[0-9]+ passed' "$log" || true
    done
done
[ -z "$failed" ] || { echo "FAILED:$failed" >&2; exit 1; }
