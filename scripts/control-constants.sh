#!/bin/sh
# The packet rate's law beside Algorithm 1 with the constants that are usual for its formula, on PN-E6, E11, E12 and E14, where
# each packet takes as long as the next and where times vary: the table of docs/decisions/0011-constants-of-the-packet-rate.md.
#
# Usage: scripts/control-constants.sh [PLIMSOLL [SEEDS]]
#   PLIMSOLL is the program (target/release/plimsoll), SEEDS the number of runs of each (5), of which the median is shown.
#
# Takes some 8 minutes of processor time with a release build. Needs jq.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
program=${1:-$here/target/release/plimsoll}
seeds=${2:-5}
fail() { printf 'control-constants: error: %s\n' "$*" >&2; exit 1; }
[ -x "$program" ] || fail "no program $program; \`make build\` makes it"
command -v jq >/dev/null || fail 'jq is missing'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Whatever is read below is in these fields: an experiment, what its row is about, and figures of `plimsoll papers`.
jq_program='
def us: . * 1e6 | if . < 100 then (. * 10 | round / 10) else round end | tostring + " us";
def gbps: . / 1e7 | round / 100 | tostring + " Gb/s";
def figure($of; form): [.numbers[] | select(.of == $of and ($vary == "" or (.at["hosts.h3.receive.vary"] // $vary) == $vary)) | .ours.median | form] | first // "none";
def prefix: if $vary == "false" then "each packet takes as long: " else "" end;
def times: if $vary == "true" then "times vary: " else "" end;
.[] | if .id == "PN-E6" then
    figure("goodput, bandwidth only (of 256 B)"; gbps) + ", " + figure("goodput, all"; gbps) + "; " + figure("probes\u0027 p99, bandwidth only"; us) + ", " + figure("probes\u0027 p99, all"; us)
  elif .id == "PN-E11" then
    [figure(times + "mean, of the flood"; us), figure(times + "p99 of the epochs\u0027 means, of the flood"; us),
     figure(times + "p99, of the flood" + (if $vary == "true" then " (not met)" else "" end); us)] | join(", ")
  elif .id == "PN-E12" then
    ([("5", "10", "20", "40", "80") as $at | figure(prefix + "mean round trip, " + $at + " us"; us)]
     + [figure(prefix + "mean round trip, 160 us" + (if $vary == "false" then " (longer, not met)" else "" end); us)] | join(", "))
    + "; " + figure(prefix + "goodput, 5 us"; gbps)
  else
    figure("p99, alone"; us) + ", " + figure("p99, all"; us)
  end'

# figures ID FILE RECEIVE VARY LAW: a law's figures of an experiment whose receiver has these settings.
figures() {
    id=$1 file=$2 receive=$3 vary=$4 law=$5
    rm -rf "$work/papers" && mkdir -p "$work/papers"
    sed -e "s/^control: {/control: {$law/" -e "s/receive: {\(.*\)vary: true/receive: {\1vary: $vary/" \
        -e "s/receive: {ring: 1024\(.*\)slots: 256}/receive: {$receive\1slots: 256, vary: $vary}/" \
        "$here/examples/papers/picnic/$file" >"$work/papers/$file"
    "$program" papers --folder "$work/papers" --only "$id" --seeds "$seeds" --json 2>/dev/null \
        | jq -r --arg vary "$vary" "$jq_program"
}

algorithm1='cut: 0.8, newest: 0.3, patience: 0, '

row() ( # row WORDS FIGURE ID FILE RECEIVE VARY
    words=$1 figure=$2
    shift 2
    ours=$(figures "$@" '')
    theirs=$(figures "$@" "$algorithm1")
    printf '| %s | %s | %s | %s |\n' "$words" "$figure" "$ours" "$theirs"
)

both() { # both WORDS FIGURE ID FILE RECEIVE
    words=$1 figure=$2
    shift 2
    row "$words, constant" "$figure" "$@" false
    row "$words, varying" 'the same' "$@" true
}

printf '| experiment, times | figure | this law | Algorithm 1 |\n| --- | --- | --- | --- |\n'
both 'PN-E6' "goodput with bandwidth control alone, with all; probes' p99 in the same order" PN-E6 e06-pps.yaml 'ring: 1024'
both 'PN-E6 with a ring of 16,384' 'the same' PN-E6 e06-pps.yaml 'ring: 16384'
both 'PN-E11' 'mean of epochs, their p99, p99 of packets (threshold 10 us)' PN-E11 e11-delay.yaml ''
both 'PN-E12, 100 B' 'round trips at 5, 10, 20, 40, 80, 160 us; goodput at 5 us' PN-E12 e12-threshold.yaml ''
both 'PN-E14' 'p99 of memcached alone, with all' PN-E14 e14-tenants.yaml ''
