//! Sends UDP datagrams through a vNIC, as fast as the policy lets them leave.
//!
//! $ cargo run -p plimsoll-vnic --example send -- /run/plimsoll/shop.sock 10.0.0.1 10.0.0.2 1000
//! 1000 frames left, 0 were dropped
//!
//! A fifth argument says which application the datagrams belong to; a policy may match on it (`docs/vnic.md`, "Metadata").

use std::net::Ipv4Addr;
use std::process::ExitCode;

use plimsoll_vnic::{PacketMetadata, Status, Vnic, VnicError};

const SOURCE_PORT: u16 = 5_000;
const DESTINATION_PORT: u16 = 5_001;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (args, app) = args.split_at(args.len().min(4));
    let ([path, from, to, count], [] | [_]) = (args, app) else {
        eprintln!("usage: send SOCKET FROM TO COUNT [APP]");
        return ExitCode::FAILURE;
    };
    let app = app.first().map(|app| app.parse()).transpose();
    let (Ok(from), Ok(to), Ok(count), Ok(app)) = (from.parse(), to.parse(), count.parse(), app) else {
        eprintln!("send: FROM and TO are IPv4 addresses, COUNT and APP are numbers");
        return ExitCode::FAILURE;
    };
    match send(path, from, to, count, app) {
        Ok((left, dropped)) => {
            println!("{left} frames left, {dropped} were dropped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("send: {error}");
            ExitCode::FAILURE
        }
    }
}

fn send(
    path: &str,
    from: Ipv4Addr,
    to: Ipv4Addr,
    count: u32,
    app: Option<u32>,
) -> Result<(u32, u32), VnicError> {
    let mut vnic = Vnic::connect(path)?;
    let metadata = PacketMetadata { app, ..PacketMetadata::default() };
    let mut described = None;
    let frame = datagram(vnic.identity().mac, from, to);
    let (mut posted, mut left, mut dropped) = (0, 0, 0);
    while left + dropped < count {
        // For each batch: the answer comes from a cache, and may change with the policy.
        let queue = vnic.classify(&frame)?;
        if described != Some(queue) && vnic.set_metadata(queue, &metadata).is_ok() {
            described = Some(queue);
        }
        while posted < count && vnic.send(queue, &frame).is_ok() {
            posted += 1;
        }
        vnic.ring()?;
        let told = vnic.poll_completions(|done| match done.status {
            Status::Sent => left += 1,
            Status::Dropped | Status::Malformed => dropped += 1,
        });
        if told == 0 {
            vnic.wait(100)?;
        }
    }
    Ok((left, dropped))
}

/// A datagram of 18 bytes, broadcast on the link, without a UDP checksum.
fn datagram(mac: [u8; 6], from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    frame[26..30].copy_from_slice(&from.octets());
    frame[30..34].copy_from_slice(&to.octets());
    let sum: u32 =
        frame[14..34].as_chunks::<2>().0.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..36].copy_from_slice(&SOURCE_PORT.to_be_bytes());
    frame[36..38].copy_from_slice(&DESTINATION_PORT.to_be_bytes());
    frame[38..40].copy_from_slice(&26_u16.to_be_bytes());
    frame
}
