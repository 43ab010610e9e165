//! `get` requests that a tenant's program answers in place of memcached, beside memcached itself.
//!
//! Why: a cache on the NIC is of use if it answers more than the server whose answers it keeps.
//! From: `examples/programs/cache.c` behind a vNIC, with one client process; and Debian's memcached with one thread over loopback.
//! Not here: what a program costs by itself (`programs`).
//! Invariant: on both sides a client has one core and what answers has the other; the same requests, as many of them on their way.

use std::mem::zeroed;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use plimsoll_vnic::{FlowSpec, Vnic};

use crate::forward::Sink;
use crate::net;
use crate::programs::compile;
use crate::report::{Goal, Row};
use crate::testpmd::{SPAN, WARM_UP};

/// Requests on their way, and those that are sent together.
const WINDOW: u64 = 256;
const BATCH: u64 = 32;

/// Keys that are asked for in turn.
const KEYS: usize = 64;

const STORE: [u8; 4] = [10, 99, 0, 1];
const USER: [u8; 4] = [10, 99, 0, 2];
const SERVER: u16 = 11_211;
const CLIENT: u16 = 10_000;

/// Answers a second.
pub fn measure(plimsoll: &Path, rounds: u32) -> Result<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    let module = compile(folder.path(), "cache", false)?;
    let (mut peer, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        peer.push(memcached()?);
        ours.push(cache(plimsoll, &module)?);
    }
    Ok(vec![
        Row::new("`get` answered by a tenant's program, vNIC to vNIC", "memcached -t 1, UDP", "answers/s")
            .figures(&peer, &ours)
            .goal(Goal::AtLeast(2e6))
            .note("a core for the engine, or memcached; one for the client, which has no kernel between with a vNIC"),
    ])
}

fn cache(plimsoll: &Path, module: &Path) -> Result<f64> {
    let sink = Sink::new(plimsoll, &["store", "user"], |socket| {
        let program = format!(", program: {{module: {}}}", module.display());
        let more = if socket.ends_with("store") { program } else { String::new() };
        format!("{{vnic: {socket}}}{more}")
    })?;
    let client = Command::new(std::env::current_exe()?)
        .arg("--vnic-client")
        .arg(sink.socket("store"))
        .args(["--vnic-role", "ask"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("the client")?
        .wait_with_output()?;
    let said = String::from_utf8_lossy(&client.stderr);
    ensure!(client.status.success(), "the client failed: {said}{}", sink.words());
    String::from_utf8(client.stdout)?.trim().parse().context("the client's figure")
}

/// The client process, and the server behind the program: what the server answers passes the program on its way to the user, and is kept there
/// for a second.
pub fn client(store: &Path) -> Result<()> {
    net::pin(0);
    let mut user = Vnic::connect(store.with_file_name("user"))?;
    let mut store = Vnic::connect(store)?;
    let macs = [&store, &user].map(|vnic| vnic.identity().mac);
    let spec = |from, to, ports| FlowSpec {
        addresses: Some((<[u8; 4]>::into(from), <[u8; 4]>::into(to))),
        protocol: Some(17),
        ports: Some(ports),
        ..FlowSpec::default()
    };
    let asks = user.open_flow(&spec(USER, STORE, (CLIENT, SERVER))).context("a flow queue")?;
    let says = store.open_flow(&spec(STORE, USER, (SERVER, CLIENT))).context("a flow queue")?;
    let mut into = [0; 2_048];
    let request = |key| datagram([macs[1], macs[0]], [USER, STORE], (CLIENT, SERVER), &get(key));
    let requests: Vec<_> = (0..KEYS).map(request).collect();
    let values: Vec<_> = (0..KEYS)
        .map(|key| datagram([macs[0], macs[1]], [STORE, USER], (SERVER, CLIENT), &value(key)))
        .collect();
    let (mut sent, mut served) = (0_u64, 0_u64);
    let per_second = window(|on_their_way| {
        let mut posted = 0;
        while posted < BATCH.min(WINDOW - on_their_way) {
            if user.send(asks, &requests[sent as usize % KEYS]).is_err() {
                break;
            }
            (sent, posted) = (sent + 1, posted + 1);
        }
        user.ring()?;
        user.poll_completions(|_| {});
        while let Some(len) = store.receive(&mut into) {
            let _ = store.send(says, &values[key_in(&into[..len])?]);
            store.ring()?;
            served += 1;
        }
        store.poll_completions(|_| {});
        let mut answers = 0;
        while let Some(len) = user.receive(&mut into) {
            ensure!(into[..len].ends_with(b"END\r\n"), "no answer: {:?}", &into[..len]);
            answers += 1;
        }
        Ok((posted, answers))
    })?;
    ensure!(served * 50 < sent, "the server was asked {served} of {sent} times");
    println!("{per_second}");
    Ok(())
}

fn memcached() -> Result<f64> {
    let port = 21_211_u16;
    let mut server = Command::new("taskset")
        .args(["-c", "1", "memcached", "-u", "root", "-l", "127.0.0.1", "-t", "1"])
        .args(["-p", &port.to_string(), "-U", &port.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("memcached, which scripts/setup.sh installs")?;
    let answered = std::thread::scope(|scope| {
        scope.spawn(|| asked(port)).join().unwrap_or_else(|_| bail!("a bench thread panicked"))
    });
    let _ = server.kill();
    let _ = server.wait();
    answered
}

/// Answers a second of the memcached at this port.
fn asked(port: u16) -> Result<f64> {
    net::pin(0);
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    let mut answer = [0; 2_048];
    let begun = Instant::now();
    for key in 0..KEYS {
        let text = format!("set {} 0 0 32\r\n{}\r\n", name(key), "v".repeat(32));
        while socket.send(&message(text.as_bytes())).is_err() || socket.recv(&mut answer).is_err() {
            ensure!(begun.elapsed() < Duration::from_secs(10), "memcached does not answer");
        }
    }
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let requests: Vec<_> = (0..KEYS).map(get).collect();
    let mut sent = 0_usize;
    window(|on_their_way| {
        let count = BATCH.min(WINDOW - on_their_way) as usize;
        let place = |at: *mut u8, len| libc::iovec { iov_base: at.cast(), iov_len: len };
        let next = |n: usize| &requests[(sent + n) % KEYS];
        let mut places: Vec<_> =
            (0..count).map(|n| place(next(n).as_ptr().cast_mut(), next(n).len())).collect();
        let posted = many(&socket, &mut places, true);
        sent += posted as usize;
        let mut rooms = [[0_u8; 128]; 2 * BATCH as usize];
        let mut places: Vec<_> = rooms.iter_mut().map(|room| place(room.as_mut_ptr(), room.len())).collect();
        let answers = many(&socket, &mut places, false);
        Ok((posted, answers))
    })
}

/// Sends these datagrams, or receives some into these places, by one system call.
fn many(socket: &UdpSocket, places: &mut [libc::iovec], sends: bool) -> u64 {
    let header = |place: &mut libc::iovec| {
        // SAFETY: zeroes are a message without address and options.
        let mut header: libc::mmsghdr = unsafe { zeroed() };
        (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (place, 1);
        header
    };
    let mut headers: Vec<_> = places.iter_mut().map(header).collect();
    let (at, count) = (headers.as_mut_ptr(), headers.len() as u32);
    // SAFETY: each header has a place of its own, which lives until after the call.
    let done = unsafe {
        if sends {
            libc::sendmmsg(socket.as_raw_fd(), at, count, libc::MSG_DONTWAIT)
        } else {
            libc::recvmmsg(socket.as_raw_fd(), at, count, libc::MSG_DONTWAIT, std::ptr::null_mut())
        }
    };
    u64::try_from(done).unwrap_or(0)
}

/// Keeps requests on their way, and answers how many were answered in a second. A request that got lost is made up for.
fn window(mut turn: impl FnMut(u64) -> Result<(u64, u64)>) -> Result<f64> {
    let (mut on_their_way, mut answered) = (0_u64, 0_u64);
    let (start, mut last) = (Instant::now(), Instant::now());
    let mut begun = None;
    loop {
        let (posted, answers) = turn(on_their_way)?;
        answered += answers;
        on_their_way = (on_their_way + posted).saturating_sub(answers);
        let now = Instant::now();
        if answers > 0 {
            last = now;
        } else if now - last > Duration::from_millis(20) {
            (on_their_way, last) = (0, now);
        }
        match begun {
            None if now - start >= WARM_UP => begun = Some((now, answered)),
            Some((at, before)) if now - at >= SPAN => {
                return Ok((answered - before) as f64 / (now - at).as_secs_f64());
            }
            _ => {}
        }
    }
}

fn name(key: usize) -> String {
    format!("key{key:04}")
}

/// The number of the key that a request asks for.
fn key_in(frame: &[u8]) -> Result<usize> {
    let text = frame.get(42 + 8 + 7..).and_then(<[u8]>::first_chunk::<4>).context("a request")?;
    std::str::from_utf8(text)?.parse().context("a number")
}

/// A message of memcached's in one datagram.
fn message(text: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 0, 0, 1, 0, 0], text].concat()
}

fn get(key: usize) -> Vec<u8> {
    message(format!("get {}\r\n", name(key)).as_bytes())
}

fn value(key: usize) -> Vec<u8> {
    message(format!("VALUE {} 0 32\r\n{}\r\nEND\r\n", name(key), "v".repeat(32)).as_bytes())
}

/// UDP over IPv4, without a UDP checksum.
fn datagram(
    [from_mac, to_mac]: [[u8; 6]; 2],
    [from, to]: [[u8; 4]; 2],
    (from_port, to_port): (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let udp = payload.len() as u16 + 8;
    let mut ip = [0; 20];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&(udp + 20).to_be_bytes());
    (ip[8], ip[9]) = (64, 17);
    ip[12..16].copy_from_slice(&from);
    ip[16..20].copy_from_slice(&to);
    let mut sum: u32 = ip.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    while sum >> 16 > 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let ports = [from_port.to_be_bytes(), to_port.to_be_bytes(), udp.to_be_bytes(), [0, 0]].concat();
    [&to_mac[..], &from_mac, &[8, 0], &ip, &ports, payload].concat()
}
