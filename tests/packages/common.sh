# What both tests inside the bare Debian use.

said=${said:-/tmp/said} # what the last command said
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }
holds() { # WHAT COMMAND...: the command must succeed
    what=$1
    shift
    "$@" >"$said" 2>&1 || fail "$what: \`$*\` said: $(cat "$said")"
}

# Every path of the system that outlasts a boot, but for what dpkg, apt and the manual keep of all packages.
paths() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/cache -o -path /var/log \
        -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /var/tmp \) -prune -o -print | LC_ALL=C sort
}
nothing_is_left() { # the paths of before are in /tmp/before
    paths >/tmp/after
    diff /tmp/before /tmp/after >&2 || fail 'the purged package has left files behind'
    for left in /var/lib/dpkg/info/plimsoll.* /var/lib/systemd/deb-systemd-helper-enabled/*plimsoll*; do
        [ ! -e "$left" ] || fail "$left is left"
    done
    ! dpkg-query --status plimsoll >/dev/null 2>&1 || fail 'dpkg still knows the package'
}
