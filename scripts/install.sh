#!/bin/sh
# Puts a built Plimsoll in place: binary, man pages, completions, unit, alert rules and board. Called by `make install`.
#
# Usage: scripts/install.sh BINARY DESTDIR PREFIX UNITDIR
set -eu
binary=$1 destdir=$2 prefix=$3 unitdir=$4
here=$(dirname "$0")

bin=$destdir$prefix/bin
man=$destdir$prefix/share/man/man1
share=$destdir$prefix/share/plimsoll
install -d "$bin" "$man" "$share" "$destdir$unitdir" \
    "$destdir$prefix/share/bash-completion/completions" \
    "$destdir$prefix/share/zsh/site-functions" \
    "$destdir$prefix/share/fish/vendor_completions.d"

install -m 0755 "$binary" "$bin/plimsoll"
"$binary" man "$man" >/dev/null
"$binary" completions bash >"$destdir$prefix/share/bash-completion/completions/plimsoll"
"$binary" completions zsh >"$destdir$prefix/share/zsh/site-functions/_plimsoll"
"$binary" completions fish >"$destdir$prefix/share/fish/vendor_completions.d/plimsoll.fish"
sed "s|@BIN@|$prefix/bin|g" "$here/../dist/plimsoll.service" >"$destdir$unitdir/plimsoll.service"
install -m 0644 "$here/../dist/prometheus/plimsoll.rules.yml" "$here/../dist/grafana/plimsoll.json" "$share"
"$binary" schema api >"$share/openapi.json"

echo "installed: $bin/plimsoll, man pages, completions, $destdir$unitdir/plimsoll.service, $share"
