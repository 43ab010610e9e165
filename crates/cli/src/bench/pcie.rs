//! `plimsoll bench pcie`: the rate of packets that a PCIe bus carries between memory and a NIC.
//!
//! Why: with a fast NIC the bus can be the bottleneck before the link is full (PicNIC, appendix A.1).
//! From: the lane rates and line codes of PCI Express; the arithmetic is that of `pcie:` in scenarios.
//! Not here: a run over such a bus (`examples/papers/picnic/c04-pcie.yaml`), generations that send flits (6 and later).
//! Invariant: rates are rounded down.

use comfy_table::CellAlignment::Right;
use plimsoll_units::{BitRate, Bytes, Span};
use serde::Serialize;

use crate::args::Pcie;
use crate::failure::{Failure, print, print_json};
use crate::show::{count, table};

/// A lane's megabits a second by generation, and how many of how many bits on the lane are data.
const GENERATIONS: [(u64, (u64, u64)); 5] =
    [(2_500, (8, 10)), (5_000, (8, 10)), (8_000, (128, 130)), (16_000, (128, 130)), (32_000, (128, 130))];

/// Packets of one length.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    frame: Bytes,
    /// Bytes on the bus for each packet.
    on_the_bus: Bytes,
    /// Bits a second of packets.
    rate: u64,
    packets: u64,
}

/// Prints the rate of packets of each length.
pub(crate) fn pcie(args: &Pcie) -> Result<(), Failure> {
    let (raw, data) = lanes(args);
    let rows: Vec<Row> = args.frame.iter().map(|&frame| row(args, data, frame)).collect();
    if args.json {
        return print_json(&serde_json::json!({ "raw": raw, "data": data, "rows": rows }));
    }
    let mut shown = table(&["frame", "on the bus", "rate", "packets/s"], &[Right; 4]);
    for row in &rows {
        let rate = BitRate::new(row.rate).map_or_else(|| "-".to_owned(), |rate| rate.to_string());
        shown.add_row([row.frame.to_string(), row.on_the_bus.to_string(), rate, count(row.packets)]);
    }
    let Pcie { generation, lanes, overhead, tlp, .. } = args;
    let head = format!("PCIe {generation}.0 x{lanes}: {raw} raw, {data} of data");
    print(&format!("{head}; {overhead} of overhead for each {tlp} of payload\n\n{shown}\n"))
}

/// The rate of all lanes together, and the part of it that is data.
fn lanes(args: &Pcie) -> (BitRate, BitRate) {
    let (lane, (data, block)) = GENERATIONS[usize::from(args.generation - 1)];
    let raw = BitRate::mbps(lane * u64::from(args.lanes));
    (raw, BitRate::new(raw.get() * data / block).expect("a lane sends megabits"))
}

fn row(args: &Pcie, data: BitRate, frame: Bytes) -> Row {
    // Reads that never wait for one another: the bus alone is the limit.
    let bus = plimsoll_scenario::Pcie {
        rate: data,
        latency: Span::ns(1),
        tlp: args.tlp,
        overhead: args.overhead,
        descriptor: args.descriptor,
        outstanding: u32::MAX,
    };
    let rate = bus.carries(frame);
    Row { frame, on_the_bus: bus.charge(frame), rate, packets: rate / (frame.as_u64() * 8) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gbps(generation: u8, lanes: u16, tlp: u64, descriptor: u64, frame: u64) -> f64 {
        let [tlp, overhead, descriptor, frame] = [tlp, 26, descriptor, frame].map(Bytes::new);
        let args = Pcie { generation, lanes, tlp, overhead, descriptor, frame: vec![frame], json: false };
        let (_, data) = super::lanes(&args);
        row(&args, data, frame).rate as f64 / 1e9
    }

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 0.05, "{found} is not {expected}");
    }

    /// PicNIC, appendix A.1: 44.8 Gb/s in pieces of 64 bytes, and less than 40 with descriptors; DMI 3.0 is four lanes.
    #[test]
    fn a_bus_carries_what_the_paper_says() {
        near(gbps(3, 8, 64, 0, 64), 44.8);
        near(gbps(3, 4, 64, 0, 64), 22.4);
        // A packet and its descriptor are 64 + 26 + 16 + 26 = 132 bytes on the bus: 63.02 Gb/s x 64 / 132.
        near(gbps(3, 8, 64, 16, 64), 30.55);
    }

    #[test]
    fn each_generation_doubles_the_one_before_it() {
        near(gbps(1, 1, 256, 0, 256), 2.0 * 256.0 / 282.0);
        near(gbps(2, 1, 256, 0, 256), 4.0 * 256.0 / 282.0);
        near(gbps(5, 16, 256, 0, 256), 4.0 * gbps(3, 16, 256, 0, 256));
    }
}
