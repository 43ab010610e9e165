#!/bin/sh
# Runs in a network and mount namespace of its own: starts the daemon from the image in Podman, as docs/install.md says, with
# a tenant in a network namespace of the host.
#
# Usage: image.sh IMAGE FOLDER
set -eu
image=$1 folder=$2
said=$folder/said
. "$(dirname "$0")/common.sh"
# Some machines' limits are below Podman's own.
engine() { podman --runtime runc --cgroup-manager cgroupfs "$@"; }
start() { engine run --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$@"; }
trap 'engine rm --force --time 2 plimsoll >/dev/null 2>&1; engine rmi "$name" >/dev/null' EXIT

mount -t tmpfs run /run
mkdir -p /run/plimsoll "$folder/etc"
for tenant in world shop; do ip netns add $tenant; done
cat >"$folder/etc/plimsoll.yaml" <<'YAML'
uplink: {port: {tap: {netns: world, name: uplink}}, rate: 1Gbps}
tenants: {shop: {port: {tap: {netns: shop, name: eth0}}}}
YAML

name=$(engine load --quiet --input "$image" | sed -n 's/^Loaded image: //p')
echo "in Podman: $(start --rm "$name" --version)"
holds 'the daemon starts' start --detach --name plimsoll --network host --privileged --volume "$folder/etc:/etc/plimsoll:ro" \
    --volume /run/netns:/run/netns:shared --volume /run/plimsoll:/run/plimsoll "$name"
for _ in $(seq 100); do
    engine exec plimsoll plimsoll status >"$said" 2>&1 && break
    sleep 0.1
done
grep -q '^status *ok' "$said" || fail "the daemon is not well: $(engine logs plimsoll 2>&1)"
echo "its daemon serves a tenant of the host: $(sed -n 's/^the engine *//p' "$said")"
holds 'the tenant has its port' ip -n shop link show dev eth0
