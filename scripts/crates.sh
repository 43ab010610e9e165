#!/bin/sh
# Prints the crates that are linked into the `plimsoll` binary, one a line: NAME vVERSION|LICENCE|REPOSITORY
#
# Usage: scripts/crates.sh none|depth
#   none   each crate once
#   depth  as a tree, each line after the depth of its crate; below a crate that was shown before nothing is repeated
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."

target=$("$here/cargo" -vV | sed -n 's/^host: //p')
# Procedural macros run in the compiler, and are not in the binary. What is there is not fetched again.
"$here/cargo" tree --locked --offline --quiet --package plimsoll-cli --target "$target" --edges normal,no-proc-macro \
    --prefix "$1" --format ' {p}|{l}|{r}' | sed -e 's/ (\*)$//' -e 's| (/[^|]*)||' -e 's/^ //' |
    if [ "$1" = none ]; then sort -u; else cat; fi
