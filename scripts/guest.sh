#!/bin/sh
# Makes what a small Linux guest boots from: Debian's cloud kernel and an initramfs with busybox, virtio-net and iperf3.
#
# Usage: scripts/guest.sh FOLDER
#   writes FOLDER/vmlinuz and FOLDER/initrd, and does nothing when they are there.
#
# The guest boots in about three seconds under KVM (ten without), brings up no network, and leaves a shell on its first
# serial port. The kernel's package is fetched and unpacked, not installed. Needs busybox-static and iperf3
# (scripts/setup.sh test installs them).
set -eu

folder=${1:?where to? usage: scripts/guest.sh FOLDER}
fail() { printf 'guest: error: %s\n' "$*" >&2; exit 1; }

[ -e "$folder/vmlinuz" ] && [ -e "$folder/initrd" ] && exit 0
busybox=$(command -v busybox) || fail 'busybox is missing; scripts/setup.sh test installs it'
command -v apt-get >/dev/null || fail 'this script knows apt-get only'
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The meta package names the kernel.
kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
[ -n "$kernel" ] || fail 'no linux-image-cloud-amd64 here; is this Debian, and has apt-get update run?'
(cd "$work" && apt-get download -q "$kernel" >&2 && dpkg -x ./*.deb kernel)
modules=$(echo "$work"/kernel/lib/modules/*/kernel)

root=$work/root
mkdir -p "$root/bin" "$root/dev" "$root/proc" "$root/sys" "$root/tmp" "$root/modules"
cp "$busybox" "$root/bin/busybox"
for module in drivers/virtio/virtio_ring drivers/virtio/virtio drivers/virtio/virtio_pci_modern_dev \
    drivers/virtio/virtio_pci_legacy_dev drivers/virtio/virtio_pci net/core/failover drivers/net/net_failover \
    drivers/net/virtio_net; do
    cp "$modules/$module.ko" "$root/modules/"
    basename "$module.ko" >>"$root/modules/order"
done
# iperf3, and what it is linked with.
if iperf3=$(command -v iperf3); then
    for file in "$iperf3" $(ldd "$iperf3" | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$file")"
        cp -L "$file" "$root$file"
    done
fi
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/sbin:/usr/sbin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
while read -r module; do insmod "/modules/$module"; done </modules/order
ip link set lo up
echo guest is up
exec setsid cttyhack sh
INIT
chmod +x "$root/init"
(cd "$root" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initrd"
cp "$work"/kernel/boot/vmlinuz-* "$folder/vmlinuz"
mv "$work/initrd" "$folder/initrd"
