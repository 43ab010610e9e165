#!/bin/sh
# Fetches Debian's Prometheus for the tests of dist/prometheus and dist/grafana.
#
# Usage: scripts/prometheus.sh FOLDER
#   writes FOLDER/prometheus and FOLDER/promtool, and does nothing when they are there or installed.
#
# The package is unpacked and not installed: installed, it would start a server on this machine.
set -eu

folder=${1:?where to? usage: scripts/prometheus.sh FOLDER}
fail() { printf 'prometheus: error: %s\n' "$*" >&2; exit 1; }

have() { command -v "$1" >/dev/null 2>&1; }
have prometheus && have promtool && exit 0
[ -x "$folder/prometheus" ] && [ -x "$folder/promtool" ] && exit 0
have apt-get || fail 'this script knows apt-get only'
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get download -q -o Acquire::Retries=3 prometheus >&2 && dpkg -x ./*.deb .)
for program in prometheus promtool; do
    # Replaced in one step, as a test may be running the old one.
    cp "$work/usr/bin/$program" "$folder/$program.$$"
    mv "$folder/$program.$$" "$folder/$program"
done
