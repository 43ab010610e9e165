#!/bin/sh
# Tests the Debian package and the OCI image of a built Plimsoll, as an operator meets them: builds each twice and compares the
# bytes, compares the SBOM with the binary, installs, upgrades and removes the package in a bare Debian, does so under systemd
# while tenants send, and starts the image.
#
# Usage: scripts/test-packages.sh BINARY FOLDER [OLD]
#   Upgrades from a package of the binary OLD; without it, from another revision of the same. The bare Debian is kept in FOLDER, and made anew when it is not there. lintian and Podman with runc are used where they are installed.
#
# Needs root, mmdebstrap, systemd-nspawn and skopeo (scripts/setup.sh packages installs them).
set -eu
binary=$1 folder=$2 before=${3:-$1}
here=$(cd "$(dirname "$0")" && pwd)
say() { printf '\n== %s ==\n' "$*"; }
fail() { printf 'packages: error: %s\n' "$*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || fail 'only root can install a package in a chroot: sudo make test-packages'

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
machine=''
trap 'end; rm -rf "$work"' EXIT
end() {
    [ -z "$machine" ] || kill "$machine" 2>/dev/null || true
    [ -z "$machine" ] || wait "$machine" || true
    machine=''
}

same() { # WHAT FILE FILE
    cmp "$2" "$3" >&2 || fail "$1: two builds differ"
    echo "$1: two builds are the same, $(stat -c %s "$2") bytes"
}
# Builds again with another time, time zone, umask and folder.
again() { (umask 077 && cd / && TZ=Pacific/Auckland "$@"); }

# Compares the SBOM with the binary, whose line tables and messages name the crates that their code comes from. Of crates that
# are in the SBOM alone, nothing is left after optimising.
lists_all() { # SBOM
    grep -a -o 'registry/src/[^/]*/[A-Za-z0-9_.+-]*' "$binary" | sed 's|.*/||' | sort -u >"$work/named"
    sed -n 's|.*"purl": "pkg:cargo/\([^@]*\)@\([^"]*\)".*|\1-\2|p' "$1" | sort -u >"$work/listed"
    missing=$(comm -23 "$work/named" "$work/listed")
    [ -s "$work/named" ] && [ -z "$missing" ] || fail "in the binary, and not in the SBOM: ${missing:-no crate was found}"
    echo "SBOM: $(wc -l <"$work/listed") crates, among them all $(wc -l <"$work/named") that the binary names"
}

# A bare Debian of this machine's release, with what the tests use.
debian() { # FOLDER
    base=$folder/debian.tar
    if [ ! -e "$base" ]; then
        sources=/etc/apt/sources.list.d/debian.sources
        [ -e $sources ] || sources=/etc/apt/sources.list
        suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
        mmdebstrap --quiet --variant=minbase "$suite" "$base.new" $sources \
            --include=systemd,iproute2,iputils-ping,man-db,bash-completion,socat,procps
        mv "$base.new" "$base"
    fi
    mkdir "$1"
    tar -C "$1" -xf "$base"
    mkdir "$1/packages"
    cp "$work/old/"*.deb "$work/new/"*.deb "$here/../tests/packages/"*.sh "$1/packages"
}

# Boots the Debian in a folder with systemd, and waits until it is up. Sets `machine`, and `inside`, its first process.
boot() { # FOLDER
    systemd-nspawn --quiet --register=no --keep-unit --directory "$1" --private-network --boot --console=pipe \
        --capability=all --system-call-filter=bpf --bind=/dev/net/tun >"$work/boot" 2>&1 &
    machine=$!
    for _ in $(seq 300); do
        inside=$(pgrep -P "$machine" -x systemd || true)
        [ -n "$inside" ] && within systemctl --quiet is-active multi-user.target 2>/dev/null && return 0
        sleep 0.1
    done
    fail "systemd does not start there: $(cat "$work/boot")"
}
within() { nsenter --target "$inside" --all --root --wdns=/ -- "$@"; }

say 'the package'
mkdir "$work/old" "$work/new" "$work/again"
new=$("$here/deb.sh" "$binary" "$work/new" 2)
same 'Debian package' "$new" "$(again "$here/deb.sh" "$binary" "$work/again" 2)"
old=$("$here/deb.sh" "$before" "$work/old" 1)
dpkg-deb --info "$new" | sed -n '/^ Package/,/^ Description/p'
dpkg-deb --fsys-tarfile "$new" | tar -xO ./usr/share/doc/plimsoll/sbom.cdx.json >"$work/sbom"
lists_all "$work/sbom"
if command -v lintian >/dev/null; then
    lintian --fail-on error,warning "$new"
fi

say 'in a bare Debian'
debian "$work/chroot"
set -- "/packages/$(basename "$old")" "/packages/$(basename "$new")"
mount -t proc proc "$work/chroot/proc"
status=0
chroot "$work/chroot" sh /packages/installed.sh "$@" || status=$?
umount "$work/chroot/proc"
[ $status -eq 0 ] || exit $status

say 'in a Debian that systemd has booted'
debian "$work/booted"
boot "$work/booted"
within bash /packages/upgrade.sh "$@"
end

say 'the image'
image=$("$here/image.sh" "$binary" "$work/new")
same 'OCI image' "$image" "$(again "$here/image.sh" "$binary" "$work/again")"
skopeo inspect "oci-archive:$image" | sed -n '/"Digest"/p; /"Architecture"/p; /"org.opencontainers/p'
mkdir "$work/oci" "$work/rootfs"
tar -C "$work/oci" -xf "$image"
for layer in $(skopeo inspect "oci-archive:$image" | sed -n '/"Layers"/,/]/s/.*"sha256:\(.*\)".*/\1/p'); do
    tar -C "$work/rootfs" -xzf "$work/oci/blobs/sha256/$layer"
done
echo "in a chroot: $(chroot "$work/rootfs" /usr/bin/plimsoll --version)"
if command -v podman >/dev/null && command -v runc >/dev/null; then
    unshare --mount --net sh "$here/../tests/packages/image.sh" "$image" "$work"
fi
