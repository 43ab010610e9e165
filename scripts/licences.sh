#!/bin/sh
# Prints the licence texts of the third-party crates that are linked into the `plimsoll` binary: each text once, below the
# crates that it belongs to. Most licences ask for this wherever a binary is passed on.
#
# Usage: scripts/licences.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
fail() { printf 'licences: error: %s\n' "$*" >&2; exit 1; }
sources=${CARGO_HOME:-$HOME/.cargo}/registry/src

files=$(mktemp)
trap 'rm -f "$files"' EXIT

# CRATE<tab>FILE, for each licence file of each crate; FILE is empty where a crate has none.
"$here/crates.sh" none | grep -v '^plimsoll-' | while IFS='|' read -r crate licence _; do
    folder=$(echo "$sources"/*/"${crate% v*}-${crate##* v}")
    [ -d "$folder" ] || fail "no sources of $crate in $sources; \`scripts/cargo fetch --locked\` fetches them"
    found=''
    for file in "$folder"/LICEN[CS]E* "$folder"/COPY* "$folder"/NOTICE* "$folder"/UNLICENSE* "$folder"/license*; do
        [ -f "$file" ] || continue
        found=$file
        printf '%s (%s)\t%s\n' "$crate" "$licence" "$file"
    done
    [ -n "$found" ] || printf '%s (%s)\t\n' "$crate" "$licence"
done >"$files"

echo 'Third-party crates that are linked into plimsoll, and their licence texts.'
{
    cut -f2 "$files" | sed '/^$/d' | xargs -d '\n' sha256sum
    cat "$files"
} | awk -F '\t' '
function rule() { print "\n------------------------------------------------------------------------" }
NF == 1 { sum[substr($0, 67)] = $1; next }
$2 == "" { without = without $1 "\n"; next }
{
    text = substr(sum[$2], 1, 64)
    if (!(text in crates)) { order[++count] = text; file[text] = $2 }
    if (!seen[text, $1]++) crates[text] = crates[text] $1 "\n"
}
END {
    for (i = 1; i <= count; i++) {
        rule()
        print crates[order[i]]
        while ((getline line < file[order[i]]) > 0) print line
    }
    if (without == "") exit
    rule()
    print without "\nPublished without a licence text; the manifest names the licence above."
}'
