//! Copies frames out of and into a guest's buffers.
//!
//! Why: a frame may lie in several buffers, and a buffer in several pieces.
//! From: virtio 1.3, "Driver Requirements: Receive Buffers", `VIRTIO_NET_F_MRG_RXBUF`.
//! Not here: the ring itself (`ring`), and which pair of rings a frame takes.
//! Invariant: buffers that are taken are filled, or put back, or given back empty.

use super::memory::Memory;
use super::ring::{Direction, Live, Next, Part};

/// Copies the first bytes of `parts` into `into` and removes them from `parts`; returns their number.
pub(super) fn take_front(memory: &Memory, parts: &mut Vec<Part>, into: &mut [u8]) -> usize {
    let (mut done, mut used) = (0, 0);
    for (place, len) in parts.iter_mut() {
        let count = (*len).min(into.len() - done);
        memory.read(*place, &mut into[done..done + count]);
        done += count;
        (*place, *len) = (place.plus(count), *len - count);
        if *len > 0 {
            break;
        }
        used += 1;
    }
    parts.drain(..used);
    done
}

/// The result of [`gather`].
pub(super) enum Gathered {
    /// The buffers are large enough.
    Enough,
    /// The guest has too few buffers posted now.
    Full,
    /// The buffers are too small, and the frame may not use another one.
    Short,
    /// A buffer's descriptors were invalid; it was given back.
    Bad,
}

/// Takes buffers for `len` bytes, at most `most` of them; unless they are enough, all are put back.
pub(super) fn gather(
    live: &mut Live,
    memory: &Memory,
    len: usize,
    most: usize,
    parts: &mut Vec<Part>,
    buffers: &mut Vec<(u16, usize)>,
) -> Gathered {
    let mut room = 0;
    let found = loop {
        if room >= len {
            return Gathered::Enough;
        }
        if buffers.len() == most {
            break Gathered::Short;
        }
        let begun = parts.len();
        match live.take(memory, Direction::In, parts) {
            Next::Head(head) => {
                room += parts[begun..].iter().map(|&(_, len)| len).sum::<usize>();
                buffers.push((head, parts.len()));
            }
            Next::Nothing => break Gathered::Full,
            // Earlier buffers cannot be put back behind this one: they go back to the guest empty.
            Next::Bad => {
                buffers.iter().for_each(|&(head, _)| live.give(memory, head, 0));
                return Gathered::Bad;
            }
        }
    };
    live.untake(buffers.iter().map(|&(head, _)| head));
    found
}

/// Writes `pieces` one after the other into the buffers, and gives the buffers to the guest.
pub(super) fn put(
    live: &mut Live,
    memory: &Memory,
    pieces: &[&[u8]],
    parts: &[Part],
    buffers: &[(u16, usize)],
) {
    let mut pieces = pieces.iter().copied();
    let mut piece = pieces.next().unwrap_or_default();
    let mut begin = 0;
    for &(head, end) in buffers {
        let mut written = 0;
        for &(mut place, mut room) in &parts[begin..end] {
            while room > 0 {
                if piece.is_empty() {
                    let Some(next) = pieces.next() else { break };
                    piece = next;
                }
                let (now, later) = piece.split_at(room.min(piece.len()));
                memory.write(place, now);
                (place, room, written, piece) =
                    (place.plus(now.len()), room - now.len(), written + now.len(), later);
            }
        }
        live.give(memory, head, written as u32);
        begin = end;
    }
}
