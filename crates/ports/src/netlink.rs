//! Reads the kernel's messages about interfaces.
//!
//! Why: whether an interface carries frames is told in these messages only, several of them in one read.
//! From: route netlink's `RTM_NEWLINK`; `IFF_LOWER_UP` and `IFF_RUNNING` (RFC 2863's operational state) of netdevice(7).
//! Not here: the socket (`carrier`), and all attributes of an interface, which nothing here needs. The library that sets up
//! interfaces (`nlink`) allocates a structure of every attribute for each message; two words of the header are enough.
//! Invariant: any bytes are read to an end; no field is read beyond the message that it belongs to.

/// Bytes of `nlmsghdr` and of `ifinfomsg`.
pub(crate) const HEADER: usize = 16;
pub(crate) const LINK: usize = 16;

/// What the messages say at last of the interface with this number: `false` if it carries no frames, as it is set down or has
/// no carrier; none where they say nothing of it.
#[must_use]
pub fn carries(mut messages: &[u8], interface: u32) -> Option<bool> {
    let mut last = None;
    while let Some(len) = word(messages, 0).map(|len| len as usize).filter(|&len| len >= HEADER) {
        // A message longer than the buffer was cut; the part that matters comes first.
        let message = &messages[..len.min(messages.len())];
        last = of_link(message, interface).or(last);
        messages = messages.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    last
}

/// What one message says of the interface.
fn of_link(message: &[u8], interface: u32) -> Option<bool> {
    const CARRIES: u32 = (libc::IFF_UP | libc::IFF_LOWER_UP | libc::IFF_RUNNING) as u32;
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    if kind != libc::RTM_NEWLINK || word(message, HEADER + 4)? != interface {
        return None;
    }
    let flags = word(message, HEADER + 8)?;
    Some(flags & CARRIES == CARRIES)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u16, index: u32, flags: u32) -> Vec<u8> {
        let mut message = 40_u32.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 14]);
        message.extend(index.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend([0; 12]);
        message
    }

    #[test]
    fn the_last_word_on_the_interface_counts() {
        let up = (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_LOWER_UP) as u32;
        let dormant = (libc::IFF_UP | libc::IFF_LOWER_UP) as u32;
        let new = |index, flags| message(libc::RTM_NEWLINK, index, flags);
        assert_eq!(carries(&new(7, up), 7), Some(true));
        assert_eq!(carries(&new(8, up), 7), None, "another interface");
        assert_eq!(carries(&[new(7, up), new(7, dormant), new(8, up)].concat(), 7), Some(false));
        assert_eq!(
            carries(&message(libc::RTM_DELLINK, 7, 0), 7),
            None,
            "that it is gone is told in another way"
        );
        assert_eq!(carries(&new(7, up)[..27], 7), None, "a part");
        assert_eq!(carries(&new(7, 0), 7), Some(false), "set down");
        let mut short = message(libc::RTM_NEWLINK, 7, dormant);
        short[0] = 16;
        assert_eq!(carries(&short, 7), None, "a header alone; the words behind it are not its own");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..200), len in 0_u32..64) {
            let mut bytes = bytes;
            if let Some(place) = bytes.get_mut(..4) { place.copy_from_slice(&len.to_ne_bytes()) }
            let _ = carries(&bytes, 7);
        }

        /// A whole message in front is read by itself, and what is behind it as without it.
        #[test]
        fn messages_are_read_apart(
            rest in proptest::collection::vec(any::<u8>(), 0..200),
            kind in prop::sample::select(vec![libc::RTM_NEWLINK, libc::RTM_DELLINK, libc::NLMSG_DONE as u16]),
            index in 6_u32..9,
            flags in any::<u32>(),
        ) {
            let first = message(kind, index, flags);
            let said = carries(&rest, 7).or_else(|| carries(&first, 7));
            prop_assert_eq!(carries(&[first, rest].concat(), 7), said);
        }
    }
}
