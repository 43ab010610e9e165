#!/bin/sh
# Makes the files that a small Linux guest boots from: Debian's cloud kernel and an initramfs with busybox, virtio-net
# and iperf3.
#
# Usage: scripts/guest.sh FOLDER
#   writes FOLDER/vmlinuz and FOLDER/initrd, and does nothing when they are there.
#
# Beside it lie modules that are not loaded, and programs: what scripts/short-queues.sh needs.
#
# The guest boots in about three seconds under KVM (ten without), brings up no network, and leaves a shell on its first
# serial port. With virtio_net.napi_tx=0 among the kernel's arguments sockets learn nothing of completions. The kernel's
# package is fetched and unpacked, not installed. Needs busybox-static, iperf3 and ethtool (scripts/setup.sh test installs
# them).
set -eu

folder=${1:?where to? usage: scripts/guest.sh FOLDER}
fail() { printf 'guest: error: %s\n' "$*" >&2; exit 1; }

# Files of an older version of this script are made anew.
[ -e "$folder/vmlinuz" ] && [ "$folder/initrd" -nt "$0" ] && exit 0
busybox=$(command -v busybox) || fail 'busybox is missing; scripts/setup.sh test installs it'
command -v apt-get >/dev/null || fail 'this script knows apt-get only'
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The meta package names the kernel.
kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
[ -n "$kernel" ] || fail 'no linux-image-cloud-amd64 here; is this Debian, and has apt-get update run?'
(cd "$work" && apt-get download -q -o Acquire::Retries=3 "$kernel" >&2 && dpkg -x ./*.deb kernel)
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
for module in drivers/net/veth drivers/net/tun net/sched/sch_htb net/sched/sch_netem; do
    cp "$modules/$module.ko" "$root/modules/"
done
# Programs, and what they are linked with. Busybox has an `ip` and a `ping` of its own in /bin.
PATH="$PATH:/usr/sbin:/sbin"
for program in iperf3 ethtool ip tc ping; do
    program=$(command -v "$program") || continue
    case $program in /bin/* | /sbin/*) program=/usr$program ;; esac
    for file in "$program" $(ldd "$program" | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$file")"
        cp -L "$file" "$root$file"
    done
done
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/sbin:/usr/sbin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
# Kernel arguments of the form MODULE.OPTION are options of that module, which insmod must be given.
options() { tr ' ' '\n' </proc/cmdline | sed -n "s/^$1\.//p"; }
while read -r module; do insmod "/modules/$module" $(options "${module%.ko}"); done </modules/order
ip link set lo up
echo guest is up
exec setsid cttyhack sh
INIT
chmod +x "$root/init"
(cd "$root" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initrd"
# Each file is replaced in one step, as another guest may be booting from the old one.
cp "$work"/kernel/boot/vmlinuz-* "$folder/vmlinuz.$$"
cp "$work/initrd" "$folder/initrd.$$"
mv "$folder/vmlinuz.$$" "$folder/vmlinuz"
mv "$folder/initrd.$$" "$folder/initrd"
