//! Namespaces, TAPs, traffic and counters for the live parts.
//!
//! Why: the same senders, receivers and counters must stand on both sides of a comparison.
//! From: tun.c's interface; `ip netns`.
//! Not here: Plimsoll's own ports; its side of a live part is the real binary.
//! Invariant: what a part set up is gone when it ends, failed or not.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// A network namespace, removed when dropped.
pub struct Netns(String);

impl Netns {
    /// A fresh namespace; what a killed run left behind under this name goes first.
    pub fn new(name: &str) -> Result<Self> {
        let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
        run(&["ip", "netns", "add", name])?;
        let netns = Self(name.to_owned());
        netns.ip(&["link", "set", "lo", "up"])?;
        Ok(netns)
    }

    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Runs `ip` inside.
    pub fn ip(&self, args: &[&str]) -> Result<()> {
        run(&[&["ip", "-n", &self.0], args].concat())
    }

    /// Runs `f` on a thread of its own inside.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let path = format!("/run/netns/{}", self.0);
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                let netns = File::open(&path).with_context(|| format!("cannot open {path}"))?;
                // SAFETY: plain system call on a live descriptor; it changes this thread only, which ends here.
                check(unsafe { libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) }).context("setns")?;
                f()
            });
            inside.join().unwrap_or_else(|_| bail!("a bench thread panicked"))
        })
    }

    /// Packets and bytes that `device` has received.
    pub fn received(&self, device: &str) -> Result<(u64, u64)> {
        let out =
            Command::new("ip").args(["-n", &self.0, "-j", "-s", "link", "show", "dev", device]).output()?;
        let json: serde_json::Value = serde_json::from_slice(&out.stdout)
            .with_context(|| format!("no counters of {device} in {}", self.0))?;
        let counter = |name: &str| json[0]["stats64"]["rx"][name].as_u64().context("no counter");
        Ok((counter("packets")?, counter("bytes")?))
    }

    /// Gives `device` an address, and the neighbour's, so that no packet waits for ARP.
    pub fn address(&self, device: &str, address: Ipv4Addr, peer: Ipv4Addr, peer_mac: &str) -> Result<()> {
        self.ip(&["addr", "add", &format!("{address}/24"), "dev", device])?;
        self.ip(&["link", "set", device, "up"])?;
        self.ip(&["neigh", "replace", &peer.to_string(), "lladdr", peer_mac, "dev", device])
    }

    /// Waits until `device` is there.
    pub fn await_device(&self, device: &str) -> Result<()> {
        for _ in 0..100 {
            let shown = Command::new("ip")
                .args(["-n", &self.0, "link", "show", "dev", device])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()?;
            if shown.success() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{device} does not appear in {} within 5 s", self.0)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Runs a command to its end.
pub fn run(command: &[&str]) -> Result<()> {
    let out = Command::new(command[0])
        .args(&command[1..])
        .output()
        .with_context(|| format!("no {}", command[0]))?;
    if !out.status.success() {
        bail!("{}: {}", command.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

/// A TAP with vnet headers and every offload, not blocking, in the namespace of the calling thread.
pub fn tap(name: &str) -> Result<File> {
    const OFFLOADS: u32 = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    let file = File::options().read(true).write(true).open("/dev/net/tun").context("/dev/net/tun")?;
    let fd = file.as_raw_fd();
    // SAFETY: all zeroes is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR)?;
    // SAFETY: `fd` is open, and each call gets what its request number asks for: a live `ifreq`, a flag word
    // by value, and flags by value.
    unsafe {
        check(libc::ioctl(fd, libc::TUNSETIFF, &raw mut request)).context("TUNSETIFF")?;
        check(libc::ioctl(fd, libc::TUNSETOFFLOAD, libc::c_ulong::from(OFFLOADS)))
            .context("TUNSETOFFLOAD")?;
        let flags = check(libc::fcntl(fd, libc::F_GETFL))?;
        check(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK))?;
    }
    Ok(file)
}

/// Waits until one of them can be read, or for 10 ms.
pub fn await_readable(fds: [RawFd; 2]) {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: two live `pollfd`s. What it returns does not matter: the caller reads both without blocking.
    unsafe { libc::poll(polled.as_mut_ptr(), 2, 10) };
}

/// How many cores are busy, on average over `span`: softirqs included.
pub fn busy_cores(span: Duration) -> Result<f64> {
    let begun = std::time::Instant::now();
    let (cores, idle) = idle_seconds()?;
    std::thread::sleep(span);
    let (_, idle_then) = idle_seconds()?;
    Ok(cores - (idle_then - idle) / begun.elapsed().as_secs_f64())
}

/// The number of cores, and the seconds that they have been idle in all.
fn idle_seconds() -> Result<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let cores = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    // user, nice, system, idle, iowait, ...
    let ticks = stat.lines().next().unwrap_or_default().split_whitespace().skip(4).take(2);
    let idle = ticks.map(str::parse::<u64>).sum::<Result<u64, _>>().context("/proc/stat")?;
    // SAFETY: takes an integer only.
    let a_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Ok((cores as f64, idle as f64 / a_second as f64))
}

/// Makes a connection use CUBIC, whatever the system's own choice is.
pub fn cubic(stream: &std::net::TcpStream) -> Result<()> {
    let name = b"cubic";
    let len = libc::socklen_t::try_from(name.len())?;
    // SAFETY: an open descriptor, and a live buffer of the length given.
    check(unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            len,
        )
    })
    .context("CUBIC")?;
    Ok(())
}

/// Segments that a connection has sent again.
pub fn sent_again(stream: RawFd) -> Result<u32> {
    // SAFETY: all zeroes is a valid `tcp_info`.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of_val(&info))?;
    // SAFETY: an open descriptor, and a live structure of the length given.
    check(unsafe {
        libc::getsockopt(stream, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut len)
    })
    .context("TCP_INFO")?;
    Ok(info.tcpi_total_retrans)
}

/// Keeps the calling thread on one core, so that the sender never takes the forwarder's.
pub fn pin(core: usize) {
    // SAFETY: all zeroes is an empty set; `core` is in range, and the set is live during the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// Gives the calling thread the larger part of its core, where that is permitted: a sender that other threads keep from
/// its core offers less than the limit, and then the limit is not measured. Not a real-time priority: that would keep
/// the kernel's own threads from the core, which carry the frames.
pub fn go_first() {
    // SAFETY: takes integers only; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -15) };
}

/// Sends datagrams of `payload` bytes as fast as the socket takes them, for `time`. Returns how many it took.
pub fn flood(to: (Ipv4Addr, u16), payload: usize, time: Duration) -> Result<u64> {
    const BATCH: usize = 64;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    let data = vec![0_u8; payload];
    let mut part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: payload };
    // SAFETY: all zeroes is a valid `mmsghdr`: no address, no data, no control message.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    for message in &mut messages {
        message.msg_hdr.msg_iov = &raw mut part;
        message.msg_hdr.msg_iovlen = 1;
    }
    let (from, mut sent) = (std::time::Instant::now(), 0);
    while from.elapsed() < time {
        // SAFETY: `BATCH` live messages, each pointing at `part`, which points at `data`; sending only reads.
        let n = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), BATCH as u32, 0) };
        sent += u64::try_from(n).unwrap_or(0);
    }
    Ok(sent)
}

/// A datagram socket whose kernel notes when each datagram arrived.
pub struct Stamped(UdpSocket);

impl Stamped {
    /// Listens on `port`; a receive ends after 200 ms without a datagram.
    pub fn bind(port: u16) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let fd = socket.as_raw_fd();
        for (option, value) in [(libc::SO_TIMESTAMPNS, 1_i32), (libc::SO_RCVBUFFORCE, 8 << 20)] {
            let len = libc::socklen_t::try_from(size_of::<i32>())?;
            // SAFETY: `fd` is open, and `value` is a live int of the length given.
            check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), len) })?;
        }
        Ok(Self(socket))
    }

    /// Length and time of arrival of the next datagram; `None` when none comes.
    pub fn receive(&self) -> Option<(usize, Duration)> {
        let mut data = [0_u8; 2_048];
        let mut control = [0_u64; 8];
        let mut part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
        // SAFETY: all zeroes is a valid `msghdr`; it then points at live buffers with their true lengths, and the
        // kernel writes within them. The control message is read only when the kernel says that it is whole and a
        // time stamp; `control` is aligned for it.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control);
            #[expect(clippy::disallowed_methods, reason = "descriptors do not come over UDP")]
            let received = libc::recvmsg(self.0.as_raw_fd(), &raw mut message, 0);
            let len = usize::try_from(received).ok()?;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            if header.is_null() || (*header).cmsg_type != libc::SO_TIMESTAMPNS {
                return None;
            }
            let time: libc::timespec = libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned();
            Some((len, Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?)))
        }
    }
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
