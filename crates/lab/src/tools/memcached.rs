//! `memcached`: the real server, and a client of the lab's own that asks for values set beforehand.
//!
//! Why: a key-value store is a typical application that depends on latency.
//! From: memcached's text protocol: `get KEY`, answered by `VALUE KEY FLAGS LENGTH`, the value, `END`.
//! Not here: the times of requests (`traffic::rpc`).

use super::{log, run_until_end, wait_until_bound};
use crate::command::Running;
use crate::error::LabError;
use crate::traffic::{Protocol, Side, ask as ask_all, ask_datagrams};
use plimsoll_scenario::WorkloadResult;
use plimsoll_units::Bytes;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Number of keys, which are asked for in turn.
const KEYS: usize = 100;
/// memcached's limit for keys, in bytes.
const LONGEST_KEY: usize = 250;
/// memcached's limit for values, in bytes.
const LARGEST_VALUE: usize = 1_000_000;

pub(super) fn serve(
    side: &Side<'_>,
    (key, value): (Bytes, Bytes),
    udp: bool,
    ready: &dyn Fn(),
) -> Result<WorkloadResult, LabError> {
    let port = side.job.workload.port;
    let datagrams = if udp { port } else { 0 };
    let line = format!("-u root -l 0.0.0.0 -p {port} -U {datagrams} -m 256 -t 2 -R 1");
    let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let mut server = Running::start(Path::new("memcached"), &args, &log(side, "server"))?;
    wait_until_bound(side, &mut server, true)?;
    fill(port, key, value).map_err(|e| side.failed("set memcached's values", e))?;
    ready();
    run_until_end(side, &mut server, side.last());
    match server.ended() {
        Some(status) => {
            Err(side.failed("memcached ended early", format!("{status}; {}", server.last_words())))
        }
        None => Ok(WorkloadResult::default()),
    }
}

/// Sets every key over the loopback interface, so that these packets do not cross the uplink.
fn fill(port: u16, key: Bytes, value: Bytes) -> std::io::Result<()> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let (mut stream, value) = (stream, vec![b'v'; value_len(value)]);
    stream.set_nodelay(true)?;
    for number in 0..KEYS {
        let mut set = format!("set {} 0 0 {}\r\n", name(number, key), value.len()).into_bytes();
        set.extend_from_slice(&value);
        set.extend_from_slice(b"\r\n");
        stream.write_all(&set)?;
        let mut answer = String::new();
        answers.read_line(&mut answer)?;
        if answer.trim() != "STORED" {
            return Err(std::io::Error::other(format!("it answered `{}`", answer.trim())));
        }
    }
    Ok(())
}

pub(super) fn ask(
    side: &Side<'_>,
    key: Bytes,
    value: Bytes,
    connections: u32,
    rate: Option<u32>,
) -> Result<WorkloadResult, LabError> {
    ask_all(side, &mut Gets::new(key, value), connections, rate)
}

/// Asks by datagrams, `rate` times a second at random moments (1,000 unless stated); an answer is known by the number that its request has
/// in memcached's header.
pub(super) fn ask_by_datagrams(
    side: &Side<'_>,
    key: Bytes,
    value: Bytes,
    rate: Option<u32>,
) -> Result<WorkloadResult, LabError> {
    let mut gets = Gets::new(key, value);
    let mut request = |number: u16, datagram: &mut Vec<u8>| {
        datagram.clear();
        datagram.extend_from_slice(&header(number));
        datagram.extend_from_slice(gets.request());
    };
    ask_datagrams(side, rate.unwrap_or(DATAGRAMS), &mut request, &answered)
}

/// The number of the request that a datagram answers; of an answer in several datagrams the last one counts.
fn answered(datagram: &[u8]) -> Option<u16> {
    let field = |at: usize| Some(u16::from_be_bytes(datagram.get(at..at + 2)?.try_into().ok()?));
    (field(2)?.wrapping_add(1) == field(4)?).then(|| field(0)).flatten()
}

/// Requests a second by datagrams where no rate is stated.
const DATAGRAMS: u32 = 1_000;

/// memcached's header of a datagram: the request's number, the datagram's among so many, and two bytes that mean nothing.
fn header(number: u16) -> [u8; 8] {
    let [high, low] = number.to_be_bytes();
    [high, low, 0, 0, 0, 1, 0, 0]
}

/// The protocol of `get` requests for the keys in turn.
struct Gets {
    requests: Vec<Vec<u8>>,
    next: usize,
    answer: usize,
    received: Vec<usize>,
}

impl Gets {
    fn new(key: Bytes, value: Bytes) -> Self {
        let names: Vec<String> = (0..KEYS).map(|number| name(number, key)).collect();
        let value = value_len(value);
        let head = format!("VALUE {} 0 {value}\r\n", names[0]).len();
        Self {
            requests: names.iter().map(|name| format!("get {name}\r\n").into_bytes()).collect(),
            next: 0,
            answer: head + value + "\r\nEND\r\n".len(),
            received: Vec::new(),
        }
    }
}

impl Protocol for Gets {
    fn request(&mut self) -> &[u8] {
        self.next = (self.next + 1) % self.requests.len();
        &self.requests[self.next]
    }

    fn take(&mut self, slot: usize, bytes: &[u8]) -> bool {
        if self.received.len() <= slot {
            self.received.resize(slot + 1, 0);
        }
        self.received[slot] += bytes.len();
        let whole = self.received[slot] >= self.answer;
        if whole {
            self.received[slot] = 0;
        }
        whole
    }
}

/// Key number `number`, padded to the wanted length.
fn name(number: usize, key: Bytes) -> String {
    let length = usize::try_from(key.as_u64()).unwrap_or(usize::MAX).clamp(4, LONGEST_KEY);
    format!("k{number:0width$}", width = length - 1)
}

fn value_len(value: Bytes) -> usize {
    usize::try_from(value.as_u64()).unwrap_or(usize::MAX).clamp(1, LARGEST_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_with_its_last_byte() {
        let mut gets = Gets::new(Bytes::new(8), Bytes::new(4));
        assert_eq!(gets.request(), b"get k0000001\r\n");
        let answer = b"VALUE k0000001 0 4\r\nvvvv\r\nEND\r\n";
        assert_eq!(gets.answer, answer.len());
        assert!(!gets.take(3, &answer[..10]));
        assert!(gets.take(3, &answer[10..]));
        assert!(!gets.take(3, &answer[..1]));
    }

    #[test]
    fn the_last_datagram_of_an_answer_tells_its_request() {
        assert_eq!(answered(&header(0x1234)), Some(0x1234));
        assert_eq!(answered(&[1, 2, 0, 0, 0, 2, 0, 0]), None, "the first of two");
        assert_eq!(answered(&[1, 2, 0, 1, 0, 2, 0, 0]), Some(0x0102));
        assert_eq!(answered(&[1, 2, 0]), None);
    }
}
