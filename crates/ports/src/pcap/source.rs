//! Reads frames from a pcap or pcapng file.
//!
//! Why: a capture can be the source of a port's frames.
//! From: both formats, through the `pcap-file` crate. That crate reads every pcapng time as
//! nanoseconds, so the interface's own unit is applied here.
//! Not here: captures of anything but Ethernet; they are refused when opened, or skipped and counted.
//! Invariant: whatever the file contains, no frame is longer than the caller's buffer.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use pcap_file::pcap::{PcapReader, RawPcapPacket};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};
use plimsoll_units::Nanos;

use crate::counters::DropReason;
use crate::error::PortError;

/// A capture file being read.
pub(super) struct Source {
    path: PathBuf,
    reader: Decoder,
    finished: bool,
    problem: Option<PortError>,
}

/// The next item of the file.
pub(super) enum Item {
    /// A frame, copied to the buffer.
    Frame {
        /// Length of the frame.
        len: usize,
        /// Bytes of it that the file has.
        captured: usize,
        /// Time of capture.
        at: Nanos,
    },
    /// A record that cannot be used, with the reason to count it by.
    Lost(DropReason),
    /// The end of the file.
    End,
}

/// Opens the file, without reading it.
pub(super) fn open_file(path: &Path) -> Result<File, PortError> {
    File::open(path).map_err(|error| unreadable(path, format!("cannot be read: {error}")))
}

fn unreadable(path: &Path, problem: String) -> PortError {
    let advice = "give a pcap or pcapng file of Ethernet frames, such as `tcpdump -w` makes";
    PortError::File { path: path.to_owned(), problem, advice }
}

enum Decoder {
    Pcap(Box<PcapReader<BufReader<File>>>),
    PcapNg(Box<PcapNgReader<BufReader<File>>>),
}

impl Source {
    pub(super) fn over(path: &Path, mut file: File) -> Result<Self, PortError> {
        let unreadable = |problem: String| unreadable(path, problem);
        let mut magic = [0; 4];
        file.read_exact(&mut magic)
            .and_then(|()| file.rewind())
            .map_err(|error| unreadable(format!("cannot be read: {error}")))?;

        let (file, wrong) =
            (BufReader::new(file), |error: PcapError| unreadable(format!("is no capture: {error}")));
        let reader = if magic == PCAPNG_MAGIC {
            Decoder::PcapNg(Box::new(PcapNgReader::new(file).map_err(wrong)?))
        } else {
            let reader = PcapReader::new(file).map_err(wrong)?;
            let kind = reader.header().datalink;
            if kind != DataLink::ETHERNET {
                return Err(unreadable(format!("holds {kind:?} frames, not Ethernet")));
            }
            Decoder::Pcap(Box::new(reader))
        };
        Ok(Self { path: path.to_owned(), reader, finished: false, problem: None })
    }

    /// Copies the next frame to `buffer`. Blocks without a frame are skipped.
    pub(super) fn next(&mut self, buffer: &mut [u8]) -> Item {
        while !self.finished {
            let outcome = match &mut self.reader {
                Decoder::Pcap(reader) => next_pcap(reader, buffer),
                Decoder::PcapNg(reader) => next_pcapng(reader, buffer),
            };
            match outcome {
                Ok(Some(record)) => return record,
                Ok(None) => {}
                Err(None) => self.finished = true,
                Err(Some(error)) => return self.break_off(&error),
            }
        }
        Item::End
    }

    pub(super) fn finished(&self) -> bool {
        self.finished
    }

    pub(super) fn take_problem(&mut self) -> Option<PortError> {
        self.problem.take()
    }

    /// Ends a damaged file here, since the begin of the next record is unknown.
    fn break_off(&mut self, error: &PcapError) -> Item {
        self.finished = true;
        self.problem = Some(PortError::File {
            path: self.path.clone(),
            problem: format!("is damaged: {error}"),
            advice: "the frames before that place were used; the rest is skipped",
        });
        Item::Lost(DropReason::BadRecord)
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("path", &self.path)
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

/// An item, a block without a frame (`Ok(None)`), the end (`Err(None)`) or damage.
type ReadResult = Result<Option<Item>, Option<PcapError>>;

fn next_pcap(reader: &mut PcapReader<BufReader<File>>, buffer: &mut [u8]) -> ReadResult {
    let unit = reader.header().ts_resolution;
    // Not `next_packet`, which takes each frame that is longer than the capture's snap length for damage.
    let RawPcapPacket { ts_sec, ts_frac, orig_len, data, .. } =
        reader.next_raw_packet().ok_or(None)?.map_err(Some)?;
    let nanos = match unit {
        TsResolution::MicroSecond => u64::from(ts_frac).saturating_mul(1_000),
        TsResolution::NanoSecond => u64::from(ts_frac),
    };
    if nanos >= NANOS_PER_SECOND as u64 {
        return Err(Some(PcapError::InvalidField("a time beyond its second")));
    }
    let at = Nanos::new(u64::from(ts_sec) * NANOS_PER_SECOND as u64 + nanos);
    Ok(Some(fill(&data, orig_len, at, buffer)))
}

fn next_pcapng(reader: &mut PcapNgReader<BufReader<File>>, buffer: &mut [u8]) -> ReadResult {
    let (interface, time, record) = match reader.next_block().ok_or(None)?.map_err(Some)? {
        Block::EnhancedPacket(packet) => {
            let record = fill(&packet.data, packet.original_len, Nanos::ZERO, buffer);
            (packet.interface_id, packet.timestamp.as_nanos(), record)
        }
        // A simple packet has no time: it gets time zero.
        Block::SimplePacket(packet) => (0, 0, fill(&packet.data, packet.original_len, Nanos::ZERO, buffer)),
        _ => return Ok(None),
    };
    let Some(interface) = usize::try_from(interface).ok().and_then(|index| reader.interfaces().get(index))
    else {
        return Ok(Some(Item::Lost(DropReason::BadRecord)));
    };
    if interface.linktype != DataLink::ETHERNET {
        return Ok(Some(Item::Lost(DropReason::BadRecord)));
    }
    Ok(Some(match record {
        Item::Frame { len, captured, .. } => Item::Frame { len, captured, at: in_nanos(time, interface) },
        other => other,
    }))
}

/// Copies a frame and fills it up with zeroes to its length on the wire.
fn fill(data: &[u8], original_len: u32, at: Nanos, buffer: &mut [u8]) -> Item {
    let len = data.len().max(usize::try_from(original_len).unwrap_or(usize::MAX));
    if data.is_empty() {
        return Item::Lost(DropReason::BadRecord);
    }
    if len > buffer.len() {
        return Item::Lost(DropReason::Oversize);
    }
    buffer[..data.len()].copy_from_slice(data);
    buffer[data.len()..len].fill(0);
    Item::Frame { len, captured: data.len(), at }
}

/// `time` in the interface's unit, as nanoseconds since 1970; rounded down, saturating.
fn in_nanos(time: u128, interface: &InterfaceDescriptionBlock<'_>) -> Nanos {
    let (mut unit, mut offset) = (MICROSECONDS, 0);
    for option in &interface.options {
        match option {
            InterfaceDescriptionOption::IfTsResol(given) => unit = *given,
            InterfaceDescriptionOption::IfTsOffset(seconds) => offset = *seconds,
            _ => {}
        }
    }
    // The topmost bit selects powers of two, else powers of ten.
    let power = u32::from(unit & 0x7f);
    let per_second = if unit & 0x80 != 0 { 2u128.checked_pow(power) } else { 10u128.checked_pow(power) };
    let nanos = per_second.map_or(0, |per_second| time.saturating_mul(NANOS_PER_SECOND) / per_second);
    let nanos = nanos.saturating_add(u128::from(offset).saturating_mul(NANOS_PER_SECOND));
    Nanos::new(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// The first bytes of every pcapng file, in either byte order.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// `if_tsresol` when the file does not state it.
const MICROSECONDS: u8 = 6;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(options: Vec<InterfaceDescriptionOption<'static>>) -> InterfaceDescriptionBlock<'static> {
        let mut block = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
        block.options = options;
        block
    }

    #[test]
    fn times_are_in_the_interfaces_unit() {
        use InterfaceDescriptionOption::{IfTsOffset, IfTsResol};
        let cases = [
            (vec![], 7, 7_000),
            (vec![IfTsResol(9)], 7, 7),
            (vec![IfTsResol(3)], 7, 7_000_000),
            (vec![IfTsResol(12)], 7_999, 7),
            (vec![IfTsResol(0x80 | 10)], 512, 500_000_000),
            (vec![IfTsResol(9), IfTsOffset(2)], 7, 2_000_000_007),
            (vec![IfTsResol(0x7f)], 7, 0),
        ];
        for (options, time, nanos) in cases {
            let shown = format!("{options:?}");
            assert_eq!(in_nanos(time, &interface(options)), Nanos::new(nanos), "{shown}");
        }
    }

    #[test]
    fn a_cut_frame_is_filled_up_to_its_length() {
        let mut buffer = [0xff; 100];
        assert!(matches!(
            fill(&[1; 20], 60, Nanos::ZERO, &mut buffer),
            Item::Frame { len: 60, captured: 20, .. }
        ));
        assert_eq!((buffer[19], buffer[20], buffer[59], buffer[60]), (1, 0, 0, 0xff));
        let long = fill(&[1; 20], 101, Nanos::ZERO, &mut buffer);
        assert!(matches!(long, Item::Lost(DropReason::Oversize)));
    }
}
