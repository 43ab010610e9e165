#!/bin/bash
# Runs in a Debian that systemd has booted: upgrades the package while tenants send, and measures what they notice.
#
# Usage: upgrade.sh OLD.deb NEW.deb
set -eu
old=$1 new=$2
. "$(dirname "$0")/common.sh"
paths >/tmp/before

at() { ip netns exec "$@"; }
pid() { systemctl show --property MainPID --value plimsoll; }
# The number of a tenant's device and its address.
device() { ip -n "$1" -o -4 address show dev eth0 | awk '{print $1, $4}'; }
now() { echo "${EPOCHREALTIME/./}"; }

policy() { # the rate of the uplink
    cat >/etc/plimsoll/plimsoll.yaml <<YAML
uplink: {port: {tap: {netns: world, name: uplink}}, rate: $1}
tenants:
  shop: {port: {tap: {netns: shop, name: eth0}}, min: 200Mbps}
  site: {port: {tap: {netns: site, name: eth0}}, min: 200Mbps}
YAML
}

# One connection from shop to site: a numbered line goes there and comes back, every few milliseconds. Each answer is logged
# with its time; any line that is lost or wrong ends it.
talk() {
    at site socat TCP-LISTEN:7,reuseaddr EXEC:cat &
    sleep 0.5
    at shop bash -c '
        exec 3<>/dev/tcp/10.9.0.2/7
        for ((n = 1; ; n++)); do
            [ ! -e /tmp/enough ] || exit 0
            echo "$n" >&3
            read -r -t 20 -u 3 answer && [ "$answer" = "$n" ] || exit 1
            echo "${EPOCHREALTIME/./} $n"
            sleep 0.004
        done' >/tmp/answers &
    talk=$!
    ip netns exec shop ping -D -i 0.005 10.9.0.2 >/tmp/ping &
    ping=$!
}
# The longest time in ms between two lines of a log since a moment; a line begins with its time in microseconds.
longest() { awk -v since="$1" '$1 >= since { if (last && $1 - last > worst) worst = $1 - last; last = $1 } END { printf "%.0f\n", worst / 1000 }'; }
gap() { longest "$1" </tmp/answers; }
# Echoes come by themselves, while TCP sends again what was lost only after a while.
ping_gap() { sed -n 's/^\[\([0-9]*\)\.\([0-9]*\)\] .* bytes from .*/\1\2/p' /tmp/ping | longest "$1"; }
answers() { tail -n 1 /tmp/answers | cut -d' ' -f2; }

holds 'the package installs' dpkg --install "$old"
! systemctl --quiet is-active plimsoll || fail 'it was started without a policy'
for name in world shop site; do ip netns add $name; done
policy 1Gbps
holds 'the service starts' systemctl enable --now plimsoll
at shop ip address add 10.9.0.1/24 dev eth0
at site ip address add 10.9.0.2/24 dev eth0
devices="$(device shop) $(device site)"
talk
began=$(now)
sleep 3
calm=$(gap "$began") before=$(pid) sent=$(answers)
[ "$sent" -gt 100 ] || fail "only $sent answers in 3 s"

# 1. The upgrade, under traffic.
upgrade=$(now)
holds 'it upgrades' dpkg --install "$new"
took=$((($(now) - upgrade) / 1000))
sleep 3
[ "$(pid)" != "$before" ] || fail 'the old daemon still runs'
[ "$(stat -Lc %i "/proc/$(pid)/exe")" = "$(stat -c %i /usr/bin/plimsoll)" ] || fail 'what runs is not what was installed'
holds 'it is well' plimsoll status
[ "$(device shop) $(device site)" = "$devices" ] || fail "devices were '$devices', are '$(device shop) $(device site)'"
kill -0 $talk || fail "the connection broke after $(answers) answers"
[ "$(answers)" -gt $((sent + 100)) ] || fail 'no answers come after the upgrade'
echo "upgraded under traffic in $took ms: $(gap "$upgrade") ms without an answer on the tenants' connection, $(ping_gap "$upgrade") ms without an echo (before: at most $calm ms)"

# 2. A policy that the package's version refuses: the daemon goes on.
running=$(pid) refused=$(now)
policy 1Gpbs
dpkg --install "$old" >/tmp/said 2>&1 || fail "a wrong policy must not break the upgrade: $(cat /tmp/said)"
grep -q 'mend the file' /tmp/said || fail "it does not say that it refuses the policy: $(cat /tmp/said)"
[ "$(pid)" = "$running" ] || fail 'the daemon was restarted with a wrong policy'
sleep 1
kill -0 $talk || fail 'the connection broke'
echo "a policy that is refused: the daemon goes on, $(gap "$refused") ms without an answer"
policy 1Gbps

# 3. Back to the old version, and then away.
back=$(now)
holds 'mended, it is restarted' systemctl restart plimsoll
sleep 2
[ "$(device shop) $(device site)" = "$devices" ] || fail 'devices are others'
touch /tmp/enough
wait $talk || fail 'the connection broke on the way back'
kill -INT $ping
wait $ping || true
echo "back to the old version: $(gap "$back") ms without an answer; $(answers) answers in all, none lost, on one connection"
echo "ping: $(grep transmitted /tmp/ping)"

holds 'it goes' dpkg --remove plimsoll
! systemctl --quiet is-active plimsoll || fail 'the removed service still runs'
! ip -n shop link show dev eth0 >/dev/null 2>&1 || fail "the tenant's device is still there"
holds 'it is purged' dpkg --purge plimsoll
nothing_is_left
for name in world shop site; do ip netns del $name; done
echo 'removed and purged: the service has ended, and nothing is left'
