#!/bin/sh
# Builds the last stage of Dockerfile without a registry of images, and runs the clients' tests against its
# server:
#     scripts/image-check.sh target/release/text-embeddings-router
# debootstrap makes the base, and the given binary is used; everything else is as in Dockerfile. Run it as
# root, with Debian's packages buildah and debootstrap. The server runs as the image's user, with a read-only
# root file system.
set -eu

binary=$(realpath "$1")
repository=$(cd "$(dirname "$0")/.." && pwd)
cache=$(realpath -m "${CARGO_TARGET_DIR:-$repository/target}")/image
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
for tool in buildah debootstrap; do
    command -v "$tool" >/dev/null || { echo "$tool is missing: apt-get install buildah debootstrap" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "must run as root, because of debootstrap and mounts" >&2; exit 1; }

mkdir -p "$cache"
if ! buildah inspect --type image localhost/base >/dev/null 2>&1; then
    debootstrap --variant=minbase --include=ca-certificates,libgcc-s1 bookworm "$cache/base" >"$cache/debootstrap.log"
    printf 'FROM scratch\nCOPY . /\n' >"$cache/Dockerfile.base"
    buildah build --quiet --tag localhost/base --file "$cache/Dockerfile.base" "$cache/base"
fi

# The output of the stage `build`, made here, and the last stage, unchanged.
work=$(mktemp -d)
container="" mounted=""
clean() {
    for place in $mounted; do umount "$place" || true; done
    [ -z "$container" ] || buildah rm "$container" >/dev/null
    rm -rf "$work"
}
trap clean EXIT
install -D --strip "$binary" "$work/build/image/usr/local/bin/text-embeddings-router"
install -d --owner 65532 --group 65532 "$work/build/image/data"
{ echo "ARG BASE_IMAGE"; sed -n '/AS runtime$/,$p' "$repository/Dockerfile"; } | sed 's|^COPY --from=build /image /|COPY image /|' >"$work/Dockerfile"
buildah build --quiet --tag text-embeddings-router:check --build-arg BASE_IMAGE=localhost/base --file "$work/Dockerfile" "$work/build"

container=$(buildah from text-embeddings-router:check)
buildah inspect --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}} {{.OCIv1.Config.Env}} {{.OCIv1.Config.Volumes}}' "$container"
size() { du --summarize --bytes --apparent-size "$1" | cut -f1; }
root=$(buildah mount "$container")
echo "the base has $(size "$cache/base") bytes, the image adds $(size "$work/build/image")"

# Like in a container, only volumes and /tmp can be written.
mkdir -p "$work/root"
mount --bind "$root" "$work/root"
mounted="$work/root"
mkdir -p "$work/root$repository/integration_tests" "$work/root/tmp" "$work/root/proc"
mount -o remount,bind,ro "$work/root"
for place in /tmp /data; do
    mount -t tmpfs -o mode=1777 tmpfs "$work/root$place"
    mounted="$work/root$place $mounted"
done
mount -t proc proc "$work/root/proc"
mount --bind "$repository/integration_tests" "$work/root$repository/integration_tests"
mounted="$work/root/proc $work/root$repository/integration_tests $mounted"

# The tests start the server by its path.
cat >"$work/in-the-image" <<WRAPPER
#!/bin/sh
HUGGINGFACE_HUB_CACHE=/data exec chroot --userspec=65532:65532 "$work/root" /usr/local/bin/text-embeddings-router "\$@"
WRAPPER
chmod +x "$work/in-the-image"
"$work/in-the-image" --version
"$work/in-the-image" rerank --model-id demo --query 'red planet' 'Bread is baked.' 'Mars is red.'
cd "$repository"
TEXT_EMBEDDINGS_ROUTER="$work/in-the-image" .venv/bin/python -m pytest -q \
    integration_tests/test_clients.py integration_tests/test_rerank_clients.py integration_tests/test_grpc.py
echo "the image's server passed the clients' tests"
