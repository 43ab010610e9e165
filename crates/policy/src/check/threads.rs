//! Whether several engine threads can keep a policy.
//!
//! Not here: which parts of a policy they do not keep (`crate::threads`).
//! Invariant: a policy for one thread is never judged.

use plimsoll_document::Mark;

use crate::law::{Law, Problem, Problems};
use crate::program::Program;

/// Refuses `threads` where the policy states something that they do not keep.
pub(super) fn judge(program: &Program, threads: u32, at: Mark, overlay: bool, problems: &mut Problems) {
    let why = match program.unsupported_by_threads() {
        Some(why) => why.to_string(),
        None if overlay => "tenants of other hosts (`overlay`) are served by one thread only".to_owned(),
        None => return,
    };
    let message = format!("`threads` is {threads}, but {why}");
    let problem = Problem::error(Law::BadValue, at, message).label("several threads do not keep that");
    problems.push(problem.help(
        "write `threads: 1`; or use `priority`, `wfq` or `drr` above tenants, and limits of packets for one tenant only",
    ));
}
