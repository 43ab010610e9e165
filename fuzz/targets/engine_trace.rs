//! Any bytes as an engine's trace: run again, or refused; never a panic, and always an end to it.
//!
//! The first byte says whether the rest is a file as it is, or events around which blocks with right checksums are put,
//! so that the fuzzer need not guess those.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_record::{BlockWriter, MAGIC, Reader, TraceError};
use plimsoll_sim::{Rerun, RerunError, rerun};
use plimsoll_units::Bytes;

/// Memory for the flow queues of an engine that a trace asks for.
const MOST: Bytes = Bytes::new(64_000_000);

fuzz_target!(|bytes: &[u8]| {
    let Some((&kind, rest)) = bytes.split_first() else { return };
    let file = if kind < 128 { [MAGIC, rest].concat() } else { in_blocks(rest) };
    let found: Result<Rerun, RerunError> =
        Reader::new(file.as_slice()).map_err(RerunError::Trace).and_then(|trace| rerun(trace, MOST));
    match found {
        Ok(found) => assert!(found.decisions <= file.len() as u64 + 1, "each decision is in the file"),
        Err(RerunError::Trace(TraceError::Kind | TraceError::Version { .. })) => {
            panic!("the first line is right")
        }
        Err(other) => assert!(!other.to_string().is_empty()),
    }
});

fn in_blocks(events: &[u8]) -> Vec<u8> {
    let mut writer = BlockWriter::new(Vec::new()).expect("memory takes all");
    writer.write(events).expect("inputs are short");
    writer.finish().expect("memory takes all")
}
