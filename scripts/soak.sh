#!/bin/sh
# Runs the property tests with many cases and fresh seeds, then the demo over and over, until time is up.
# It stops at the first failure, with the seed or the report that shows it.
set -eu
cd "$(dirname "$0")/.."

minutes=${SOAK_MINUTES:-60}
end=$(($(date +%s) + minutes * 60))
half=$(($(date +%s) + minutes * 30))
round=0

scripts/cargo test --release --locked --no-run -p plimsoll-queues -p plimsoll-wire -p plimsoll-policy -p plimsoll-nic
while [ "$(date +%s)" -lt "$half" ]; do
    round=$((round + 1))
    echo "soak: properties, round $round"
    PROPTEST_CASES=20000 scripts/cargo test --release --locked -q \
        -p plimsoll-queues -p plimsoll-wire -p plimsoll-policy -p plimsoll-nic
done

scripts/cargo build --release --locked -p plimsoll-cli
while [ "$(date +%s)" -lt "$end" ]; do
    round=$((round + 1))
    echo "soak: lab, round $round"
    target/release/plimsoll lab examples/noisy-neighbour.yaml
done
echo "soak: $round rounds in $minutes minutes without a failure"
