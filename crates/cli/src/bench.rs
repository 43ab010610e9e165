//! `plimsoll bench doorbells`: the PCIe writes that doorbells need.
//!
//! Why: a write over PCIe takes up to 900 ns of a core; the benchmark shows how many Loom's batches save.
//! From: Loom §7.2, Tables 1 and 2. Its text says both "one write for each batch" and "32 doorbells to a write", which
//! disagree once a batch has more than 32 entries: both counts are shown, the second as cache lines.
//! Not here: the doorbell queue (`nic`), which counts; this only drives it with the papers' traffic.
//! Invariant: measured figures are the counters of the engine's own queue; computed figures come from the formula.

mod pcie;
mod wakeups;

use comfy_table::CellAlignment::{Left, Right};
use plimsoll_nic::{DoorbellQueue, PcieWrites, QueueId};
use plimsoll_units::{BitRate, Bytes};
use serde::Serialize;

use crate::args::Doorbells;
use crate::failure::{Failure, print, print_json};
use crate::show::table;
pub(crate) use pcie::pcie;
pub(crate) use wakeups::wakeups;

/// Bytes of each packet in Table 2.
const PACKET: u64 = 1_500;

/// Loom's Table 1: tenants, then thousands of writes a second with a doorbell for each queue, and with Loom.
const TABLE_1: [(u32, u32, u32); 3] = [(32, 150, 128), (64, 243, 205), (96, 303, 263)];

/// One row of the table that repeats Loom's Table 2.
#[derive(Debug, Serialize)]
struct RateRow {
    rate: BitRate,
    batch: Bytes,
    /// One doorbell for each queue: rate / 12,000 bits.
    per_queue_computed: f64,
    per_queue: u64,
    /// SENIC: a 16-byte doorbell for each queue, at best four to a cache line.
    senic_lines: u64,
    /// Loom as its text counts: rate / batch.
    loom_computed: f64,
    loom_batches: u64,
    /// Loom to the cache line.
    loom_lines: u64,
}

/// One row of the table that repeats Loom's Table 1.
#[derive(Debug, Serialize)]
struct TenantRow {
    tenants: u32,
    flows: u32,
    sends: u64,
    /// One for each batch, and one for each change of flow inside a batch.
    per_queue_computed: u64,
    per_queue: u64,
    /// One for each batch: sends without `xmit_more`.
    loom_computed: u64,
    loom: u64,
    paper_per_queue: u32,
    paper_loom: u32,
}

/// Prints both tables.
pub(crate) fn doorbells(args: &Doorbells) -> Result<(), Failure> {
    let tenants: Vec<TenantRow> = TABLE_1.into_iter().map(tenant_row).collect();
    let rates: Vec<RateRow> = [10, 40, 100]
        .into_iter()
        .flat_map(|gbps| [64, 256].map(|kib| rate_row(BitRate::gbps(gbps), Bytes::kib(kib))))
        .collect();
    if args.json {
        return print_json(&serde_json::json!({ "LO-E8": tenants, "LO-E9": rates }));
    }
    print(&format!("{}\n\n{}\n", tenant_table(&tenants), rate_table(&rates)))
}

/// A second of packets, each of another flow, with doorbells in batches of `batch` bytes.
fn rate_row(rate: BitRate, batch: Bytes) -> RateRow {
    let packets = rate.get() / (PACKET * 8);
    let flows = 65_535;
    let mut queue = DoorbellQueue::with_capacity(1_024);
    let mut bytes = 0;
    for packet in 0..packets {
        queue.bell(QueueId(u32::try_from(packet % flows).unwrap_or(0)));
        bytes += PACKET;
        // The batch ends with the packet that fills it, so that its average length is `batch`.
        if bytes / batch.as_u64() > (bytes - PACKET) / batch.as_u64() {
            queue.flush(|_| {});
        }
    }
    queue.flush(|_| {});
    let PcieWrites { batches, lines, per_queue, senic_bytes, .. } = queue.writes();
    RateRow {
        rate,
        batch,
        per_queue_computed: rate.get() as f64 / (PACKET as f64 * 8.0),
        per_queue,
        senic_lines: senic_bytes.div_ceil(64),
        loom_computed: rate.get() as f64 / (8.0 * batch.as_u64() as f64),
        loom_batches: batches,
        loom_lines: lines,
    }
}

/// Tenants with 16 flows each send like a queueing discipline: a flow's segments in a row, several in a batch, and
/// sometimes another flow's in the same batch.
fn tenant_row((tenants, paper_per_queue, paper_loom): (u32, u32, u32)) -> TenantRow {
    let flows = tenants * 16;
    let mut random = Random(u64::from(tenants));
    let mut queue = DoorbellQueue::with_capacity(64);
    let (mut sends, mut changes, mut batches) = (0, 0, 0);
    // The number of batches that Loom counted in a second.
    while batches < u64::from(paper_loom) * 1_000 {
        let mut flow = random.below(flows);
        queue.bell(QueueId(flow));
        sends += 1;
        // Most sends are alone in their batch; one in eight is followed by that of another flow.
        while random.below(8) == 0 {
            let next = random.below(flows);
            changes += u64::from(next != flow);
            flow = next;
            queue.bell(QueueId(flow));
            sends += 1;
        }
        queue.flush(|_| {});
        batches += 1;
    }
    let writes = queue.writes();
    TenantRow {
        tenants,
        flows,
        sends,
        per_queue_computed: batches + changes,
        per_queue: writes.per_queue,
        loom_computed: batches,
        loom: writes.batches,
        paper_per_queue,
        paper_loom,
    }
}

fn tenant_table(rows: &[TenantRow]) -> String {
    let heads = [
        "tenants",
        "flows",
        "per queue",
        "computed",
        "Loom",
        "computed",
        "saved",
        "paper: per queue",
        "Loom",
        "saved",
    ];
    let mut shown = table(&heads, &[Right; 10]);
    let saved = |per_queue: f64, loom: f64| format!("{:.1}%", (per_queue - loom) / per_queue * 100.0);
    for row in rows {
        shown.add_row([
            row.tenants.to_string(),
            row.flows.to_string(),
            row.per_queue.to_string(),
            row.per_queue_computed.to_string(),
            row.loom.to_string(),
            row.loom_computed.to_string(),
            saved(row.per_queue as f64, row.loom as f64),
            format!("{}k", row.paper_per_queue),
            format!("{}k", row.paper_loom),
            saved(f64::from(row.paper_per_queue), f64::from(row.paper_loom)),
        ]);
    }
    format!(
        "Writes a second, 16 flows for each tenant (Loom, Table 1; traffic generated, as many batches as in the paper)\n\
         {shown}"
    )
}

fn rate_table(rows: &[RateRow]) -> String {
    let heads = [
        "rate",
        "batch",
        "per queue",
        "computed",
        "SENIC lines",
        "Loom batches",
        "computed",
        "fewer",
        "Loom lines",
        "fewer",
    ];
    let mut alignments = [Right; 10];
    alignments[0] = Left;
    let mut shown = table(&heads, &alignments);
    for row in rows {
        let fewer = |writes: u64| format!("{:.0}x", row.per_queue as f64 / writes as f64);
        shown.add_row([
            row.rate.to_string(),
            format!("{}KiB", row.batch.as_u64() / 1_024),
            row.per_queue.to_string(),
            format!("{:.0}", row.per_queue_computed),
            row.senic_lines.to_string(),
            row.loom_batches.to_string(),
            format!("{:.0}", row.loom_computed),
            fewer(row.loom_batches),
            row.loom_lines.to_string(),
            fewer(row.loom_lines),
        ]);
    }
    format!("Writes a second, every 1500 B packet of another flow (Loom, Table 2)\n{shown}")
}

/// A small generator with a fixed seed, so that the figures are the same everywhere (Steele et al., SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) % u64::from(bound)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden vector G7 and LO-E9: within 1 % of the formulas; 43 times fewer, or about 22 by cache lines.
    #[test]
    fn table_2_is_what_the_formulas_say() {
        for gbps in [10, 40, 100] {
            let row = rate_row(BitRate::gbps(gbps), Bytes::kib(64));
            let near = |measured: u64, computed: f64| (measured as f64 / computed - 1.0).abs() < 0.01;
            assert!(near(row.per_queue, row.per_queue_computed), "{row:?}");
            assert!(near(row.loom_batches, row.loom_computed), "{row:?}");
            let fewer = row.per_queue as f64 / row.loom_batches as f64;
            assert!((43.0..45.0).contains(&fewer), "{fewer}");
            let fewer = row.per_queue as f64 / row.loom_lines as f64;
            assert!((21.0..23.0).contains(&fewer), "{fewer}");
        }
    }

    /// LO-E8: fewer writes always, and counters equal to the formula exactly.
    #[test]
    fn table_1_counts_exactly() {
        for paper in TABLE_1 {
            let row = tenant_row(paper);
            assert_eq!((row.per_queue, row.loom), (row.per_queue_computed, row.loom_computed));
            assert!(row.loom < row.per_queue);
        }
    }
}
