#!/bin/sh
# Builds an image without a registry of images, and checks its server:
#     scripts/image-check.sh Dockerfile
#     scripts/image-check.sh Dockerfile-cuda
# Every stage that the image needs runs unchanged; only its two base images are made here. debootstrap
# makes Debian 12 for the last stage. For the stages that compile, a C++ compiler, git and this machine's
# Rust are added. The stages fetch crates and packages themselves, and trust the certificates that this
# machine trusts.
#
# Run it as root, with Debian's packages buildah and debootstrap. It keeps base images and layers in
# target/image, so that a second run does not compile dependencies again. `rm -rf target/image` removes them.
#
# Of flash attention's kernels for a GPU only FLASH_KEEP's are compiled (default: one of them), because all
# would take an hour: the image of Dockerfile-cuda is checked without a GPU, and is not for use.
set -eu

file=$1
repository=$(cd "$(dirname "$0")/.." && pwd)
. "$repository/scripts/chroot.sh"
target=$(realpath -m "${CARGO_TARGET_DIR:-$repository/target}")
cache=$target/image
revision=$(git -C "$repository" rev-parse HEAD)
image=text-embeddings-router:check
# Images in buildah's default format have no health check.
export BUILDAH_ISOLATION=chroot BUILDAH_FORMAT=docker CONTAINERS_STORAGE_CONF="$cache/storage.conf"
require_tools "buildah debootstrap iproute2 util-linux" buildah debootstrap ip unshare

mkdir -p "$cache"
# Where a file system has no overlays, STORAGE_DRIVER=vfs copies each layer instead.
printf '[storage]\ndriver = "%s"\ngraphroot = "%s"\nrunroot = "%s"\n' "${STORAGE_DRIVER:-overlay}" "$cache/storage" "$cache/run" >"$CONTAINERS_STORAGE_CONF"
build() { buildah build --layers --volume /etc/ssl/certs:/etc/ssl/certs:ro "$@"; }
value() { buildah inspect --type image --format "$1" "$image"; }
size() { du --summarize --bytes --apparent-size "$1" | cut -f1; }

if ! [ -d "$cache/base" ]; then
    rm -rf "$cache/base.part"
    debootstrap --variant=minbase --include=ca-certificates,libgcc-s1,libstdc++6 bookworm "$cache/base.part" >"$cache/debootstrap.log"
    mv "$cache/base.part" "$cache/base"
fi
printf 'FROM scratch\nCOPY . /\n' >"$cache/Dockerfile.base"
cat >"$cache/Dockerfile.rust" <<END
FROM localhost/base
RUN apt-get update && apt-get install --yes --no-install-recommends g++ git make && rm -rf /var/lib/apt/lists/*
COPY bin /usr/local/rust/bin
COPY lib /usr/local/rust/lib
ENV CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:/usr/local/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV FLASH_KEEP=${FLASH_KEEP-^flash_fwd_hdim64_bf16_sm80}
END
buildah build --layers --quiet --tag localhost/base --file "$cache/Dockerfile.base" "$cache/base"
build --quiet --tag localhost/rust --file "$cache/Dockerfile.rust" "$(rustc --print sysroot)"

started=$(date +%s)
build --tag "$image" --file "$repository/$file" --build-arg RUST_IMAGE=localhost/rust --build-arg BASE_IMAGE=localhost/base \
    --build-arg REVISION="$revision" "$repository"
echo "$file: all stages in $(($(date +%s) - started)) s"

work=$(mktemp -d)
container="" mounted="" server=""
clean() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    for place in $mounted; do umount "$place" || true; done
    [ -z "$container" ] || buildah rm "$container" >/dev/null
    rm -rf "$work"
}
trap clean EXIT
container=$(buildah from "$image")
mount=$(buildah mount "$container")
echo "the base has $(size "$cache/base") bytes, the image $(size "$mount")"

# As in a container with a read-only root file system: only volumes and /tmp can be written.
root=$work/root
mkdir -p "$root"
mount --bind "$mount" "$root"
mounted=$root
mkdir -p "$root$repository/integration_tests" "$root/tmp" "$root/proc" "$root/dev"
[ -e "$root/dev/null" ] || mknod -m 666 "$root/dev/null" c 1 3
# Engines write this file, too.
[ -e "$root/etc/hosts" ] || echo "127.0.0.1 localhost" >"$root/etc/hosts"
mount -o remount,bind,ro "$root"
for place in /tmp /data; do
    mount -t tmpfs -o mode=1777 tmpfs "$root$place"
    mounted="$root$place $mounted"
done
mount -t proc proc "$root/proc"
mount --bind "$repository/integration_tests" "$root$repository/integration_tests"
mounted="$root/proc $root$repository/integration_tests $mounted"

environment=$(value '{{range .OCIv1.Config.Env}}{{.}} {{end}}')
entrypoint=$(value '{{range .OCIv1.Config.Entrypoint}}{{.}} {{end}}')
command=$(value '{{range .OCIv1.Config.Cmd}}{{.}} {{end}}')
health=$(value '{{range .Docker.Config.Healthcheck.Test}}{{.}} {{end}}')
user=$(value '{{.OCIv1.Config.User}}')
echo "user $user, entry point $entrypoint$command, health check $health, variables $environment"
# Runs the image's entry point as its user with its variables: `serve NAME=value … -- ARGUMENT …` adds some.
serve() {
    given=""
    while [ "$1" != -- ]; do given="$given $1"; shift; done
    shift
    # shellcheck disable=SC2086 # lists of words
    env -i $environment $given chroot --userspec="$user" "$root" $entrypoint "$@"
}

if [ "$file" = Dockerfile-cuda ]; then
    # Without the driver the system does not start the binary, and names the library that is missing.
    if serve -- --version 2>"$work/error"; then echo "this machine's driver is in the base" >&2; exit 1; fi
    cat "$work/error"
    grep -q libcuda.so.1 "$work/error"
    # The toolkit's stand-in for the driver's library, which knows no device.
    build --quiet --tag localhost/toolkit --target chef --file "$repository/$file" --build-arg RUST_IMAGE=localhost/rust "$repository"
    toolkit=$(buildah from localhost/toolkit)
    cp "$(buildah mount "$toolkit")/opt/cuda/nvidia/cu13/lib/stubs/libcuda.so" "$root/tmp/libcuda.so.1"
    buildah rm "$toolkit" >/dev/null
    libraries="LD_LIBRARY_PATH=$(value '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' | sed -n 's/^LD_LIBRARY_PATH=//p'):/tmp"
    serve "$libraries" -- --version
    serve "$libraries" -- --help >"$work/help"
    grep -q -- --model-id "$work/help"
    # Outside of a container, a user may not listen on the image's port 80.
    # shellcheck disable=SC2086 # a list of words
    if serve "$libraries" MODEL_ID=demo PORT=18080 -- $command >"$work/error" 2>&1; then echo "it must not start without a GPU" >&2; exit 1; fi
    cat "$work/error"
    grep -qi 'no GPU\|no CUDA\|CUDA device\|driver' "$work/error"
    echo "the binary of $file starts, and refuses to serve without a GPU"
    exit
fi

# As a container starts it: the image's own command and port 80, in a network that has nothing else.
cat >"$work/start" <<END
ip link set lo up
echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
exec env -i $environment MODEL_ID=demo chroot --userspec="$user" "$root" $entrypoint $command
END
unshare --net sh "$work/start" >"$work/log" 2>&1 &
server=$!
tries=0
# shellcheck disable=SC2086 # a command and its arguments
until env -i $environment nsenter --target "$server" --net chroot --userspec="$user" "$root" ${health#CMD } 2>"$work/error"; do
    tries=$((tries + 1))
    if [ "$tries" = 100 ] || ! kill -0 "$server"; then cat "$work/log" "$work/error" >&2; exit 1; fi
    sleep 0.3
done
# A health check written for text-embeddings-inference calls curl.
# shellcheck disable=SC2086 # a list of words
env -i $environment nsenter --target "$server" --net chroot --userspec="$user" "$root" /usr/bin/curl -f http://localhost:80/health
kill "$server"
wait "$server"
server=""
# The log shortens the commit.
grep -q "$(echo "$revision" | cut -c 1-7)" "$work/log"
echo "the image's own command served on port 80, was healthy by the image's health check, and stopped with status 0"

# The tests start the server by its path.
cat >"$work/in-the-image" <<END
#!/bin/sh
HUGGINGFACE_HUB_CACHE=/data exec chroot --userspec="$user" "$root" $entrypoint "\$@"
END
chmod +x "$work/in-the-image"
cd "$repository"
TEXT_EMBEDDINGS_ROUTER="$work/in-the-image" .venv/bin/python -m pytest -q \
    integration_tests/test_clients.py integration_tests/test_rerank_clients.py integration_tests/test_grpc.py
echo "the image's server passed the clients' tests"
