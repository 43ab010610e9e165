#!/bin/sh
# Packs a built Plimsoll as a Debian package, with what scripts/install.sh installs.
#
# Usage: scripts/deb.sh BINARY FOLDER [REVISION [COMPRESSION]]
#   writes FOLDER/plimsoll_VERSION-REVISION_ARCHITECTURE.deb, and prints its path. The version is the binary's, and so
#   Cargo's. The same sources and binary give the same bytes. COMPRESSION is dpkg-deb's: xz unless told.
#
# MAINTAINER names whoever passes the package on.
# Needs dpkg-deb, dpkg-shlibdeps and strip, which are in Debian's build-essential.
set -eu
binary=$1 folder=$2 revision=${3:-1} compression=${4:-xz}
here=$(cd "$(dirname "$0")" && pwd)
fail() { printf 'deb: error: %s\n' "$*" >&2; exit 1; }
for tool in dpkg-deb dpkg-shlibdeps strip; do
    command -v $tool >/dev/null || fail "$tool is missing; as root, run: apt-get install -y build-essential"
done
umask 022
SOURCE_DATE_EPOCH=$("$here/source-date.sh")
export SOURCE_DATE_EPOCH
maintainer=${MAINTAINER:-Plimsoll maintainers <maintainers@plimsoll.invalid>}
version=$("$binary" --version | cut -d' ' -f2)-$revision
architecture=$(dpkg --print-architecture)

mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/debian/plimsoll # where dpkg-shlibdeps looks for a package's files
doc=$tree/usr/share/doc/plimsoll

"$here/install.sh" "$binary" "$tree" /usr /usr/lib/systemd/system >/dev/null
strip --remove-section=.comment --remove-section=.note "$tree/usr/bin/plimsoll"
# Where the operator's policy goes: the package has none, as none fits another host.
install -d "$tree/etc/plimsoll"

changelog() {
    printf 'plimsoll (%s) unstable; urgency=medium\n\n' "$version"
    printf '  * What has changed is in /usr/share/doc/plimsoll/changelog.gz.\n\n'
    printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
}
install -m 0644 "$here/../dist/debian/copyright" "$doc/copyright"
install -m 0644 "$here/../CHANGELOG.md" "$doc/changelog"
changelog >"$doc/changelog.Debian"
gzip -9n "$doc/changelog" "$doc/changelog.Debian" "$doc/third-party-licences" "$tree"/usr/share/man/man1/*

# The libraries that the binary is linked with, and the versions that its symbols need.
depends() (
    touch "$work/debian/control"
    cd "$work"
    dpkg-shlibdeps -O debian/plimsoll/usr/bin/plimsoll | sed 's/^shlibs:Depends=//'
)
# What the files take, as dpkg-gencontrol counts: each file in whole KiB, and one for each folder.
installed_size() {
    find "$tree" -name DEBIAN -prune -o -type f -printf '%s\n' -o -printf '1\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }'
}
control() {
    cat <<CONTROL
Package: plimsoll
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(installed_size)
Depends: $(depends)
Recommends: iproute2
Suggests: iperf3, memcached, sockperf
Section: net
Priority: optional
Description: software NIC that gives each tenant of a host its share of the network
 Plimsoll sits between the tenants of a Linux host (containers, processes,
 virtual machines) and the interface by which packets leave it. A policy file
 says what each tenant gets: a minimum and a maximum bandwidth, priorities,
 weights, and rate limits that tenants share. Each tenant gets that, whatever
 the others send.
 .
 This package has the daemon and its systemd unit, the plimsoll command with man
 pages and completions, schemas of its files, alert rules for Prometheus and a
 board for Grafana. The service starts once you have written a policy,
 /etc/plimsoll/plimsoll.yaml, and enabled it.
CONTROL
}

mkdir "$tree/DEBIAN"
control >"$tree/DEBIAN/control"
(cd "$tree" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
for script in postinst prerm postrm; do
    install -m 0755 "$here/../dist/debian/$script" "$tree/DEBIAN/$script"
done
find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

package=$folder/plimsoll_${version}_$architecture.deb
dpkg-deb --root-owner-group -Z"$compression" --build "$tree" "$work/package.deb" >/dev/null
mv "$work/package.deb" "$package"
echo "$package"
