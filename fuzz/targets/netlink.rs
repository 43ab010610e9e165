//! The kernel's messages about interfaces, of any bytes: read to an end, each by itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_ports::netlink::carries;

/// A whole `RTM_NEWLINK` of this interface, as far as it is read.
fn message(interface: u8, up: bool) -> Vec<u8> {
    const NEWLINK: u16 = 16;
    // IFF_UP, IFF_RUNNING and IFF_LOWER_UP; a link without carrier has the first only.
    let flags: u32 = if up { 0x1 | 0x40 | 0x1_0000 } else { 0x1 };
    let mut bytes = 32_u32.to_ne_bytes().to_vec();
    bytes.extend(NEWLINK.to_ne_bytes());
    bytes.extend([0; 14]);
    bytes.extend(u32::from(interface).to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes
}

// The interface's number, then messages.
fuzz_target!(|data: &[u8]| {
    let [interface, messages @ ..] = data else { return };
    let alone = carries(messages, u32::from(*interface));
    // A whole message in front changes nothing of what is read behind it.
    for (other, up) in [(*interface, true), (*interface, false), (interface.wrapping_add(1), false)] {
        let first = (other == *interface).then_some(up);
        let both = [message(other, up), messages.to_vec()].concat();
        assert_eq!(carries(&both, u32::from(*interface)), alone.or(first));
    }
});
