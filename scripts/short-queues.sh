#!/bin/sh
# Compares `flows: fq` with Linux's fq_codel: the throughput of uploads, and the round trip of a ping beside them. Both
# run in the same Linux guest, with the same TCP, through a link of the same rate; netem delays what comes back.
#
# Usage: scripts/short-queues.sh [PLIMSOLL [CASE...]]
#   PLIMSOLL is the program (target/release/plimsoll); a CASE is MBPS/RTT_MS/FLOWS (without one: 10/40/1 10/100/1
#   10/40/16 100/10/16). Each case takes 25 seconds for each of five queues: `pfifo` (1,000 packets) and `fq_codel`
#   below HTB, Plimsoll with `flows: fifo`, with its default, and with `grain: 0us`.
#
# Prints a line for each: Mb/s at the receiver over 15 seconds, after 5; the ping's median and p99 in ms, less its way back.
# Needs qemu-system-x86_64, and what scripts/guest.sh needs (scripts/setup.sh test installs both).
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
program=${1:-$here/target/release/plimsoll}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- 10/40/1 10/100/1 10/40/16 100/10/16
fail() { printf 'short-queues: error: %s\n' "$*" >&2; exit 1; }
[ -x "$program" ] || fail "no program $program; \`make build\` makes it"
command -v qemu-system-x86_64 >/dev/null || fail 'qemu-system-x86_64 is missing; scripts/setup.sh test installs it'
"$here/scripts/guest.sh" "$here/target/guest"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/bin"
cp "$program" "$root/bin/plimsoll"
strip "$root/bin/plimsoll" 2>/dev/null || true
for file in $(ldd "$program" | grep -o '/[^ ]*'); do
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
done
printf '%s\n' "$@" >"$root/cases"
cat >"$root/compare" <<'GUEST'
#!/bin/sh
# Runs in the guest.
ip=/usr/sbin/ip tc=/usr/sbin/tc
mkdir -p /run /var/run /tmp
for module in veth tun sch_htb sch_netem; do insmod "/modules/$module.ko"; done

# Two namespaces: uploads go from `a` to `b`.
begin() {
    $ip netns add a
    $ip netns add b
}
end() {
    kill $(cat /tmp/pids 2>/dev/null) 2>/dev/null
    $ip netns pids b | xargs -r kill -9 2>/dev/null
    $ip netns del a
    $ip netns del b
    $ip netns del r 2>/dev/null
    rm -f /tmp/pids
    sleep 1
}
# within NAMESPACE COMMAND...
within() { space=$1; shift; $ip netns exec "$space" "$@"; }
whole_frames() { within "$1" /usr/sbin/ethtool -K "$2" tso off gso off gro off >/dev/null 2>&1; }

linux() { # QUEUE
    $ip netns add r
    $ip link add eth0 netns a type veth peer name ra netns r
    $ip link add rb netns r type veth peer name eth0 netns b
    within a $ip address add 10.9.1.1/24 dev eth0; within r $ip address add 10.9.1.254/24 dev ra
    within b $ip address add 10.9.2.2/24 dev eth0; within r $ip address add 10.9.2.254/24 dev rb
    for at in 'a eth0' 'r ra' 'r rb' 'b eth0'; do within ${at% *} $ip link set ${at#* } up; whole_frames $at; done
    within r sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
    within a $ip route add default via 10.9.1.254; within b $ip route add default via 10.9.2.254
    within r $tc qdisc add dev rb root handle 1: htb default 1
    within r $tc class add dev rb parent 1: classid 1:1 htb rate "${mbps}mbit" burst 3000 cburst 3000
    within r $tc qdisc add dev rb parent 1:1 handle 2: $1
    to=10.9.2.2
}
plimsoll() { # ENGINE [UPLINK]
    cat >/tmp/policy.yaml <<POLICY
uplink: {port: {tap: {netns: b, name: eth0}}, rate: ${mbps}Mbps${2:+, $2}}
api: {socket: /tmp/api.sock}
engine: {$1}
tenants: {x: {port: {tap: {netns: a, name: eth0}}}}
POLICY
    /bin/plimsoll run /tmp/policy.yaml >/tmp/log 2>&1 &
    echo $! >/tmp/pids
    n=0
    until within b $ip link show eth0 >/dev/null 2>&1 || [ $n -ge 30 ]; do sleep 1; n=$((n + 1)); done
    sleep 1
    within a $ip address add 10.9.2.1/24 dev eth0; within b $ip address add 10.9.2.2/24 dev eth0
    for at in 'a eth0' 'b eth0'; do within ${at% *} $ip link set ${at#* } up; whole_frames $at; done
    to=10.9.2.2
}
measure() { # NAME
    within b $tc qdisc add dev eth0 root netem delay "${rtt}ms" limit 100000
    within b iperf3 -s -1 >/tmp/server 2>&1 &
    sleep 1
    within a ping -c 2 -i 0.5 $to >/dev/null
    within a iperf3 -c $to -P "$flows" -t 15 -O 5 -f k >/tmp/iperf 2>&1 &
    upload=$!
    sleep 5
    within a ping -i 0.05 -w 14 $to >/tmp/ping 2>&1
    wait $upload
    rate=$(awk '/receiver/ {line = $0} /SUM.*receiver/ {sum = $0} END {print sum ? sum : line}' /tmp/iperf |
        sed 's/.*Bytes *\([0-9.]*\) Kbits.*/\1/')
    sed -n 's/.*time=\([0-9.]*\) ms.*/\1/p' /tmp/ping | sort -n >/tmp/times
    awk -v rtt="$rtt" -v rate="$rate" -v name="$1" -v of="$mbps/$rtt/$flows" '{t[NR] = $1 - rtt}
        END {printf "ROW %-12s %-18s %8.2f %8.2f %8.2f %5d\n", of, name, rate / 1000, t[int((NR + 1) / 2)], t[int((NR * 99 + 99) / 100)], NR}' /tmp/times
    [ -n "$rate" ] || cat /tmp/iperf /tmp/log
}
echo "ROW case         queue                  Mb/s   median      p99 pings"
for case in $(cat /cases); do
    mbps=${case%%/*} flows=${case##*/} rtt=${case#*/}; rtt=${rtt%/*}
    for queue in 'pfifo limit 1000' fq_codel; do begin; linux "$queue"; measure "${queue%% *}"; end; done
    begin; plimsoll 'flows: fifo'; measure 'plimsoll, fifo'; end
    begin; plimsoll 'verify: 100'; measure 'plimsoll, default'; end
    begin; plimsoll 'verify: 100' 'grain: 0us'; measure 'plimsoll, no grain'; end
done
echo comparison is over
GUEST
chmod +x "$root/compare"
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$work/more"
cat "$here/target/guest/initrd" "$work/more" >"$work/initrd"
# By instructions, one a nanosecond: the load of this machine does not show, and idle time is skipped.
accelerator=${PLIMSOLL_GUEST_ACCEL:-tcg -icount shift=0,sleep=off}

mkfifo "$work/keys"
timeout 3000 qemu-system-x86_64 -accel $accelerator -m 768M -nodefaults -no-user-config -display none -serial stdio \
    -kernel "$here/target/guest/vmlinuz" -initrd "$work/initrd" -append 'console=ttyS0 quiet mitigations=off' \
    <"$work/keys" >"$work/said" 2>&1 &
guest=$!
trap 'kill "$guest" 2>/dev/null || true; rm -rf "$work"' EXIT
exec 3>"$work/keys"
until grep -q 'guest is up' "$work/said"; do kill -0 "$guest" || fail 'the guest ended'; sleep 1; done
echo '/compare' >&3
tail -f -n +1 "$work/said" 2>/dev/null | sed -u -n 's/\r$//; s/^ROW //p' &
rows=$!
until grep -q 'comparison is ove[r]' "$work/said"; do kill -0 "$guest" 2>/dev/null || break; sleep 1; done
sleep 1
kill "$rows" 2>/dev/null || true
[ -z "${KEEP_LOG:-}" ] || cp "$work/said" "$KEEP_LOG"
grep -q 'comparison is ove[r]' "$work/said" || { cat "$work/said" >&2; fail 'the comparison did not end'; }
