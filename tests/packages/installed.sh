#!/bin/sh
# Runs in a bare Debian without a service manager: installs the package, uses what it has, upgrades, removes and purges it.
#
# Usage: installed.sh OLD.deb NEW.deb
set -eu
old=$1 new=$2
. "$(dirname "$0")/common.sh"
paths >/tmp/before

holds 'the package installs' dpkg --install "$old"
# Not through /bin/sh, whose `plimsoll` could be another one.
[ "$(command -v plimsoll)" = /usr/bin/plimsoll ] || fail "plimsoll is $(command -v plimsoll)"
holds 'it runs' plimsoll --version
holds 'an installed example is sound' plimsoll check /usr/share/doc/plimsoll/examples/plimsoll.yaml
holds 'so is the other one' plimsoll check /usr/share/doc/plimsoll/examples/fleet-host.yaml
for page in plimsoll plimsoll-check plimsoll-run; do
    holds 'it has a man page' man -w "$page"
done
holds 'man shows it' sh -c 'MANWIDTH=80 man plimsoll-check | grep -q "policy file"'
holds 'bash completes it' bash -c '. /usr/share/bash-completion/bash_completion && _completion_loader plimsoll
    COMP_WORDS=(plimsoll che) COMP_CWORD=1 COMPREPLY=()
    $(complete -p plimsoll | sed "s/.* -F \([^ ]*\) .*/\1/") plimsoll che plimsoll
    [ "${COMPREPLY[*]}" = check ]'
holds 'files are as packed' sh -c 'cd / && md5sum --check --quiet /var/lib/dpkg/info/plimsoll.md5sums'

echo 'uplink: {port: {tap: {name: up}}, rate: 1Gbps}' >/etc/plimsoll/plimsoll.yaml
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -s /usr/lib/systemd/system/plimsoll.service /etc/systemd/system/multi-user.target.wants/plimsoll.service
holds 'it upgrades' dpkg --install "$new"
holds 'to the new version' dpkg --compare-versions "$(dpkg-query -W -f '${Version}' plimsoll)" eq "$(dpkg-deb -f "$new" Version)"
grep -q 1Gbps /etc/plimsoll/plimsoll.yaml || fail 'the upgrade has touched the policy'
holds 'it goes' dpkg --remove plimsoll
[ ! -e /usr/bin/plimsoll ] || fail 'the removed binary is there'
[ -e /etc/plimsoll/plimsoll.yaml ] || fail 'removing the package has removed the policy'
holds 'it comes again' dpkg --install "$new"
holds 'it is purged' dpkg --purge plimsoll
nothing_is_left
echo "installed, used, upgraded, removed and purged: nothing is left"
