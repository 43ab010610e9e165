#!/bin/sh
# Installs the programs that Plimsoll needs and that are missing, on Debian 12 or Ubuntu.
#
# Usage: scripts/setup.sh [build|run|test|containers|libvirt|packages|bench|python|fuzz|deny]
#   build  a linker, the Rust toolchain, and protoc for the client of etcd
#   run    build, and the tools of the lab: iproute2, iperf3, memcached, sockperf, ethtool
#   test   run, clang and lld for tenants' programs, CNI's plugins, etcd, and tools of the live tests with virtual machines: DPDK's
#          testpmd, QEMU, busybox
#   containers  test, Docker, containerd and Podman (85 MB; Debian starts Docker's service), and CNI's cnitool
#   libvirt  test, and libvirt with its shell (2 MB; Debian starts its service)
#   packages  build, and what tests the Debian package and the image: mmdebstrap, systemd-nspawn, skopeo (30 MB)
#   bench  run, and DPDK's libraries, tc and ns-3, which benches/ compares with Plimsoll
#   python build, and Python with its virtual environments
#   fuzz   build, and the nightly toolchain
#   deny   build, and cargo-deny, compiled here: minutes on two cores
#
# When nothing is missing, it prints nothing and does not use the network.
set -eu

RUST=1.95.0 # the oldest toolchain that builds the workspace, and the one installed where there is none
DENY=0.20.2 # the cargo-deny that is installed where there is none
here=$(dirname "$0")
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"
export PATH

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

missing=''
# want COMMAND PACKAGE: the package is missing when the command is.
want() { have "$1" || missing="$missing $2"; }
# want_file FILE PACKAGE: the package is missing when the file is.
want_file() { [ -e "$1" ] || missing="$missing $2"; }

want_build() {
    want cc build-essential
    want curl curl
    want_file /etc/ssl/certs/ca-certificates.crt ca-certificates
    want protoc protobuf-compiler
    want_file /usr/include/google/protobuf/descriptor.proto libprotobuf-dev
}

want_run() {
    want ip iproute2
    want tc iproute2
    want iperf3 iperf3
    want memcached memcached
    want sockperf sockperf
    want ethtool ethtool
    want ping iputils-ping
    want unshare util-linux
}

want_test() {
    want dpdk-testpmd dpdk-dev
    want qemu-system-x86_64 qemu-system-x86
    want busybox busybox-static
    want_etcd
    want iptables iptables
    want_file /usr/lib/cni/host-local containernetworking-plugins
    want clang clang
    want wasm-ld lld
}

# For the tests of a fleet, which start their own. Debian's package would start a service as well, where there is systemd.
want_etcd() {
    have etcd && return 0
    missing="$missing etcd-server"
    [ -d /run/systemd/system ] && [ "$(id -u)" -eq 0 ] && systemctl mask etcd.service >&2
    return 0
}

want_containers() {
    want dockerd docker.io
    want podman podman
    want containerd containerd
    have go || want_file /usr/bin/go golang-go
}

want_libvirt() {
    want virsh libvirt-clients
    want libvirtd libvirt-daemon
    # QEMU's driver, and the user that it needs.
    want_file /usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so libvirt-daemon-driver-qemu
    getent passwd libvirt-qemu >/dev/null || missing="$missing libvirt-daemon-system"
}

# CNI's own tool, for which Debian has no package.
want_cnitool() {
    have cnitool && return 0
    [ "$(id -u)" -eq 0 ] && have go || return 0
    GOBIN=/usr/local/bin GOFLAGS=-modcacherw go install github.com/containernetworking/cni/cnitool@v1.1.2 >&2 ||
        say 'cnitool cannot be built here: its test is skipped'
}

want_packages() {
    want dpkg-shlibdeps dpkg-dev
    want mmdebstrap mmdebstrap
    want systemd-nspawn systemd-container
    want skopeo skopeo
    want pgrep procps
}

want_bench() {
    want pkg-config pkg-config
    pkg-config --exists libdpdk 2>/dev/null || missing="$missing libdpdk-dev"
    want dpdk-testpmd dpdk-dev
}

# The Python that a user has chosen will do if it can make a virtual environment.
want_python() {
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3 python3-venv"
}

# Open vSwitch with DPDK. Debian starts its service, which the bench does not use.
want_ovs() {
    [ -x /usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk ] && return 0
    have apt-get || return 0
    [ "$(id -u)" -eq 0 ] || return 0
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends openvswitch-switch-dpdk >&2 ||
        say 'openvswitch-switch-dpdk cannot be installed here: the bench leaves out the rows beside it'
}

# ns-3, which the bench compares with our simulator; without it the bench measures our simulator alone.
want_ns3() {
    pkg-config --exists ns3-internet 2>/dev/null && return 0
    have apt-get || return 0
    [ "$(id -u)" -eq 0 ] || return 0
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends libns3-dev libgsl-dev >&2 ||
        say 'libns3-dev cannot be installed here: the bench measures our simulator alone'
}

# Installs the missing packages, as root or through sudo; says what to do when it is neither.
install_packages() {
    [ -n "$missing" ] || return 0
    missing=$(printf '%s\n' $missing | sort -u | tr '\n' ' ')
    if ! have apt-get; then
        fail "missing: $missing(this script knows apt-get only; install them with your package manager)"
    fi
    sudo=''
    if [ "$(id -u)" -ne 0 ]; then
        have sudo || fail "missing: $missing; you are not root and there is no sudo: as root, run: apt-get install -y $missing"
        sudo=sudo
    fi
    say "installing: $missing"
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing >&2
}

# Whether the cargo that scripts/cargo would run is new enough.
rust_is_ready() {
    "$here/cargo" --version >/dev/null 2>&1 || return 1
    version=$("$here/cargo" --version | cut -d' ' -f2 | cut -d- -f1)
    [ "$(printf '%s\n%s\n' "$RUST" "$version" | sort -V | head -n 1)" = "$RUST" ]
}

# Some networks know only one of the two places where rustup's installer lies.
fetch_rustup() {
    for url in https://sh.rustup.rs https://static.rust-lang.org/rustup/rustup-init.sh; do
        curl --proto '=https' --tlsv1.2 -sSf -L "$url" -o "$1" && return 0
    done
    fail "cannot fetch rustup; give this machine a way to https://sh.rustup.rs, or install Rust $RUST or newer yourself"
}

install_rust() {
    if ! rust_is_ready; then
        say "installing the Rust toolchain $RUST"
        if have rustup; then
            rustup toolchain install "$RUST" --profile minimal -c rustfmt -c clippy >&2
        else
            installer=$(mktemp)
            fetch_rustup "$installer"
            sh "$installer" -y -q --profile minimal -c rustfmt -c clippy --default-toolchain "$RUST" >&2
            rm -f "$installer"
        fi
        rust_is_ready || fail "the Rust toolchain $RUST is installed but does not run: try '$here/cargo --version'"
    fi
    for component in fmt clippy; do
        "$here/cargo" "$component" --version >/dev/null 2>&1 && continue
        have rustup || fail "cargo $component is missing: install it beside your cargo, or use rustup"
        case $component in fmt) component=rustfmt ;; esac
        rustup component add "$component" >&2
    done
}

# For tenants' programs in Rust. Where Rust is not rustup's, or the network does not have it, the test of such a program is skipped.
install_wasm() {
    target=wasm32-unknown-unknown
    have rustup || return 0
    rustup target list --installed 2>/dev/null | grep -q "^$target\$" && return 0
    rustup target add "$target" >&2 || say "no $target for Rust: the test of programs in Rust will be skipped"
}

install_fuzz() {
    have rustup || fail "fuzzing takes the nightly toolchain, and rustup to install it: https://rustup.rs"
    cargo +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal >&2
}

install_deny() {
    "$here/cargo" deny --version >/dev/null 2>&1 && return 0
    say "installing cargo-deny $DENY from source; this takes minutes, once"
    "$here/cargo" install --locked --version "$DENY" cargo-deny >&2
}

what=${1:-run}
want_build
case $what in
build | fuzz | deny) ;;
run) want_run ;;
test) want_run && want_test ;;
containers) want_run && want_test && want_containers ;;
libvirt) want_run && want_test && want_libvirt ;;
packages) want_packages ;;
bench) want_run && want_bench ;;
python) want_python ;;
*) fail "unknown part '$what': one of build, run, test, containers, libvirt, packages, bench, python, fuzz, deny" ;;
esac
install_packages
install_rust
case $what in
test) install_wasm ;;
containers) want_cnitool ;;
bench) want_ns3; want_ovs ;;
fuzz) install_fuzz ;;
deny) install_deny ;;
esac
