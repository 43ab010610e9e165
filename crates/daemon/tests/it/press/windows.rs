//! The mode `window`: windows of acknowledgements are lowered.

use super::*;

/// A TCP segment over IPv4 with this option of a window's scale on a SYN.
fn tcp(from: u8, to: u8, flags: u8, [sequence, acknowledged]: [u32; 2], window: u16, len: usize) -> Vec<u8> {
    let mut frame = udp(from, to, 0, 0, len.max(58));
    frame[23] = 6;
    frame[34..38].copy_from_slice(&[0, from, 0, to]);
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    frame[42..46].copy_from_slice(&acknowledged.to_be_bytes());
    (frame[46], frame[47]) = (0x60, flags);
    frame[48..50].copy_from_slice(&window.to_be_bytes());
    // No operation, then a scale of 7 bits; in other segments four times no operation.
    frame[54..58].copy_from_slice(if flags & SYN == SYN { &[1, 3, 3, 7] } else { &[1; 4] });
    let len = u16::try_from(frame.len() - 34).expect("fits").to_be_bytes();
    frame[50..52].fill(0);
    let covered = [&frame[26..34], &[0, 6], &len, &frame[34..]].concat();
    let checksum = !plimsoll_wire::ones_complement_sum(&covered);
    frame[50..52].copy_from_slice(&checksum.to_be_bytes());
    frame
}

const SYN: u8 = 2;
const ACK: u8 = 16;

#[test]
fn windows_of_acknowledgements_are_lowered_where_the_handshake_was_seen() {
    for (seen, untouched) in [(true, false), (false, false), (true, true)] {
        let ecn = if untouched { ", ecn: untouched" } else { "" };
        let text = gateway("mode: window")
            .replace("gateway: {port: memory", &format!("gateway: {{port: memory{ecn}"));
        let mut world = World::new(&text, false);
        world.send(0, &udp(1, 99, 1, 0, 60));
        world.run(Span::millis(1), STEP);
        if seen {
            world.wire.send(&tcp(98, 1, SYN, [7, 0], 65_535, 0), None).expect("there");
            world.run(Span::millis(1), STEP);
            world.send(0, &tcp(1, 98, SYN | ACK, [70, 8], 65_535, 0));
            let through = world.run(Span::millis(1), STEP);
            assert_eq!(through, [tcp(1, 98, SYN | ACK, [70, 8], 65_535, 0)]);
        }
        drain(&mut world.tenants[0]);
        let mut core = Stated(Span::ZERO);
        let heavy = [(None, tcp(98, 1, ACK, [8, 71], 500, 300))];
        let sent = [98, 97].map(|to| tcp(1, to, ACK, [71, 8], 1_000, 0));
        let (mut frames, mut acks) = (0, Vec::new());
        for _ in 0..25 {
            sent.iter().for_each(|ack| _ = world.send(0, ack));
            let [came, left] = traffic(&mut world, Span::millis(1), 95, &mut core, &heavy);
            frames += came.len();
            acks.extend(left);
        }
        // 24 Mb/s over 0.77 ms are less than four segments: 6,000 bytes in units of 128.
        let count = |ack: &Vec<u8>| acks.iter().filter(|got| *got == ack).count();
        let lowered = count(&tcp(1, 98, ACK, [71, 8], 47, 0));
        assert_eq!((count(&sent[1]), lowered + count(&sent[0])), (25, 25), "nothing else is changed or lost");
        let works = seen && !untouched;
        assert_eq!(lowered > 15, works, "{seen} {untouched}: {lowered}");
        assert_eq!(lowered == 0, !works);
        let means = pressed_of(&mut world, 98);
        assert!(means == Some(if works { Means::Windowed } else { Means::Dropped }), "{means:?}");
        assert_eq!(frames < 2_000, !works, "{frames}");
        let events = world.events("gateway");
        assert_eq!(events.iter().any(|(name, _)| *name == "flow_windowed"), works);
        // This sender minds no window: it is metered after a while.
        traffic(&mut world, Span::millis(400), 95, &mut core, &heavy);
        assert_eq!(pressed_of(&mut world, 98), Some(Means::Dropped));
    }
}

/// The frame with the source's and the target's hardware addresses of these hosts.
fn between(from: u8, to: u8, mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
    frame
}

/// Two tenants with equal addresses and ports: the windows of one are lowered, those of the other stay. And neither can plant
/// scales for the other.
#[test]
fn a_tenants_windows_are_its_own() {
    for planted in [false, true] {
        let text = gateway("mode: window").replace("tenants: [gateway], ", "");
        let mut world = World::new(&text, false);
        world.send(0, &udp(1, 99, 1, 0, 60));
        world.send(1, &udp(2, 99, 2, 0, 60));
        world.run(Span::millis(1), STEP);
        // Both tenants use the address of the first one towards the same client; the frames differ in the hardware address.
        for (tenant, mac) in [(0, 1), (1, 2)] {
            if tenant == 1 || !planted {
                world.wire.send(&between(98, mac, tcp(98, 1, SYN, [7, 0], 65_535, 0)), None).expect("there");
                world.run(Span::millis(1), STEP);
                world.send(tenant, &between(mac, 98, tcp(1, 98, SYN | ACK, [70, 8], 65_535, 0)));
                world.run(Span::millis(1), STEP);
            }
        }
        if planted {
            // The second tenant sends both halves of a handshake that the first one never had, to it and to the client.
            let [syn, syn_ack] =
                [tcp(98, 1, SYN, [7, 0], 65_535, 0), tcp(1, 98, SYN | ACK, [70, 8], 65_535, 0)];
            for (frame, to) in [(&syn, 1), (&syn_ack, 1), (&syn_ack, 98), (&syn, 98), (&syn_ack, 98)] {
                world.send(1, &between(2, to, frame.clone()));
                world.run(Span::millis(1), STEP);
            }
        }
        let mut core = Stated(Span::ZERO);
        let heavy = [(None, tcp(98, 1, ACK, [8, 71], 500, 300))];
        let acks = [(0, 1), (1, 2)]
            .map(|(tenant, mac)| (tenant, between(mac, 98, tcp(1, 98, ACK, [71, 8], 1_000, 0))));
        let mut left = Vec::new();
        for _ in 0..25 {
            acks.iter().for_each(|(tenant, ack)| _ = world.send(*tenant, ack));
            left.append(&mut traffic(&mut world, Span::millis(1), 95, &mut core, &heavy)[1]);
        }
        // The windows of all acknowledgements of a tenant.
        let windows = |mac: u8| -> Vec<u16> {
            let own = left.iter().filter(|got| got[11] == mac && got[47] == ACK);
            own.map(|got| u16::from_be_bytes([got[48], got[49]])).collect()
        };
        assert_eq!(windows(2), [1_000; 25], "the other tenant's acknowledgements stay");
        let own = windows(1);
        let lowered = own.iter().filter(|window| **window < 1_000).count();
        assert_eq!((own.len(), lowered > 15, lowered == 0), (25, !planted, planted), "{own:?}");
    }
}

/// How the flow of this source port is slowed down.
fn pressed_of(world: &mut World, port: u16) -> Option<Means> {
    pressed(world)
        .into_iter()
        .find(|(src_port, inward, _)| (*src_port, *inward) == (port, true))
        .map(|(.., means)| means)
}
