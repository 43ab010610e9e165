#!/bin/sh
# Builds the Python package of python/ and installs it, with what its tests take, into a virtual environment.
#
# Usage: scripts/python.sh FOLDER [lock]
#   FOLDER  the environment; it is made if need be. The wheel is in target/wheels.
#   lock    writes python/requirements.txt anew, with the newest versions of what python/pyproject.toml asks for
set -eu

folder=${1:?where to? usage: scripts/python.sh FOLDER [lock]}
cd "$(dirname "$0")/.."
lock=python/requirements.txt

if [ "${2:-}" = lock ]; then
    rm -rf "$folder.lock"
    python3 -m venv "$folder.lock"
    python3 - <<'EOF' >"$folder.lock/wanted"
import tomllib
project = tomllib.load(open("python/pyproject.toml", "rb"))
print(*project["build-system"]["requires"], *project["project"]["optional-dependencies"]["test"], sep="\n")
EOF
    "$folder.lock/bin/pip" install -q -r "$folder.lock/wanted"
    {
        echo '# Every package that `make test-python` installs. Written by: scripts/python.sh target/python lock'
        "$folder.lock/bin/pip" freeze
    } >"$lock.new"
    mv "$lock.new" "$lock"
    rm -rf "$folder.lock"
fi

[ -x "$folder/bin/python" ] || python3 -m venv "$folder"
# What is installed already is not looked for on the network.
if ! cmp -s "$lock" "$folder/requirements.txt"; then
    "$folder/bin/pip" install -q --disable-pip-version-check -r "$lock"
    cp "$lock" "$folder/requirements.txt"
fi
rm -rf target/wheels
CARGO=$PWD/scripts/cargo "$folder/bin/maturin" build --quiet --release --locked --manifest-path python/Cargo.toml \
    --target-dir target --out target/wheels
"$folder/bin/pip" install -q --disable-pip-version-check --no-deps --force-reinstall target/wheels/plimsoll-*.whl
