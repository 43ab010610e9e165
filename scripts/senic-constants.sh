#!/bin/sh
# How much the constants of the models decide in SE-E7 and SE-E8: the load that each system sustains, with each constant as
# the file has it, at half and at twice of that, and the ratios that the criteria of both experiments are about.
#
# Usage: scripts/senic-constants.sh [PLIMSOLL [e07|e08]]
#   PLIMSOLL is the program (target/release/plimsoll); without e07 or e08 both tables are made.
#
# A load is sustained if 99.9 % of the answers come within the experiment's bound (3 ms, and 4 ms beside datagrams). Loads are
# requests a second of each client of each tenant, found to 50 by halving the interval, with seed 1. Takes some minutes with a release build.
# Needs jq.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
program=${1:-$here/target/release/plimsoll}
which=${2:-both}
fail() { printf 'senic-constants: error: %s\n' "$*" >&2; exit 1; }
[ -x "$program" ] || fail "no program $program; \`make build\` makes it"
command -v jq >/dev/null || fail 'jq is missing'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# sustained FILE BOUND SYSTEM [--set PATH=VALUE...]: the load, a multiple of 50 from 0 to 12800.
sustained() {
    file=$1 bound=$2 system=$3
    shift 3
    low=0 high=256
    while [ $((high - low)) -gt 1 ]; do
        middle=$(((low + high) / 2))
        "$program" sim "$here/examples/papers/senic/$file" --system "$system" --json --out "$work" "$@" \
            --set "workloads.get<t>_<k>.rate=$((middle * 50))" >"$work/json" 2>/dev/null || true
        # The systems that do not run have no figures.
        within=$(jq --argjson bound "$bound" '[.. | objects | select(.workload? == "get") | .p99_9 | numbers] | .[0] // 9 | . <= $bound' "$work/json")
        if [ "$within" = true ]; then low=$middle; else high=$middle; fi
    done
    echo $((low * 50))
}

# row WORDS#OURS#PTB#HTB
row() {
    printf '%s\n' "$*" | awk -F'#' '{ printf "| %s | %d | %d | %d | %.2f | %.2f | %.2f |\n", $1, $2, $3, $4, $2 / $3, $3 / $4, $2 / $4 }'
}

# table FILE BOUND, and lines of: SYSTEMS PATH VALUE; with `none` in place of a value the constant is set to nothing
table() {
    file=$1 bound=$2
    printf '\n%s: p99.9 within %s s\n\n' "$file" "$bound"
    printf '| constant | ours | PTB | HTB | ours / PTB | PTB / HTB | ours / HTB |\n| --- | --- | --- | --- | --- | --- | --- |\n'
    ours=$(sustained "$file" "$bound" plimsoll)
    ptb=$(sustained "$file" "$bound" ptb)
    htb=$(sustained "$file" "$bound" htb)
    row "as the file has it#$ours#$ptb#$htb"
    while read -r systems path value; do
        if [ "$value" = none ]; then
            row "no \`$path\`#$(sustained "$file" "$bound" plimsoll --set "$path=0s")#$ptb#$(sustained "$file" "$bound" htb --set "$path=0s")"
            continue
        fi
        for factor in half twice; do
            by=$([ $factor = half ] && echo 1 || echo 4)
            changed=$((value * by / 2))ns
            one() { # one SYSTEM BASE
                case $systems in
                    *"$1"*) sustained "$file" "$bound" "$1" --set "$path=$changed" ;;
                    *) echo "$2" ;;
                esac
            }
            row "\`$path\`, $factor: $changed#$(one plimsoll "$ours")#$(one ptb "$ptb")#$(one htb "$htb")"
        done
    done
}

[ "$which" = e08 ] || table e07-memcached.yaml 0.003 <<'CONSTANTS'
htb systems.2.htb.lock 1550
plimsoll,htb wake none
ptb systems.1.ptb.cost 5250
plimsoll,ptb,htb hosts.server.cores.answer 13000
plimsoll,ptb,htb hosts.server.cores.send 3000
plimsoll hosts.server.cpu.pull 600
CONSTANTS
[ "$which" = e07 ] || table e08-cotenant.yaml 0.004 <<'CONSTANTS'
htb systems.2.htb.lock 2000
plimsoll,htb wake none
ptb systems.1.ptb.cost 6750
plimsoll,ptb,htb hosts.server.cores.answer 18400
plimsoll,ptb,htb hosts.server.cores.send 3000
plimsoll hosts.server.cpu.pull 600
CONSTANTS
