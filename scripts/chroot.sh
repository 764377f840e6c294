# For scripts that work in a Debian of their own. They read this file.

# Ends the script with one sentence unless it is root and has these tools of Debian's packages:
#     require_tools "PACKAGE …" TOOL …
require_tools() {
    packages=$1
    shift
    for tool; do
        command -v "$tool" >/dev/null || { echo "$tool is missing: apt-get install $packages" >&2; exit 1; }
    done
    [ "$(id -u)" = 0 ] || { echo "must run as root, because of debootstrap and mounts" >&2; exit 1; }
}

# Runs the script in a namespace of its own, so that mounts and processes end with it, however it ends:
#     enter_namespace "$@"
enter_namespace() {
    if [ "${CHROOT_IS_ALONE:-}" != yes ]; then
        CHROOT_IS_ALONE=yes exec unshare --mount --pid --fork --kill-child "$0" "$@"
    fi
    unset CHROOT_IS_ALONE
}

# Gives a Debian this machine's certificates, processes, devices and names of hosts.
mount_system() {
    mount --bind -o ro /etc/ssl/certs "$1/etc/ssl/certs"
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
}
