//! Writes the packets that crossed a link to a capture file that Wireshark reads.
//!
//! Why: a surprising figure is believed once its packets have been seen, with the scheduler's decisions.
//! From: pcapng through `pcap-file`, headers through `etherparse`: one interface for each link, nanoseconds, the
//! scheduler's decision as a packet's comment.
//! Not here: payload, which the simulator has none of; frames are cut behind their headers and keep their length.
//! Invariant: records stand in the order of time, and what is written changes nothing in the run.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, TcpHeader, TcpOptionElement, UdpHeader,
};
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use plimsoll_nic::{Nic, Transmit};
use plimsoll_units::{Nanos, Span};

use crate::flow::Flow;
use crate::packet::{Body, Packet};
use crate::said::{Header, Said, WINDOW_SCALE};
use crate::tcp::{self, Ecn};

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

/// The first bytes of each hardware address: locally administered, as in the lab.
const CARD: [u8; 2] = [0x02, 0x77];

/// `if_tsresol` for nanoseconds.
const NANOSECONDS: u8 = 9;

/// Payload in checksums: all zeros.
static NOTHING: [u8; 65_536] = [0; 65_536];

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

fn write_headers(to: &mut Vec<u8>, flow: &Flow, packet: &Packet, said: &mut Said) -> io::Result<()> {
    let (from, peer) = flow.way(packet.back);
    let card = |address: std::net::Ipv4Addr| {
        let [a, b, c, d] = address.octets();
        [CARD[0], CARD[1], a, b, c, d]
    };
    let ethernet = Ethernet2Header {
        source: card(from.address),
        destination: card(peer.address),
        ether_type: EtherType::IPV4,
    };
    ethernet.write(to)?;
    let protocol = if matches!(packet.body, Body::Tcp(_)) { IpNumber::TCP } else { IpNumber::UDP };
    let payload = u16::try_from(packet.len.saturating_sub(34)).unwrap_or(u16::MAX);
    let addresses = (from.address.octets(), peer.address.octets());
    let mut ip =
        Ipv4Header::new(payload, 64, protocol, addresses.0, addresses.1).map_err(io::Error::other)?;
    ip.dscp = from.dscp.try_into().unwrap_or_default();
    ip.dont_fragment = matches!(packet.body, Body::Tcp(_));
    match packet.body {
        Body::Datagram { number, offset, size, last } => {
            ip.identification = number as u16;
            ip.more_fragments = !last;
            ip.fragment_offset = IpFragOffset::try_new(offset / 8).unwrap_or_default();
            finish_ip(&mut ip, packet, Ecn::NotEct);
            ip.write(to)?;
            if offset == 0 {
                let (source_port, destination_port) = (from.port, peer.port);
                // A checksum of 0 is none, which IPv4 allows.
                let length = size.saturating_add(8);
                UdpHeader { source_port, destination_port, length, checksum: 0 }.write(to)?;
                to.extend_from_slice(&number.to_be_bytes()[..usize::from(size.min(8))]);
            }
        }
        Body::Tcp(body) => {
            finish_ip(&mut ip, packet, body.segment.map_or(Ecn::NotEct, |segment| segment.ecn));
            ip.write(to)?;
            let mut header = tcp_header(&body, (from.port, peer.port), said)?;
            let data = usize::try_from(body.len()).unwrap_or(0).min(NOTHING.len() - 128);
            header.checksum = header
                .calc_checksum_ipv4_raw(addresses.0, addresses.1, &NOTHING[..data])
                .map_err(io::Error::other)?;
            header.write(to)?;
        }
    }
    Ok(())
}

fn finish_ip(ip: &mut Ipv4Header, packet: &Packet, ecn: Ecn) {
    use etherparse::IpEcn;
    let ecn = if packet.ce { Ecn::Ce } else { ecn };
    ip.ecn = match ecn {
        Ecn::NotEct => IpEcn::ZERO,
        Ecn::Ect1 => IpEcn::ONE,
        Ecn::Ect0 => IpEcn::TWO,
        Ecn::Ce => IpEcn::THREE,
    };
    ip.header_checksum = ip.calc_header_checksum();
}

fn tcp_header(
    packet: &tcp::Packet,
    (source, destination): (u16, u16),
    said: &mut Said,
) -> io::Result<TcpHeader> {
    let Header { syn, ack, psh, cwr, ece, sequence, acknowledged, window } = said.header(packet);
    let mut header = TcpHeader::new(source, destination, sequence, window);
    (header.syn, header.ack, header.psh) = (syn, ack, psh);
    (header.cwr, header.ece) = (cwr, ece);
    header.acknowledgment_number = acknowledged;
    let millis = |at: Nanos| (at.as_u64() / 1_000_000) as u32;
    let sent = packet.segment.map_or(0, |segment| millis(segment.sent));
    let echo = packet.ack.map_or(0, |ack| millis(ack.echo));
    let mut options = Vec::with_capacity(8);
    if syn {
        let mss = packet.segment.map_or(1_448, |segment| segment.mss);
        options.extend([
            TcpOptionElement::MaximumSegmentSize(mss.saturating_add(12)),
            TcpOptionElement::SelectiveAcknowledgementPermitted,
            TcpOptionElement::Timestamp(sent, echo),
            TcpOptionElement::Noop,
            TcpOptionElement::WindowScale(WINDOW_SCALE),
        ]);
    } else {
        options.extend([
            TcpOptionElement::Noop,
            TcpOptionElement::Noop,
            TcpOptionElement::Timestamp(sent, echo),
        ]);
    }
    if let Some(ack) = packet.ack {
        let edge = |offset: u64| (offset as u32).wrapping_add(1);
        let mut blocks = ack.blocks().map(|block| (edge(block.start), edge(block.end)));
        if let Some(first) = blocks.next() {
            let rest = [blocks.next(), blocks.next(), None];
            options.extend([TcpOptionElement::Noop, TcpOptionElement::Noop]);
            options.push(TcpOptionElement::SelectiveAcknowledgement(first, rest));
        }
    }
    header.set_options(&options).map_err(io::Error::other)?;
    Ok(header)
}
