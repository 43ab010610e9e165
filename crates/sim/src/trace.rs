//! Writes the packets that crossed a link to a capture file that Wireshark reads.
//!
//! Why: a surprising figure is believed once its packets have been seen, with the scheduler's decisions.
//! From: pcapng through `pcap-file`: one interface for each link, nanoseconds, the
//! scheduler's decision as a packet's comment.
//! Not here: headers (`frame`), and payload, which the simulator has none of; frames are cut behind their headers and keep their length.
//! Invariant: records stand in the order of time, and what is written changes nothing in the run.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use plimsoll_nic::{Nic, Transmit};
use plimsoll_units::{Nanos, Span};

use crate::flow::Flow;
use crate::frame::write_headers;
use crate::packet::Packet;
use crate::said::Said;

/// A trace to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The file, in pcapng. With several runs each has a file of its own, named after its system and seed.
    pub file: PathBuf,
    /// Names of the links to trace; if empty, every host's own link.
    pub at: Vec<String>,
}

/// A capture being written.
pub(crate) struct Tracer {
    file: PcapNgWriter<BufWriter<File>>,
    /// By link and flow: the last header fields of each end.
    said: Vec<Vec<[Said; 2]>>,
    frame: Vec<u8>,
    problem: Option<io::Error>,
}

/// `if_tsresol` for nanoseconds.
const NANOSECONDS: u8 = 9;

impl Tracer {
    /// Creates the file, with an interface for each link.
    pub(crate) fn create(path: &Path, links: &[String], flows: usize) -> io::Result<Self> {
        let mut file = PcapNgWriter::new(BufWriter::new(File::create(path)?)).map_err(io::Error::other)?;
        for link in links {
            let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
            interface.options.push(InterfaceDescriptionOption::IfName(Cow::Borrowed(link)));
            interface.options.push(InterfaceDescriptionOption::IfTsResol(NANOSECONDS));
            file.write_pcapng_block(interface).map_err(io::Error::other)?;
        }
        Ok(Self {
            file,
            said: vec![vec![[Said::default(); 2]; flows]; links.len()],
            frame: Vec::new(),
            problem: None,
        })
    }

    /// Records a packet that crosses link number `interface`.
    pub(crate) fn record(
        &mut self,
        interface: u32,
        flow: &Flow,
        packet: &Packet,
        now: Nanos,
        comment: Option<&str>,
    ) {
        self.frame.clear();
        let said = &mut self.said[interface as usize][packet.flow as usize][usize::from(packet.back)];
        let written = write_headers(&mut self.frame, flow, packet, said);
        let comment = comment.map(|text| EnhancedPacketOption::Comment(Cow::Borrowed(text)));
        let block = EnhancedPacketBlock {
            interface_id: interface,
            timestamp: Duration::from_nanos(now.as_u64()),
            original_len: packet.len,
            data: Cow::Borrowed(&self.frame),
            options: comment.into_iter().collect(),
        };
        let written = written.and_then(|()| self.file.write_pcapng_block(block).map_err(io::Error::other));
        if let Err(problem) = written {
            self.problem.get_or_insert(problem);
        }
    }

    /// Flushes the file, and reports the first error of all writes.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.problem.map_or(Ok(()), Err)?;
        self.file.into_inner().flush()
    }
}

impl core::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Tracer").field("problem", &self.problem).finish_non_exhaustive()
    }
}

/// The scheduler's decision about a packet that leaves now, in words.
pub(crate) fn decision(transmit: &Transmit, engine: &Nic, now: Nanos) -> String {
    let program = engine.program();
    let class = &program.node(transmit.class).name;
    let mut text = format!("class {class}; waited {}", now.since(transmit.arrived));
    let _ = write!(text, ", {} at the head", now.since(transmit.head));
    if let Some(limit) = transmit.limited_by.filter(|_| transmit.limited > Span::ZERO) {
        let _ =
            write!(text, "; held {} by limits, longest by {}", transmit.limited, program.limit(limit).name);
    }
    let ranks = engine.ranks(transmit.class);
    for (n, rank) in ranks.iter().enumerate() {
        let before = if n == 0 { "; ranks now:" } else { "," };
        let _ = write!(
            text,
            "{before} {} in {} {}",
            program.node(rank.child).name,
            program.node(rank.node).name,
            rank.rank
        );
    }
    text
}
