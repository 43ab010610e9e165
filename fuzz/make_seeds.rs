//! Writes the seeds of the binary targets: good frames of every kind, from which the fuzzer starts.
//!
//! $ cargo run --release --example seeds
//! wrote 42 seeds
//!
//! The texts under `seeds/policy` are written by hand.

#[path = "../crates/ports/tests/it/support/guest.rs"]
#[allow(dead_code)]
mod guest;
#[path = "targets/sizes.rs"]
mod sizes;

use std::fs;
use std::path::Path;

use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic, Outcome};
use plimsoll_policy::{Fields, TenantId};
use plimsoll_record::{Limits, Recorded, Recorder, SharedSink};
use plimsoll_units::Nanos;
use plimsoll_vnic::layout::header;
use plimsoll_vnic::message::Message;
use plimsoll_vnic::{FlowSpec, Layout};
use plimsoll_wire::overlay::{self, Addresses, Format, Inner, Vni};
use plimsoll_wire::{Ecn, Mac, Offload, OffloadKind, VnetHeader, ones_complement_sum, parse, segment};
use sizes::SIZES;

fn main() -> std::io::Result<()> {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let mut written = 0;
    for (name, frame) in frames() {
        let offload = offload(&frame);
        for (target, head) in [("vnet_header", tap(&frame, &offload)), ("frame", pull(&frame, &offload))] {
            let folder = seeds.join(target);
            fs::create_dir_all(&folder)?;
            fs::write(folder.join(name), [head, frame.clone()].concat())?;
            written += 1;
        }
    }
    fs::create_dir_all(seeds.join("vnic"))?;
    for (name, writes) in clients() {
        fs::write(seeds.join("vnic").join(name), writes)?;
        written += 1;
    }
    for (target, name, bytes) in guests().into_iter().chain([("vnic_messages", "three_clients", said())]) {
        fs::create_dir_all(seeds.join(target))?;
        fs::write(seeds.join(target).join(name), bytes)?;
        written += 1;
    }
    fs::create_dir_all(seeds.join("netlink"))?;
    fs::write(
        seeds.join("netlink").join("up_then_down"),
        [&[7][..], &link(7, 0x1_0041), &link(7, 1)].concat(),
    )?;
    written += 1;
    fs::create_dir_all(seeds.join("pieces"))?;
    for (name, bytes) in in_pieces() {
        fs::write(seeds.join("pieces").join(name), bytes)?;
        written += 1;
    }
    fs::create_dir_all(seeds.join("feedback"))?;
    let limits: Vec<u8> = (0..3 * 26).collect();
    fs::write(seeds.join("feedback").join("three"), [&[3, 20][..], &limits].concat())?;
    fs::create_dir_all(seeds.join("notices"))?;
    // Each peer asks, then once more what it has asked before, and then both are changed on the way.
    let asks = |does: u8, peer: u8, place: u8| {
        let mut step = [0; 16];
        step[..5].copy_from_slice(&[does, peer, place, 1, 3]);
        step[7..].copy_from_slice(&[2 + peer, 5, 0, 0, 200, 1, 0, 11, 184]);
        step
    };
    let steps = [asks(0, 0, 0), asks(0, 1, 0), asks(1, 0, 1), asks(0, 0, 0), asks(2, 0, 0), asks(3, 0, 0)];
    fs::write(seeds.join("notices").join("two_peers"), steps.concat())?;
    written += 1;
    fs::create_dir_all(seeds.join("sealed"))?;
    // Hellos to and fro, then frames both ways, each of which comes; and the second host starts again.
    let greetings = [[1, 0], [3, 0], [0x81, 0], [3, 0], [6, 20]].repeat(4).concat();
    let frames = [[0, 60], [3, 0], [0x80, 60], [3, 0], [3, 1], [4, 9]].concat();
    let again = [&greetings[..], &frames, &[0x85, 220], &greetings, &frames].concat();
    fs::write(seeds.join("sealed").join("two_lives"), again)?;
    written += 1;
    fs::create_dir_all(seeds.join("overlay"))?;
    for (name, packet) in tunnels() {
        // Sums are verified; sent on as Geneve over IPv6 with feedback of 60 bytes, over an underlay of 1500.
        fs::write(seeds.join("overlay").join(name), [&[0, 3, 5, 0xdc, 1, 2, 3, 60][..], &packet].concat())?;
        written += 1;
    }
    for (name, seed) in rank_programs()? {
        fs::create_dir_all(seeds.join("rank"))?;
        fs::write(seeds.join("rank").join(name), seed)?;
        written += 1;
    }
    println!("wrote {written} seeds");
    Ok(())
}

/// The rank programs of `examples/rank`, each with packets that arrive and leave.
fn rank_programs() -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/rank");
    let mut seeds = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        let mut seed = fs::read(&path)?;
        // The zero byte that ends the text is the first packet's: it leaves.
        for number in 0..8_u8 {
            seed.push(number % 2);
            seed.extend((0..11).flat_map(|field| (u64::from(number) * 100 + field).to_le_bytes()));
        }
        let name = path.file_stem().expect("it has a name").to_string_lossy();
        seeds.push((name.into_owned(), seed));
    }
    Ok(seeds)
}

/// Frames in tunnels of each kind, feedback, and options of others.
fn tunnels() -> Vec<(&'static str, Vec<u8>)> {
    let path = |format, over_v6: bool| overlay::Path {
        format,
        src_mac: Mac([2, 0, 0, 0, 0, 1]),
        dst_mac: Mac([2, 0, 0, 0, 0, 2]),
        addresses: if over_v6 {
            let host = |n| [0x2001, 0xdb8, 0, 0, 0, 0, 0, n].into();
            Addresses::V6 { src: host(1), dst: host(2) }
        } else {
            let host = |n| [192, 0, 2, n].into();
            Addresses::V4 { src: host(1), dst: host(2) }
        },
        dscp: 0,
        mtu: 1_500,
        v6_checksum: true,
        capable: false,
        ports: overlay::Ports::default(),
    };
    let frame = ethernet(&[], 0x0800, &v4_packet());
    let wrap = |path: &overlay::Path, frame: &[u8], feedback: Option<&[u8]>| {
        let inner = Inner { vni: Vni::new(7).expect("it is small"), flow_hash: 9, feedback };
        let mut out = vec![0; 1_514];
        let len = path.encapsulate_into(frame, &mut out, &inner).expect("seeds fit");
        out.truncate(len);
        out
    };
    let mut marked = wrap(&path(Format::Vxlan, false), &frame, None);
    assert!(Ecn::Ce.write(&mut marked));
    let mut control = vec![0; 1_514];
    let len = path(Format::Geneve, true).feedback_frame(&[5; 60], 9, &mut control).expect("seeds fit");
    control.truncate(len);
    let geneve = path(Format::Geneve, false);
    vec![
        ("vxlan4_arp", wrap(&path(Format::Vxlan, false), &ethernet(&[], 0x0806, &[0; 46]), None)),
        ("vxlan4_marked", marked),
        ("vxlan6", wrap(&path(Format::Vxlan, true), &frame, None)),
        ("geneve4_feedback", wrap(&geneve, &frame, Some(&[5; 60]))),
        (
            "geneve6_tagged",
            wrap(&path(Format::Geneve, true), &ethernet(&[0x8100_0005], 0x0800, &v4_packet()), None),
        ),
        ("geneve6_feedback_alone", control),
        ("too_big4", ethernet(&[], 0x0800, &v4(17, 0x4000, &[], &datagram(&[7; 40])))),
        ("too_big6", ethernet(&[0x8100_0005], 0x86dd, &v6(17, &datagram(&[7; 40])))),
    ]
}

/// Three segments of a connection: as a datagram that is to be cut, and each behind its length.
fn in_pieces() -> [(&'static str, Vec<u8>); 2] {
    let mut tcp = TCP.to_vec();
    tcp[13] = 0x10; // an acknowledgement
    tcp.extend([0x5a; 250]);
    let frame = ethernet(&[], 0x0800, &v4(6, 0x4000, &[], &tcp));
    let vnet =
        VnetHeader { flags: 1, gso_type: 1, hdr_len: 54, gso_size: 100, csum_start: 34, csum_offset: 16 };
    let offload = vnet.offload(&frame, &parse(&frame).expect("sound")).expect("sound");
    let path = overlay::Path {
        format: Format::Geneve,
        src_mac: Mac([2; 6]),
        dst_mac: Mac([4; 6]),
        addresses: Addresses::V4 { src: [192, 0, 2, 1].into(), dst: [192, 0, 2, 2].into() },
        dscp: 0,
        mtu: 1_500,
        v6_checksum: true,
        capable: false,
        ports: overlay::Ports::default(),
    };
    let inner = Inner { vni: Vni::new(7).expect("small"), flow_hash: 1, feedback: None };
    let layout = path.piece_layout(154, false).expect("it fits");
    let (mut datagram, mut alone) = (vec![0; layout.outer], Vec::new());
    for (at, len) in [(0, 100), (100, 100), (200, 50)] {
        let mut piece = vec![0; 8 + 54 + len];
        let made = segment(&frame, &offload, at, len as u32, &mut piece[8..]).expect("inside");
        path.begin_piece(&mut piece, &inner, false).expect("room");
        datagram.extend(&piece);
        alone.extend((made as u16).to_be_bytes());
        alone.extend(&piece[8..]);
    }
    path.finish_pieces(&mut datagram, 1, Ecn::NotEct).expect("room");
    let header = &layout.vnet().to_bytes()[..VnetHeader::LEN];
    [("datagram", [header, &datagram].concat()), ("segments", alone)]
}

/// TCP that is ECN-capable, with a right header checksum.
fn v4_packet() -> Vec<u8> {
    let mut packet = v4(6, 0x4000, &[], &TCP);
    let checksum = !ones_complement_sum(&packet[..20]);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// A guest's writes, as the target `vhost_ring` reads it, and what a front end says, as `vhost_messages` does.
fn guests() -> [(&'static str, &'static str, Vec<u8>); 3] {
    use guest::{BUFFERS, FROM, GUEST, MEMORY, TO, USER, available, descriptors, used};
    let write = |at: usize, value: u32| [&((at / 4) as u16).to_le_bytes()[..], &value.to_le_bytes()].concat();
    let batch = [0xff, 0xff, 0, 0, 0, 0];
    let [low, high] = [GUEST as u32 + BUFFERS as u32, (GUEST >> 32) as u32];
    let descriptor = |ring: usize, len: u32, flags: u32| {
        let at = descriptors(ring);
        [write(at, low), write(at + 4, high), write(at + 8, len), write(at + 12, flags)].concat()
    };
    // One frame from the guest, one buffer for it.
    let ends = [write(available(FROM), 1 << 16), write(available(TO), 1 << 16)].concat();
    let plain = [&[0][..], &descriptor(FROM, 72, 0), &descriptor(TO, 2_000, 2), &ends, &batch].concat();
    // One frame through an indirect table, in memory for buffers.
    let table = |word: u16, value: u32| [&(0x8000 + word).to_le_bytes()[..], &value.to_le_bytes()].concat();
    let entries = [table(0, low), table(1, high), table(2, 72), table(3, 0)].concat();
    let indirect = [&[7][..], &descriptor(FROM, 16, 4), &entries, &ends, &batch].concat();

    let piece = |kind: u8, request: u32, payload: &[u8]| {
        let header = [request, 1, payload.len() as u32].map(u32::to_le_bytes).concat();
        [&[kind, (header.len() + payload.len()) as u8][..], &header, payload].concat()
    };
    let pair = |a: u32, b: u32| [a.to_le_bytes(), b.to_le_bytes()].concat();
    let map = [1, GUEST, MEMORY as u64, USER, 0].map(u64::to_le_bytes).concat();
    let mut said = [piece(0, 1, &[]), piece(0, 2, &(1_u64 << 32).to_le_bytes()), piece(1, 5, &map)].concat();
    for ring in [TO, FROM] {
        let at = |offset: usize| USER + offset as u64;
        let places = [ring as u64, at(descriptors(ring)), at(used(ring)), at(available(ring)), 0];
        said.extend(piece(0, 8, &pair(ring as u32, 8)));
        said.extend(piece(0, 9, &places.map(u64::to_le_bytes).concat()));
        said.extend(piece(2, 12, &(ring as u64).to_le_bytes()));
        said.extend(piece(2, 13, &(ring as u64).to_le_bytes()));
        said.extend(piece(0, 18, &pair(ring as u32, 1)));
    }
    said.extend(piece(0, 11, &pair(1, 0)));
    [
        ("vhost_ring", "one_frame_each_way", plain),
        ("vhost_ring", "through_a_table", indirect),
        ("vhost_messages", "a_start_and_a_stop", said),
    ]
}

/// Clients' messages, as the target `vnic_messages` reads it: a byte for its sender and the number of descriptors that
/// come along, one for the kind, and one for the number of bytes.
fn said() -> Vec<u8> {
    let spec = FlowSpec { protocol: Some(17), ports: Some((5_000, 53)), ..FlowSpec::default() };
    let packet = |how: u8, message: Message| {
        let bytes = message.to_bytes();
        [&[how, bytes[0], 56][..], &bytes[8..]].concat()
    };
    [
        packet(0, Message::hello()),
        packet(0, Message::Open(spec)),
        packet(0, Message::Ask(spec)),
        packet(0, Message::Close(1)),
        // The second client's message, with a descriptor; the third client's bytes are no message.
        packet(4, Message::hello()),
        vec![2, 7, 3, 1, 2, 3],
        // The first leaves, and the second tries again.
        vec![129, 0, 0],
        packet(1, Message::hello()),
    ]
    .concat()
}

/// What clients write, as the target `vnic` reads it: places and values; a place of all ones is a batch of the daemon's.
fn clients() -> [(&'static str, Vec<u8>); 6] {
    let layout = Layout::new(SIZES).expect("sizes within bounds");
    let (ring, bell) = (layout.ring_tail(0), layout.doorbell_tail(0));
    let word = layout.doorbell_word(0, 0);
    let len = |queue: u32, index: u32| layout.descriptor(queue, index) + 8;
    let posted = [(layout.posted(0) + 8, 2_048), (layout.posted_tail(), 1)];
    let frame = [(len(0, 0), 60), (ring, 1), (bell, 1)];
    // Two pieces: bit 32 of the second word is the low bit of the half behind the length.
    let gathered = [(len(0, 0), 14), (len(0, 0) + 4, 1), (len(0, 1), 46), (ring, 2), (bell, 1)];
    let segments = [
        (len(0, 0), 1_500),
        (len(0, 0) + 4, 0x0501_0000),
        (len(0, 0) + 8, 500 << 16 | 42),
        (ring, 1),
        (bell, 1),
    ];
    // Rings for queues 1 and 2, and gives queue 1 a deadline: escape, 4, 1, 0, 250, 0.
    let notes = [
        (len(1, 0), 60),
        (layout.ring_tail(1), 1),
        (len(2, 0), 60),
        (layout.ring_tail(2), 1),
        (word, 2 << 16 | 1),
        (word + 4, 4 << 16 | 0xffff),
        (word + 8, 1),
        (word + 12, 250),
        (bell, 8),
    ];
    // Queue 1's packets are of user 7, and one brings a context descriptor: of application 9.
    let described = [
        (len(1, 0), 6),
        (len(1, 0) + 4, 1 << 19 | 3),
        (len(1, 0) + 12, 9),
        (len(1, 1), 60),
        (layout.ring_tail(1), 2),
        (word, 6 << 16 | 0xffff),
        (word + 4, 1),
        (word + 8, 4),
        (word + 12, 7 << 16),
        (word + 28, 1 << 16),
        (bell, 16),
    ];
    let wrapped =
        [(len(3, 0), 60), (layout.ring_tail(3), 4), (word, 3), (bell, 1), (0, 1), (layout.ring_tail(3), 8)];
    let write = |writes: &[(usize, u32)]| -> Vec<u8> {
        let bytes = writes.iter().flat_map(|&(at, value)| {
            let place = at.checked_sub(header::CLIENT_WAITS).map_or(u16::MAX, |place| place as u16);
            [place.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()].concat()
        });
        bytes.chain([0xff; 6]).collect()
    };
    [
        ("one_frame_each_way", write(&[&posted[..], &frame].concat())),
        ("gathered", write(&gathered)),
        ("segments", write(&segments)),
        ("doorbells_with_a_deadline", write(&notes)),
        ("metadata_of_a_queue_and_of_a_frame", write(&described)),
        ("a_ring_that_wraps", write(&wrapped)),
    ]
}

/// A virtio-net header that asks for every offload.
fn tap(frame: &[u8], offload: &Offload) -> Vec<u8> {
    let gso_type = match offload.kind {
        OffloadKind::Plain | OffloadKind::Checksum => 0,
        OffloadKind::Tso4 => VnetHeader::GSO_TCPV4 | VnetHeader::GSO_ECN,
        OffloadKind::Tso6 => VnetHeader::GSO_TCPV6,
        OffloadKind::Uso4 | OffloadKind::Uso6 => VnetHeader::GSO_UDP_L4,
    };
    let header = VnetHeader {
        flags: u8::from(offload.kind != OffloadKind::Plain),
        gso_type,
        hdr_len: offload.header.min(frame.len() as u16),
        gso_size: offload.segment,
        csum_start: offload.start,
        csum_offset: offload.field - offload.start,
    };
    header.to_bytes()[..VnetHeader::LEN].to_vec()
}

/// A frame as the target `frame` reads it, with the second pull.
fn pull(frame: &[u8], offload: &Offload) -> Vec<u8> {
    let mut head = vec![offload.kind as u8];
    let Offload { header, segment, l3, start, field, final_dst, .. } = *offload;
    head.extend(
        [header, segment, l3, start, field, final_dst].iter().flat_map(|number| number.to_le_bytes()),
    );
    let (offset, len) = if header == 0 { (0, frame.len() as u32) } else { (segment.into(), segment.into()) };
    head.extend([offset, len].iter().flat_map(|number: &u32| number.to_le_bytes()));
    head
}

/// Segments of 16 bytes, where the payload is longer.
fn offload(frame: &[u8]) -> Offload {
    let parsed = parse(frame).expect("seeds are good frames");
    let Some(ip) = parsed.ip else { return Offload::PLAIN };
    let large = frame.len() > usize::from(ip.payload) + 16;
    let (kind, field) = match (ip.protocol, ip.src.is_ipv4(), ip.ports) {
        (6, true, Some(_)) if large => (OffloadKind::Tso4, 16),
        (6, false, Some(_)) if large => (OffloadKind::Tso6, 16),
        (17, true, Some(_)) if large => (OffloadKind::Uso4, 6),
        (17, false, Some(_)) if large => (OffloadKind::Uso6, 6),
        (6, _, Some(_)) => (OffloadKind::Checksum, 16),
        (17, _, Some(_)) => (OffloadKind::Checksum, 6),
        _ => return Offload::PLAIN,
    };
    let (header, segment) = if large { (ip.payload, 16) } else { (0, 0) };
    let final_dst = ip.final_dst.unwrap_or(0);
    Offload { kind, header, segment, l3: parsed.l3, start: ip.l4, field: ip.l4 + field, final_dst }
}

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let payload: Vec<u8> = (0..40).collect();
    let tcp = [&TCP[..], &payload].concat();
    let udp = datagram(&payload);
    let hop_by_hop = [&[43, 0, 1, 4, 0, 0, 0, 0][..], &ROUTING, &udp].concat();
    let fragment = [&[17, 0, 0, 1, 0, 0, 0, 9][..], &udp].concat();
    // ARP and neighbour discovery that claim 10.0.0.1 and 2001:db8::1.
    let arp =
        [&[0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1][..], &[2, 0, 0, 0, 0, 2, 10, 0, 0, 2]]
            .concat();
    let own = &v6(58, &[])[8..24];
    let advertises = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], own, &[2, 1, 2, 0, 0, 0, 0, 1]].concat();
    let padded = [&[58, 0, 1, 4, 0, 0, 0, 0][..], &advertises].concat();
    let in_fragment = [&[58, 0, 0, 0, 0, 0, 0, 9][..], &advertises].concat();
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 6][..], &arp].concat();
    vec![
        ("arp", ethernet(&[], 0x0806, &[0; 46])),
        ("arp_reply_vlan", ethernet(&[0x8100_0005], 0x0806, &arp)),
        ("arp_in_snap", ethernet(&[], 36, &snap)),
        ("advertisement", ethernet(&[], 0x86dd, &v6(58, &advertises))),
        ("advertisement_behind_options", ethernet(&[], 0x86dd, &v6(60, &padded))),
        ("advertisement_in_fragment", ethernet(&[], 0x86dd, &v6(44, &in_fragment))),
        ("tcp4", ethernet(&[], 0x0800, &v4(6, 0x4000, &[], &tcp))),
        ("tcp4_small", ethernet(&[], 0x0800, &v4(6, 0x4000, &[], &TCP))),
        ("tcp4_options_vlan", ethernet(&[0x8100_0005], 0x0800, &v4(6, 0x4000, &[1, 1, 1, 0], &tcp))),
        ("udp4", ethernet(&[], 0x0800, &v4(17, 0, &[], &udp))),
        ("udp4_first_fragment", ethernet(&[], 0x0800, &v4(17, 0x2000, &[], &udp))),
        ("udp4_later_fragment", ethernet(&[], 0x0800, &v4(17, 1, &[], &udp))),
        ("tcp6_stacked", ethernet(&[0x88a8_0007, 0x8100_0008], 0x86dd, &v6(6, &tcp))),
        ("udp6_routed", ethernet(&[], 0x86dd, &v6(0, &hop_by_hop))),
        ("udp6_fragment", ethernet(&[], 0x86dd, &v6(44, &fragment))),
        ("sctp6", ethernet(&[], 0x86dd, &v6(132, &[0, 7, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]))),
    ]
}

fn ethernet(tags: &[u32], ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend(tags.iter().flat_map(|tag| tag.to_be_bytes()));
    frame.extend(ethertype.to_be_bytes());
    frame.extend(packet);
    frame
}

fn v4(protocol: u8, fragment: u16, options: &[u8], transport: &[u8]) -> Vec<u8> {
    let words = 5 + options.len() / 4;
    let [high, low] = ((words * 4 + transport.len()) as u16).to_be_bytes();
    let [fragment_high, fragment_low] = fragment.to_be_bytes();
    let fixed = [
        0x40 | words as u8,
        0xba,
        high,
        low,
        0,
        7,
        fragment_high,
        fragment_low,
        64,
        protocol,
        0,
        0,
        10,
        0,
        0,
        1,
        10,
        0,
        0,
        2,
    ];
    [&fixed[..], options, transport].concat()
}

fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x6b, 0xa0, 0, 0, 0, rest.len() as u8, next, 64];
    for host in [1, 2] {
        packet.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    packet.extend(rest);
    packet
}

fn datagram(payload: &[u8]) -> Vec<u8> {
    [&[0, 53, 0x14, 0xe9, 0, 8 + payload.len() as u8, 0, 0], payload].concat()
}

/// CWR, ACK, PSH and FIN, so that each is on the right segment.
const TCP: [u8; 20] = [0x1f, 0x90, 0x01, 0xbb, 0, 0, 3, 0xe8, 0, 0, 0, 2, 0x50, 0x99, 0xff, 0xff, 0, 0, 0, 0];
/// Segment routing with one segment left, before UDP.
const ROUTING: [u8; 24] = [17, 2, 4, 1, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

/// The kernel's message that the interface has these flags, with one attribute: its MTU.
fn link(interface: u32, flags: u32) -> Vec<u8> {
    let mut bytes = 40_u32.to_ne_bytes().to_vec();
    bytes.extend(16_u16.to_ne_bytes());
    bytes.extend([0; 14]);
    bytes.extend(interface.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend([8_u16, 4].map(u16::to_ne_bytes).concat());
    bytes.extend(1_500_u32.to_ne_bytes());
    bytes
}
