//! What the live tests share: namespaces of their own, a patient clock, frames.

pub mod guest;
pub mod itself;
pub mod linger;

use std::fmt::Display;
use std::time::{Duration, Instant};

use plimsoll_ports::netns::Netns;
use plimsoll_ports::{Port, Sending, Trouble};

/// Says why a live test does nothing. Where `PLIMSOLL_REQUIRE_LIVE=1` asks for all of them, that is a failure: the
/// output of a passing test is not shown.
pub fn skip(why: impl Display) {
    assert!(std::env::var_os("PLIMSOLL_REQUIRE_LIVE").is_none_or(|value| value != "1"), "SKIPPED: {why}");
    eprintln!("SKIPPED: {why}");
}

/// Whether this process may make namespaces; skips when not.
pub fn live() -> bool {
    match Netns::anonymous("probe") {
        Ok(_) => true,
        Err(error) => {
            skip(format_args!("live tests need root or a user namespace: {error}"));
            false
        }
    }
}

/// A namespace without a name and without IPv6 chatter, so that counts can be exact.
pub fn quiet(label: &str) -> Netns {
    let netns = Netns::anonymous(label).expect("make a namespace");
    for which in ["all", "default"] {
        // A kernel without IPv6 has no such key, and no such chatter.
        let _ = netns.set_sysctl(&format!("net.ipv6.conf.{which}.disable_ipv6"), "1");
    }
    netns
}

/// Asks again until `ready` says yes, at most `PATIENCE`.
pub fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How long anything here may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// An Ethernet frame of an experimental protocol, numbered.
pub fn numbered(number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0x5a; len];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

/// The number of such a frame; `None` for any other.
pub fn number_of(frame: &[u8]) -> Option<u32> {
    (frame.get(12..14)? == [0x88, 0xb5]).then(|| frame[14..18].try_into().map(u32::from_be_bytes).ok())?
}

/// A first frame waits while the far end, a device of `far`, has no carrier, and a second one is refused until it has one again.
pub fn waits_without_a_carrier(sender: &mut Port, far: &Netns, device: &str) {
    until("a carrier", || !sender.is_down());
    assert_eq!(sender.send(&numbered(0, 100), None), Ok(Sending::Sent));
    far.links().set_down(device).unwrap();
    until("no carrier", || sender.is_down());
    assert_eq!(sender.flush(), Err(Trouble::Down), "the frame waits");
    assert_eq!(sender.send(&numbered(1, 100), None), Err(Trouble::Down));
    assert_eq!((sender.staged(), sender.counters().tx_packets), (1, 0), "not sent, and not counted as sent");

    far.links().set_up(device).unwrap();
    until("a carrier again", || !sender.is_down());
    assert_eq!(sender.send(&numbered(1, 100), None), Ok(Sending::Sent));
}
