#!/bin/sh
# Installs Chromium and curl from Debian's packages, for the tests of the page at /playground.
#
# Does nothing if both are installed. If they cannot be installed, it says so and still succeeds: those tests
# are then skipped, each with the reason.
set -eu

missing=""
command -v chromium >/dev/null 2>&1 || [ -n "${CHROMIUM:-}" ] || missing=" chromium"
command -v curl >/dev/null 2>&1 || missing="$missing curl"
[ -n "$missing" ] || exit 0

give_up() {
    echo "The tests of the page are skipped, because $1: install$missing, or set CHROMIUM to the browser's path." >&2
    exit 0
}

command -v apt-get >/dev/null 2>&1 || give_up "there is no apt-get to install with"
as_root=""
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || give_up "only root may install packages"
    as_root="sudo -n"
fi
# shellcheck disable=SC2086 # two lists of words
$as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    $missing fonts-dejavu-core || give_up "apt-get failed"
