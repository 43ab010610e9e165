//! Copies frames out of and into a guest's buffers.
//!
//! Why: a frame may lie in several buffers, and a buffer in several pieces.
//! From: virtio 1.3, "Driver Requirements: Receive Buffers", `VIRTIO_NET_F_MRG_RXBUF`.
//! Not here: the ring itself (`ring`), and which pair of rings a frame takes.
//! Invariant: buffers that are taken are filled, or put back, or given back empty.

use super::ring::{Direction, Live, Next};
use crate::mapped::{MappedPlace, Memory, Part, SenderBytes};

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

/// Writes `pieces` and then `rest` one after the other into the buffers, and gives the buffers to the guest. If the bytes of `rest`
/// turn out to have disappeared, the buffers are put back, and the answer is no.
pub(super) fn put(
    live: &mut Live,
    memory: &Memory,
    (pieces, rest): (&[&[u8]], Option<&SenderBytes<'_>>),
    parts: &[Part],
    buffers: &[(u16, usize)],
) -> bool {
    let mut room = Room { memory, parts, at: 0 };
    pieces.iter().for_each(|piece| room.write(piece));
    if let Some(rest) = rest {
        rest.each(|other, (place, len)| room.copy(other, place, len));
        if !rest.is_intact() {
            live.untake(buffers.iter().map(|&(head, _)| head));
            return false;
        }
    }
    let mut left = pieces.iter().map(|piece| piece.len()).sum::<usize>() + rest.map_or(0, |rest| rest.len());
    let mut begin = 0;
    for &(head, end) in buffers {
        let written = parts[begin..end].iter().map(|&(_, len)| len).sum::<usize>().min(left);
        live.give(memory, head, written as u32);
        (left, begin) = (left - written, end);
    }
    true
}

/// What is left of a guest's buffers.
struct Room<'a> {
    memory: &'a Memory,
    parts: &'a [Part],
    /// Bytes of the first part that are written.
    at: usize,
}

impl Room<'_> {
    fn write(&mut self, mut bytes: &[u8]) {
        while let Some((place, count)) = self.next(bytes.len()) {
            let (now, later) = bytes.split_at(count);
            self.memory.write(place, now);
            bytes = later;
        }
    }

    fn copy(&mut self, other: &Memory, mut from: MappedPlace, mut len: usize) {
        while let Some((place, count)) = self.next(len) {
            self.memory.write_from(place, other, from, count);
            (from, len) = (from.plus(count), len - count);
        }
    }

    /// The next place for some of `len` bytes, and how many; none when there are none, or no room is left.
    #[inline]
    fn next(&mut self, len: usize) -> Option<Part> {
        loop {
            let (&(place, room), others) = self.parts.split_first()?;
            if len == 0 {
                return None;
            }
            if self.at < room {
                let found = (place.plus(self.at), len.min(room - self.at));
                self.at += found.1;
                return Some(found);
            }
            (self.parts, self.at) = (others, 0);
        }
    }
}
