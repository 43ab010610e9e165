#!/bin/sh
# Puts a built Plimsoll in place: the one list of what is installed, for `make install`, `make deb` and `make image` alike.
# docs/install.md has the list as a table.
#
# Usage: scripts/install.sh BINARY DESTDIR PREFIX UNITDIR
set -eu
binary=$1 destdir=$2 prefix=$3 unitdir=$4
here=$(cd "$(dirname "$0")" && pwd)
umask 022

bin=$destdir$prefix/bin
man=$destdir$prefix/share/man/man1
share=$destdir$prefix/share/plimsoll
doc=$destdir$prefix/share/doc/plimsoll
install -d "$bin" "$man" "$share/schema" "$doc/examples" "$destdir$unitdir" "$destdir$prefix/lib/cni" \
    "$destdir$prefix/share/bash-completion/completions" \
    "$destdir$prefix/share/zsh/site-functions" \
    "$destdir$prefix/share/fish/vendor_completions.d"

# Replaced in one step: a daemon that runs goes on with its own file, and its broker too.
install -m 0755 "$binary" "$bin/plimsoll.next"
mv -f "$bin/plimsoll.next" "$bin/plimsoll"
# The same program under another name is a CNI plugin.
ln -sf ../../bin/plimsoll "$destdir$prefix/lib/cni/plimsoll-cni"
"$binary" man "$man" >/dev/null
"$binary" completions bash >"$destdir$prefix/share/bash-completion/completions/plimsoll"
"$binary" completions zsh >"$destdir$prefix/share/zsh/site-functions/_plimsoll"
"$binary" completions fish >"$destdir$prefix/share/fish/vendor_completions.d/plimsoll.fish"
for unit in plimsoll plimsoll-fleet-agent; do
    sed "s|@BIN@|$prefix/bin|g" "$here/../dist/$unit.service" >"$destdir$unitdir/$unit.service"
done
install -m 0644 "$here/../dist/prometheus/plimsoll.rules.yml" "$here/../dist/grafana/plimsoll.json" "$share"
"$binary" schema api >"$share/openapi.json"
for of in policy sub-policy included scenario; do
    "$binary" schema $of >"$share/schema/$of.json"
done
for example in plimsoll shop fleet-host; do
    install -m 0644 "$here/../examples/$example.yaml" "$doc/examples"
done
"$here/sbom.sh" >"$doc/sbom.cdx.json"
"$here/licences.sh" >"$doc/third-party-licences"

echo "installed: $bin/plimsoll, man pages, completions, $destdir$unitdir/plimsoll.service, $share, $doc"
