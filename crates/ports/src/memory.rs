//! A port whose other end is in the same process.
//!
//! Why: tests and benches drive the engine without a kernel in between.
//! From: two single-producer rings for each direction: one carries full frames, the other returns empty
//! buffers, so that nothing is allocated after the pair is made.
//! Not here: any loss. When the ring is full, the sender keeps its frame.
//! Invariant: frames arrive whole, once, in order; at most `slots` of them wait.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};
use plimsoll_wire::VnetHeader;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::contract::{Batch, Capabilities, Fds, Received, Trouble};
use crate::counters::{Counters, DropReason, Sending};
use crate::error::PortError;
use crate::ledger::{Ledger, Refused};

/// Options of a [`MemoryPort::pair`].
#[derive(Clone, Copy, Debug)]
pub struct MemoryConfig {
    /// Most frames that may wait in each direction.
    pub slots: usize,
    /// Largest frame in bytes, and the size of each slot.
    pub frame: usize,
    /// Frames larger than the MTU may pass, with a virtio-net header.
    pub segmentation: bool,
    /// Largest IP packet, for [`crate::Port::capabilities`].
    pub mtu: u32,
    /// Most frames that this end stages while the ring is full, as sockets do. With 0, `send` returns `Full` instead.
    pub staged: usize,
    /// Hardware address of the other end, like that of a TAP's interface.
    pub mac: Option<[u8; 6]>,
    /// Whether a file descriptor becomes readable when frames wait; costs a system call for each flush.
    pub wakes: bool,
    /// How many of the slots hold a frame of any size, where the others hold [`SHORT`] bytes; all do where this is absent.
    pub long: Option<usize>,
}

/// Bytes of a slot that is not for long frames.
pub const SHORT: usize = 2_048;

impl Default for MemoryConfig {
    /// 256 frames of 2 KiB, no segmentation, no file descriptor.
    fn default() -> Self {
        Self {
            slots: 256,
            frame: 2_048,
            segmentation: false,
            mtu: 1_500,
            staged: 0,
            mac: None,
            wakes: false,
            long: None,
        }
    }
}

/// One end of a pair of connected ports.
///
/// ```
/// use plimsoll_ports::{MemoryConfig, MemoryPort};
/// let (mut here, mut there) = MemoryPort::pair("demo", MemoryConfig::default()).unwrap();
/// here.send(&[7; 60], None).unwrap();
/// let mut buffer = [0; 2_048];
/// let frame = there.receive(&mut buffer).unwrap().unwrap();
/// assert_eq!(buffer[..frame.len], [7; 60]);
/// ```
#[derive(Debug)]
pub struct MemoryPort {
    name: String,
    config: MemoryConfig,
    outbox: Sender,
    inbox: Receiver,
    counters: Counters,
    ledger: Ledger,
    /// Whether the connection is cut, for both ends.
    cut: Arc<AtomicBool>,
}

impl MemoryPort {
    /// Makes two ends, each of which receives the frames that the other sends. They may live on different threads.
    ///
    /// # Errors
    /// When the process has no file descriptor left for `wakes`.
    pub fn pair(name: &str, config: MemoryConfig) -> Result<(Self, Self), PortError> {
        let (to_b, at_b) = direction(name, &config)?;
        let (to_a, at_a) = direction(name, &config)?;
        let cut = Arc::new(AtomicBool::new(false));
        let end = |side: &str, outbox, inbox| Self {
            cut: Arc::clone(&cut),
            name: format!("memory {name}/{side}"),
            config,
            outbox,
            inbox,
            counters: Counters::default(),
            ledger: Ledger::default(),
        };
        Ok((end("a", to_b, at_a), end("b", to_a, at_b)))
    }

    /// Takes the carrier away from both ends, or gives it back: frames that were sent still arrive, and no more are taken.
    pub fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }

    /// Whether the connection is cut.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Takes back the staged frames; see [`crate::Port::recall`].
    pub fn recall(&mut self, each: &mut dyn FnMut(&[u8], Option<&VnetHeader>)) {
        self.outbox.staged.drain(..).for_each(|(frame, vnet)| each(&frame, Some(&vnet)));
    }

    /// Takes the oldest frame; see [`crate::Port::receive`].
    ///
    /// # Errors
    /// [`Trouble::Gone`] when the other end has been dropped and no frame is left.
    #[inline]
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Trouble> {
        self.receive_with(buffer.len(), |frame, received| {
            buffer[..frame.len()].copy_from_slice(frame);
            *received
        })
    }

    /// Takes the oldest frame, of at most `room` bytes; see [`crate::Port::receive_with`].
    ///
    /// # Errors
    /// As for [`MemoryPort::receive`].
    #[inline]
    pub fn receive_with<R>(
        &mut self,
        room: usize,
        take: impl FnOnce(&[u8], &Received) -> R,
    ) -> Result<Option<R>, Trouble> {
        let Ok(slot) = self.inbox.full.pop() else {
            return if self.inbox.full.is_abandoned() { Err(Trouble::Gone) } else { self.rest() };
        };
        self.inbox.note = slot.note;
        let taken = if let Some(frame) = slot.frame(room) {
            self.counters.received(frame.len());
            let vnet = self.config.segmentation.then_some(slot.vnet);
            Some(take(frame, &Received { len: frame.len(), vnet, ..Received::default() }))
        } else {
            self.counters.lose(DropReason::Oversize);
            None
        };
        // There is room: exactly `slots` buffers exist. Without a sender the buffer is simply freed.
        let _ = self.inbox.empty.push(slot);
        Ok(taken)
    }

    /// Takes up to `most` frames, each of at most `room` bytes; see [`crate::Port::receive_batch`].
    ///
    /// # Errors
    /// As for [`MemoryPort::receive`].
    #[inline]
    pub fn receive_batch(
        &mut self,
        room: usize,
        most: usize,
        batch: &mut impl Batch,
    ) -> Result<usize, Trouble> {
        let most = self.inbox.full.slots().min(most);
        if most == 0 {
            return if self.inbox.full.is_abandoned() {
                Err(Trouble::Gone)
            } else {
                self.rest::<()>().map(|_| 0)
            };
        }
        if let Ok(slots) = self.inbox.full.read_chunk(most) {
            let (front, back) = slots.as_slices();
            for (at, slot) in front.iter().chain(back).enumerate() {
                if let Some(frame) = slot.frame(room) {
                    batch.look(at, frame);
                }
            }
        }
        // One by one: a slot must have left this ring before its sender has it again.
        for at in 0..most {
            let Ok(slot) = self.inbox.full.pop() else { return Ok(at) };
            self.inbox.note = slot.note;
            if let Some(frame) = slot.frame(room) {
                self.counters.received(frame.len());
                let vnet = self.config.segmentation.then_some(slot.vnet);
                batch.take(at, frame, &Received { len: frame.len(), vnet, ..Received::default() });
            } else {
                self.counters.lose(DropReason::Oversize);
            }
            // There is room: exactly `slots` buffers exist. Without a sender the buffer is simply freed.
            let _ = self.inbox.empty.push(slot);
        }
        Ok(most)
    }

    /// Whether no frame waits, and the other end, which is still there, rings no bell.
    #[must_use]
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.inbox.full.is_empty() && self.inbox.bell.is_none() && !self.inbox.full.is_abandoned()
    }

    /// A number that goes with each frame which is sent from now on: [`MemoryPort::received_note`].
    pub fn set_note(&mut self, note: u32) {
        self.outbox.note = note;
    }

    /// The number that the other end had set when it sent the frame which was received last.
    #[must_use]
    pub fn received_note(&self) -> u32 {
        self.inbox.note
    }

    /// Whether a frame waits to be received.
    #[must_use]
    pub fn has_frames(&self) -> bool {
        !self.inbox.full.is_empty()
    }

    /// Sends one frame; see [`crate::Port::send`].
    ///
    /// # Errors
    /// [`Trouble::Gone`] when the other end has been dropped, [`Trouble::Down`] while the connection is cut.
    pub fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        self.place(frame.len(), vnet, |room| {
            room.copy_from_slice(frame);
            true
        })
    }

    /// Sends a frame that `fill` writes; see [`crate::Port::place`].
    ///
    /// # Errors
    /// As for [`MemoryPort::send`].
    #[inline]
    pub fn place(
        &mut self,
        len: usize,
        vnet: Option<&VnetHeader>,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Sending, Trouble> {
        if len > self.config.frame {
            return Ok(self.counters.refuse(DropReason::Oversize));
        }
        if vnet.is_some() && !self.capabilities().allow(vnet) {
            return Ok(self.counters.refuse(DropReason::BadOffload));
        }
        if self.outbox.full.is_abandoned() {
            return Err(Trouble::Gone);
        }
        if self.is_down() {
            return Err(Trouble::Down);
        }
        let vnet = vnet.copied().unwrap_or_default();
        let slot = if self.outbox.staged.is_empty() { self.outbox.take(len) } else { None };
        if let Some(slot) = slot {
            if !self.outbox.put(slot, len, vnet, fill) {
                return Ok(Sending::Refused(DropReason::Gone));
            }
            self.ledger.take();
            return Ok(self.counters.sent(len));
        }
        if self.outbox.staged.len() == self.config.staged {
            return Ok(Sending::Full);
        }
        let mut frame = vec![0; len];
        if !fill(&mut frame) {
            return Ok(Sending::Refused(DropReason::Gone));
        }
        self.outbox.staged.push_back((frame, vnet));
        self.ledger.take();
        Ok(Sending::Sent)
    }

    /// Hands over staged frames, as far as there is room, and wakes the other end, if it wants to be woken.
    ///
    /// # Errors
    /// [`Trouble::Gone`] when the other end has been dropped while frames were staged; these are counted as lost.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        if !self.outbox.staged.is_empty() && self.outbox.full.is_abandoned() {
            let lost = self.outbox.staged.len();
            self.outbox.staged.clear();
            self.ledger.refuse(lost, lost as u64, DropReason::Gone);
            self.counters.gone(lost);
            return Err(Trouble::Gone);
        }
        if !self.outbox.staged.is_empty() && self.is_down() {
            return Err(Trouble::Down);
        }
        while let Some((frame, vnet)) = self.outbox.staged.pop_front() {
            let Some(slot) = self.outbox.take(frame.len()) else {
                self.outbox.staged.push_front((frame, vnet));
                break;
            };
            self.outbox.put(slot, frame.len(), vnet, |room| {
                room.copy_from_slice(&frame);
                true
            });
            self.counters.sent(frame.len());
        }
        if !self.outbox.rung {
            self.outbox.rung = true;
            if let Some(bell) = &self.outbox.bell {
                // Fails only when 2^64 - 2 wake-ups are unread: the other end is awake then.
                let _ = bell.write(1);
            }
        }
        Ok(())
    }

    /// Frames that are staged on this end.
    #[must_use]
    pub fn staged(&self) -> usize {
        self.outbox.staged.len()
    }

    /// Number of frames accepted by `send` so far, sent or not.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.ledger.taken()
    }

    /// Accepted frames that could not leave; see [`crate::Port::take_refused`].
    pub fn take_refused(&mut self) -> Option<Refused> {
        self.ledger.next_refused()
    }

    /// Hardware address of the other end.
    #[must_use]
    pub fn tenant_mac(&self) -> Option<[u8; 6]> {
        self.config.mac
    }

    /// The file descriptors to wait on.
    #[must_use]
    pub fn fds(&self) -> Fds {
        let receive = self.inbox.bell.as_ref().map(|bell| -> RawFd { bell.as_raw_fd() });
        Fds { receive, transmit: None }
    }

    /// Checks that the other end still exists.
    ///
    /// # Errors
    /// [`Trouble::Gone`] when it does not.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        if self.outbox.full.is_abandoned() { Err(Trouble::Gone) } else { Ok(()) }
    }

    /// The offloads and MTU of the port.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let whole = self.config.segmentation;
        Capabilities {
            takes_segmentation: whole,
            gives_segmentation: whole,
            udp_segmentation: whole,
            cwr_segmentation: whole,
            takes_partial_checksum: whole,
            mtu: self.config.mtu,
        }
    }

    /// The port's traffic so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The port's name for operators.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Resets the bell when no frame waits, and checks once more, as a frame may have come in between.
    fn rest<R>(&mut self) -> Result<Option<R>, Trouble> {
        if let Some(bell) = &self.inbox.bell {
            let _ = bell.read();
            if !self.inbox.full.is_empty() {
                let _ = bell.write(1);
            }
        }
        Ok(None)
    }
}

/// One end of a pair that carries values instead of frames, such as descriptors in benches.
#[derive(Debug)]
pub struct MemoryEnd<T> {
    out: Producer<T>,
    inbox: Consumer<T>,
}

impl<T> MemoryEnd<T> {
    /// Makes two ends with `slots` places in each direction.
    #[must_use]
    pub fn pair(slots: usize) -> (Self, Self) {
        let (to_b, at_b) = RingBuffer::new(slots);
        let (to_a, at_a) = RingBuffer::new(slots);
        (Self { out: to_b, inbox: at_a }, Self { out: to_a, inbox: at_b })
    }

    /// Sends `value`.
    ///
    /// # Errors
    /// The value, when there is no room.
    pub fn post(&mut self, value: T) -> Result<(), T> {
        self.out.push(value).map_err(|rtrb::PushError::Full(value)| value)
    }

    /// Takes the oldest value that waits.
    pub fn take(&mut self) -> Option<T> {
        self.inbox.pop().ok()
    }

    /// Whether a value waits to be taken.
    #[must_use]
    pub fn has_values(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Number of values that can be posted now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.out.slots()
    }
}

/// A buffer, full or empty.
#[derive(Debug)]
struct Slot {
    len: usize,
    note: u32,
    vnet: VnetHeader,
    bytes: Box<[u8]>,
}

impl Slot {
    /// Its frame, if that has at most `room` bytes.
    #[inline]
    fn frame(&self, room: usize) -> Option<&[u8]> {
        self.bytes.get(..self.len).filter(|frame| frame.len() <= room)
    }
}

/// The sending side of an end.
#[derive(Debug)]
struct Sender {
    full: Producer<Slot>,
    empty: Consumer<Slot>,
    /// Empty slots of a size that was not asked for when they came back: short ones, and long ones.
    spare: [Vec<Slot>; 2],
    note: u32,
    /// Staged frames, for tests: unlike the rings, this queue allocates.
    staged: VecDeque<(Vec<u8>, VnetHeader)>,
    bell: Option<Arc<EventFd>>,
    rung: bool,
    /// Whether all slots have one size.
    one_size: bool,
}

impl Sender {
    /// Hands over a frame that `fill` writes into this slot; false when it could not.
    #[inline]
    fn put(
        &mut self,
        mut slot: Slot,
        len: usize,
        vnet: VnetHeader,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        if !fill(&mut slot.bytes[..len]) {
            self.spare[usize::from(slot.bytes.len() > SHORT)].push(slot);
            return false;
        }
        slot.len = len;
        slot.note = self.note;
        slot.vnet = vnet;
        self.rung = false;
        let pushed = self.full.push(slot);
        debug_assert!(pushed.is_ok(), "the full ring has a place for every buffer");
        true
    }

    /// An empty slot for a frame of this length; long slots are kept for long frames.
    #[inline]
    fn take(&mut self, len: usize) -> Option<Slot> {
        if let Some(slot) = self.spare[usize::from(len > SHORT)].pop() {
            return Some(slot);
        }
        loop {
            let slot = self.empty.pop().ok()?;
            let is_long = slot.bytes.len() > SHORT;
            // Where all slots are long, none is kept.
            if is_long == (len > SHORT) || self.one_size {
                return Some(slot);
            }
            self.spare[usize::from(is_long)].push(slot);
        }
    }
}

/// The receiving side of an end.
#[derive(Debug)]
struct Receiver {
    full: Consumer<Slot>,
    empty: Producer<Slot>,
    note: u32,
    bell: Option<Arc<EventFd>>,
}

fn direction(name: &str, config: &MemoryConfig) -> Result<(Sender, Receiver), PortError> {
    let (full, at) = RingBuffer::new(config.slots);
    let (mut back, empty) = RingBuffer::new(config.slots);
    let long = config.long.unwrap_or(config.slots);
    for number in 0..config.slots {
        let size = if number < long { config.frame } else { config.frame.min(SHORT) };
        let bytes = vec![0; size].into_boxed_slice();
        let slot = Slot { len: 0, note: 0, vnet: VnetHeader::default(), bytes };
        let pushed = back.push(slot);
        debug_assert!(pushed.is_ok(), "the empty ring has `slots` places");
    }
    let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
    let bell =
        config.wakes.then(|| EventFd::from_value_and_flags(0, flags)).transpose().map_err(|errno| {
            PortError::system(
                "make a wake-up descriptor",
                format!("memory port `{name}`"),
                io::Error::from(errno),
            )
        })?;
    let bell = bell.map(Arc::new);
    let staged = VecDeque::new();
    let spare = [(); 2].map(|()| Vec::with_capacity(if config.long.is_some() { config.slots } else { 0 }));
    let one_size = config.long.is_none();
    Ok((
        Sender { full, empty, spare, note: 0, staged, bell: bell.clone(), rung: true, one_size },
        Receiver { full: at, empty: back, note: 0, bell },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(slots: usize) -> (MemoryPort, MemoryPort) {
        MemoryPort::pair("test", MemoryConfig { slots, frame: 128, ..MemoryConfig::default() }).unwrap()
    }

    /// Notes what a batch is asked.
    #[derive(Default)]
    struct Asked(Vec<(&'static str, usize, u8)>);

    impl Batch for Asked {
        fn look(&mut self, at: usize, frame: &[u8]) {
            self.0.push(("look", at, frame[0]));
        }

        fn take(&mut self, at: usize, frame: &[u8], received: &Received) {
            assert_eq!(received.len, frame.len());
            self.0.push(("take", at, frame[0]));
        }
    }

    #[test]
    fn a_batch_looks_at_all_frames_before_it_takes_one_and_slots_go_back() {
        let (mut a, mut b) = pair(3);
        for round in 0..4 {
            for (mark, len) in [(1, 20), (2, 100), (3, 20)] {
                assert_eq!(a.send(&vec![mark; len], None), Ok(Sending::Sent), "round {round}");
            }
            let mut asked = Asked::default();
            // The second frame is too long for the room.
            assert_eq!(b.receive_batch(60, 64, &mut asked), Ok(3));
            assert_eq!(asked.0, [("look", 0, 1), ("look", 2, 3), ("take", 0, 1), ("take", 2, 3)]);
        }
        assert_eq!((b.counters().rx_packets, b.counters().rx_dropped(DropReason::Oversize)), (8, 4));
        assert_eq!(b.receive_batch(60, 64, &mut Asked::default()), Ok(0));
        drop(a);
        assert_eq!(b.receive_batch(60, 64, &mut Asked::default()), Err(Trouble::Gone));
    }

    #[test]
    fn a_full_ring_keeps_the_frame_with_its_sender() {
        let (mut a, mut b) = pair(2);
        assert_eq!(a.send(&[1; 20], None), Ok(Sending::Sent));
        assert_eq!(a.send(&[2; 20], None), Ok(Sending::Sent));
        assert_eq!(a.send(&[3; 20], None), Ok(Sending::Full));
        let mut buffer = [0; 128];
        assert_eq!(b.receive(&mut buffer).unwrap().unwrap().len, 20);
        assert_eq!(a.send(&[3; 20], None), Ok(Sending::Sent));
        assert_eq!(a.counters().tx_packets, 3);
    }

    #[test]
    fn short_frames_leave_long_slots_to_long_ones_and_notes_arrive_with_their_frame() {
        let config = MemoryConfig { slots: 3, frame: 9_000, long: Some(1), ..MemoryConfig::default() };
        let (mut a, mut b) = MemoryPort::pair("test", config).unwrap();
        let mut send = |note, len: usize| {
            a.set_note(note);
            a.send(&vec![1; len], None)
        };
        assert_eq!(send(1, 60), Ok(Sending::Sent));
        assert_eq!(send(2, 2_048), Ok(Sending::Sent));
        assert_eq!(send(3, 60), Ok(Sending::Full), "the last slot is a long one");
        assert_eq!(send(4, 9_000), Ok(Sending::Sent));
        assert_eq!(send(5, 9_000), Ok(Sending::Full));
        let mut buffer = vec![0; 9_000];
        for (note, len) in [(1, 60), (2, 2_048), (4, 9_000)] {
            assert_eq!(b.receive(&mut buffer).unwrap().unwrap().len, len);
            assert_eq!(b.received_note(), note);
        }
        assert!(!b.has_frames());
        assert_eq!(send(6, 60), Ok(Sending::Sent));
        assert_eq!(send(7, 9_000), Ok(Sending::Sent));
    }

    #[test]
    fn what_was_sent_arrives_before_the_end_is_missed() {
        let (mut a, mut b) = pair(2);
        a.send(&[1; 20], None).unwrap();
        drop(a);
        let mut buffer = [0; 128];
        assert!(b.receive(&mut buffer).unwrap().is_some());
        assert_eq!(b.receive(&mut buffer), Err(Trouble::Gone));
        assert_eq!(b.send(&[1; 20], None), Err(Trouble::Gone));
        assert_eq!(
            b.counters(),
            Counters { rx_packets: 1, rx_bytes: 20, ..Counters::default() },
            "it kept the frame"
        );
    }

    #[test]
    fn frames_that_cannot_pass_are_counted_by_reason() {
        let (mut a, _b) = pair(2);
        let partial = VnetHeader { flags: VnetHeader::NEEDS_CSUM, ..VnetHeader::default() };
        assert_eq!(a.send(&[0; 129], None), Ok(Sending::Refused(DropReason::Oversize)));
        assert_eq!(a.send(&[0; 64], Some(&partial)), Ok(Sending::Refused(DropReason::BadOffload)));
        assert_eq!(a.counters().tx_dropped(DropReason::Oversize), 1);
        assert_eq!(a.counters().tx_dropped(DropReason::BadOffload), 1);
    }
}
