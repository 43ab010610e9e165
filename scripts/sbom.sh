#!/bin/sh
# Prints the SBOM (software bill of materials) of the `plimsoll` binary as CycloneDX 1.5 JSON: each crate that is linked
# into it, with version, licence and the checksum of Cargo.lock, which of them uses which, and Rust's standard library.
#
# Usage: scripts/sbom.sh
#
# cargo-cyclonedx and cargo-sbom list the whole workspace, with what only tests use and with features that this binary does
# not have; `cargo tree` knows exactly what is linked. The output depends on nothing but the sources and the toolchain.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/..

tree=$("$here/crates.sh" depth)
rust=$("$here/cargo" --version | cut -d' ' -f2)
now=$(date -u -d "@$("$here/source-date.sh")" +%Y-%m-%dT%H:%M:%SZ)

{
    # NAME VERSION CHECKSUM, of each crate that comes from a registry.
    awk -F '"' '/^name = /{name=$2} /^version = /{version=$2} /^checksum = /{print "sum", name, version, $2}' "$root/Cargo.lock"
    printf '%s\n' "$tree"
} | awk -v rust="$rust" -v now="$now" '
function quoted(text) { gsub(/["\\]/, "\\\\&", text); return "\"" text "\"" }
function component(type, ref, name, version, licence, sum, where,    json) {
    json = "{\"type\": \"" type "\", \"bom-ref\": " quoted(ref) ", \"name\": " quoted(name) ", \"version\": " quoted(version)
    json = json ", \"purl\": " quoted(ref) ", \"licenses\": [{\"expression\": " quoted(licence) "}]"
    if (sum) json = json ", \"hashes\": [{\"alg\": \"SHA-256\", \"content\": \"" sum "\"}]"
    if (where) json = json ", \"externalReferences\": [{\"type\": \"vcs\", \"url\": " quoted(where) "}]"
    return json "}"
}
function uses(user, used) {
    if (seen[user, used]++) return
    edges[user] = edges[user] (edges[user] ? ", " : "") quoted(used)
}
$1 == "sum" { sums[$2, $3] = $4; next }
{
    split($0, part, "|")
    split(part[1], word, " ")
    depth = word[1]; name = word[2]; version = substr(word[3], 2)
    # Old manifests write `/` for OR.
    gsub(/ *\/ */, " OR ", part[2])
    ref = "pkg:cargo/" name "@" version
    at[depth] = ref
    if (depth > 0) uses(at[depth - 1], ref)
    if (ref in known) next
    known[ref] = 1
    order[++count] = ref
    if (depth == 0) main = component("application", ref, "plimsoll", version, part[2])
    else list = list ",\n    " component("library", ref, name, version, part[2], sums[name, version], part[3])
}
END {
    std = "pkg:generic/rust-std@" rust
    uses(order[1], std)
    order[++count] = std
    list = list ",\n    " component("library", std, "rust-std", rust, "MIT OR Apache-2.0", "", "https://github.com/rust-lang/rust")
    print "{\n  \"bomFormat\": \"CycloneDX\", \"specVersion\": \"1.5\", \"version\": 1,"
    print "  \"metadata\": {\n    \"timestamp\": \"" now "\",\n    \"component\": " main "\n  },"
    print "  \"components\": [\n    " substr(list, 7) "\n  ],\n  \"dependencies\": ["
    for (i = 1; i <= count; i++)
        printf "    {\"ref\": %s, \"dependsOn\": [%s]}%s\n", quoted(order[i]), edges[order[i]], i < count ? "," : ""
    print "  ]\n}"
}'
