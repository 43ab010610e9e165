#!/usr/bin/env bash
# Fuzzes each target for a while, one after the other, and stops at the first finding.
#
#   fuzz/run.sh [SECONDS [TARGET...]]      600 seconds each, all targets
set -euo pipefail
cd "$(dirname "$0")"
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
export PATH

seconds=${1:-600}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(frame vnet_header overlay pieces feedback notices sealed policy read_file vnic vnic_messages vhost_ring vhost_messages netlink engine_trace program rank)

if ! rustup run nightly rustc --version >/dev/null 2>&1; then
    echo "fuzz: installing the nightly toolchain (coverage and sanitizer flags need it)" >&2
    rustup toolchain install nightly --profile minimal
fi
host=$(rustc -vV | sed -n 's/^host: //p')

# Coverage for the fuzzer to follow, and AddressSanitizer for what the libraries do. With --target, build
# scripts stay without them.
export RUSTFLAGS="--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
RUSTFLAGS=$(echo $RUSTFLAGS)
for target in "${targets[@]}"; do
    cargo +nightly build --quiet --release --target "$host" --bin "$target"
done

for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    words=()
    [ ! -f "words/$target" ] || words=("-dict=words/$target")
    echo "fuzz: $target for $seconds s"
    log=artifacts/$target.log
    if ! "target/$host/release/$target" "corpus/$target" "seeds/$target" \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=8192 -print_final_stats=1 \
        -artifact_prefix="artifacts/$target/" "${words[@]}" >"$log" 2>&1; then
        tail -n 60 "$log" >&2
        echo "fuzz: $target: a finding; the input lies in fuzz/artifacts/$target, replay it with" >&2
        echo "fuzz:   fuzz/target/$host/release/$target fuzz/artifacts/$target/FILE" >&2
        exit 1
    fi
    if ! grep -q '^Done' "$log"; then
        tail -n 20 "$log" >&2
        echo "fuzz: $target: ended without having run to its end; fuzz/$log says why" >&2
        exit 1
    fi
    grep -E '^Done|stat::number_of_executed_units|stat::new_units_added|stat::slowest_unit' "$log"
done
echo "fuzz: no finding"
