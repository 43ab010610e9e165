//! How long coprocessors take for packets of different lengths: the time of a request, and the rate at which they work through bytes.
//!
//! $ cargo run -p plimsoll-offload --example unit_times
//! deflate   106 B: 2860 ns   554 B: 3311 ns   1066 B: 3546 ns   1514 B: 3788 ns
//! aes       106 B:  342 ns   554 B:  369 ns   1066 B:  422 ns   1514 B:  455 ns
//! regex     106 B:  221 ns   554 B:  968 ns   1066 B: 1836 ns   1514 B: 2500 ns

use std::hint::black_box;
use std::time::Instant;

use plimsoll_offload::{Operation, Worker};

const LENGTHS: [usize; 4] = [106, 554, 1_066, 1_514];
/// Requests of a round; the quickest round counts, as other work of the machine only adds time.
const ROUND: u32 = 500;

/// Something like English, with a byte changed now and then.
fn text(len: usize) -> Vec<u8> {
    let sentence = b"The quick brown fox jumps over the lazy dog 4711 times; ".iter().cycle();
    let changed = |(at, &byte): (usize, &u8)| if at % 7 == 3 { byte ^ (at as u8 & 31) } else { byte };
    sentence.take(len).enumerate().map(changed).collect()
}

fn nanos(operation: Operation, argument: &[u8], len: usize) -> u128 {
    let (mut worker, packet) = (Worker::default(), text(len));
    let round = |_| {
        let begun = Instant::now();
        for _ in 0..ROUND {
            black_box(worker.serve(operation, &mut packet.clone(), (42, 2_048), argument));
        }
        begun.elapsed().as_nanos() / u128::from(ROUND)
    };
    (0..20).map(round).min().unwrap_or_default()
}

fn main() {
    let patterns = b"^GET /admin\n(select|union) +from\n\\.\\./\\.\\./\n[0-9]{16}";
    let search = [&(patterns.len() as u32).to_le_bytes()[..], patterns].concat();
    let wanted =
        [(Operation::Deflate, Vec::new()), (Operation::Seal, vec![7; 28]), (Operation::Match, search)];
    for (operation, argument) in &wanted {
        print!("{:<8}", operation.unit().name());
        for len in LENGTHS {
            print!("  {len:>4} B: {:>4} ns ", nanos(*operation, argument, len));
        }
        println!();
    }
}
