//! Ports that have no room for a while, and frames for everybody: each frame leaves once, waits, or is counted.

mod support;

use plimsoll_ports::Sending;
use plimsoll_units::Span;
use plimsoll_wire::VnetHeader;
use support::{World, udp};

const STEP: Span = Span::micros(10);
const OUTSIDE: u8 = 99;

/// The wire of a [`World`] holds so many frames.
const SLOTS: u32 = 512;

const ONE: &str = "
uplink: {port: memory, rate: 10Gbps}
tenants: {shop: {port: memory}}
";

#[test]
fn a_pull_of_several_segments_goes_on_where_the_uplink_stopped_it() {
    let mut world = World::new(ONE, true);
    // All places of the wire but one are taken.
    for number in 0..SLOTS - 1 {
        assert_eq!(world.send(0, &udp(1, OUTSIDE, 1, number, 100)), Sending::Sent);
    }
    while world.engine.turn(world.now).busy {
        world.now += STEP;
    }
    // Twelve segments of 500 B, of which a pull of one frame's length holds more than one.
    let mut large = udp(1, OUTSIDE, 2, 0, 42 + 12 * 500);
    large[42..].iter_mut().zip(0_u32..).for_each(|(byte, at)| *byte = (at / 500) as u8);
    let vnet = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        gso_type: VnetHeader::GSO_UDP_L4,
        hdr_len: 42,
        gso_size: 500,
        csum_start: 34,
        csum_offset: 6,
    };
    assert_eq!(world.send_with(0, &large, &vnet), Sending::Sent);
    for _ in 0..20 {
        world.now += STEP;
        world.engine.turn(world.now);
    }
    let mut out = world.received();
    assert_eq!(out.len() as u32, SLOTS, "the wire was full with the first segment");
    out.extend(world.run(Span::millis(1), STEP));
    let segments: Vec<u8> = out[SLOTS as usize - 1..].iter().map(|frame| frame[42]).collect();
    assert_eq!(segments, (0..12).collect::<Vec<u8>>(), "each segment once, in order");
}
