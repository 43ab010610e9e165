#!/bin/sh
# Packs a built Plimsoll as an OCI image in one file, without a container engine and without a base image: the binary, the
# libraries that it is linked with, the schemas, and the licences.
#
# Usage: scripts/image.sh BINARY FOLDER
#   writes FOLDER/plimsoll-VERSION-ARCHITECTURE.oci.tar, and prints its path. The same binary and libraries give the same bytes.
set -eu
binary=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
umask 022
now=$("$here/source-date.sh")
version=$("$binary" --version | cut -d' ' -f2)
commit=$("$binary" --version | sed -n 's/.*(\([0-9a-f]*\))$/\1/p')
case $(uname -m) in x86_64) architecture=amd64 ;; aarch64) architecture=arm64 ;; *) architecture=$(uname -m) ;; esac

mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root image=$work/image blobs=$work/image/blobs/sha256
mkdir -p "$root" "$blobs"

# A container has its own completions, manual and service manager.
"$here/install.sh" "$binary" "$root" /usr /unit >/dev/null
for no_use in unit usr/share/man usr/share/bash-completion usr/share/zsh usr/share/fish; do rm -r "${root:?}/$no_use"; done
strip --remove-section=.comment --remove-section=.note "$root/usr/bin/plimsoll"
cp "$here/../LICENSE" "$root/usr/share/doc/plimsoll/LICENSE"
for library in $(ldd "$binary" | grep -o '/[^ ]*'); do
    install -D -m 0755 "$library" "$root$library"
    # The library's licence, where the library is a Debian package's. Its path there may be the one before /usr was merged.
    owner=$(dpkg-query --search "$library" "$(readlink -f "$library")" 2>/dev/null | head -n 1 | cut -d: -f1)
    [ -z "$owner" ] || install -D -m 0644 "/usr/share/doc/$owner/copyright" "$root/usr/share/doc/$owner/copyright"
done
mkdir -p "$root/etc/plimsoll" "$root/run/plimsoll" "$root/proc" "$root/sys" "$root/dev" "$root/tmp"
chmod 1777 "$root/tmp"

packed() { tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$now" -C "$1" -cf - .; }
sum() { sha256sum <"$1" | cut -d' ' -f1; }
# Keeps a file under its checksum; prints its descriptor in JSON, with further fields.
blob() { # FILE MEDIA-TYPE [FIELDS]
    digest=$(sum "$1") size=$(stat -c %s "$1")
    mv "$1" "$blobs/$digest"
    printf '{"mediaType": "application/vnd.oci.image.%s+%s", "digest": "sha256:%s", "size": %s%s}' \
        "${2%+*}" "${2#*+}" "$digest" "$size" "${3:-}"
}

packed "$root" >"$work/layer.tar"
diff=$(sum "$work/layer.tar")
gzip -9n "$work/layer.tar"
layer=$(blob "$work/layer.tar.gz" layer.v1.tar+gzip)

labels="\"org.opencontainers.image.title\": \"plimsoll\",
    \"org.opencontainers.image.description\": \"software NIC that gives each tenant of a host its share of the network\",
    \"org.opencontainers.image.version\": \"$version\",
    \"org.opencontainers.image.revision\": \"$commit\",
    \"org.opencontainers.image.licenses\": \"Apache-2.0\""
created=$(date -u -d "@$now" +%Y-%m-%dT%H:%M:%SZ)
cat >"$work/config.json" <<JSON
{
  "created": "$created", "architecture": "$architecture", "os": "linux",
  "config": {
    "Entrypoint": ["/usr/bin/plimsoll"], "Cmd": ["run", "/etc/plimsoll/plimsoll.yaml"],
    "Env": ["PATH=/usr/bin"], "Labels": {
    $labels}
  },
  "rootfs": {"type": "layers", "diff_ids": ["sha256:$diff"]},
  "history": [{"created": "$created", "created_by": "scripts/image.sh"}]
}
JSON
config=$(blob "$work/config.json" config.v1+json)
cat >"$work/manifest.json" <<JSON
{
  "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
  "config": $config,
  "layers": [$layer],
  "annotations": {
    "org.opencontainers.image.created": "$created",
    $labels}
}
JSON
name=", \"annotations\": {\"org.opencontainers.image.ref.name\": \"plimsoll:$version\"}"
manifest=$(blob "$work/manifest.json" manifest.v1+json "$name")
printf '{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [%s]}\n' "$manifest" >"$image/index.json"
printf '{"imageLayoutVersion": "1.0.0"}\n' >"$image/oci-layout"

file=$folder/plimsoll-$version-$architecture.oci.tar
packed "$image" >"$work/image.tar"
mv "$work/image.tar" "$file"
echo "$file"
