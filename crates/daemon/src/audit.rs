//! The last changes to a running daemon: what was asked, by whom, and what came of it.
//!
//! Why: when traffic changes, an operator wants to know whether a person or a program has changed the policy just before.
//! From: the journal of `auditd`, held in memory.
//! Not here: making the changes (`control`), and showing them (`api`, `cli`).
//! Invariant: memory is bounded by [`MOST`] entries of [`LONGEST`] bytes; each entry is also logged, in full.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Entries that are kept.
const MOST: usize = 128;
/// Characters of a request's name that are logged and kept.
const NAME: usize = 128;
/// Bytes of an entry's detail that are kept.
const LONGEST: usize = 8 << 10;

/// The sender of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Asker {
    /// This program itself.
    #[default]
    Daemon,
    /// A signal to reload.
    Signal,
    /// A process on this host, as the kernel knows it.
    Process {
        /// Its user.
        user: u32,
        /// Its id; none where it is in a namespace that has no number for it.
        id: Option<i32>,
    },
    /// A program that the kernel does not name.
    Unknown,
    /// A program elsewhere.
    Address(SocketAddr),
}

impl From<SocketAddr> for Asker {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Daemon => write!(f, "the daemon"),
            Self::Signal => write!(f, "SIGHUP"),
            Self::Process { user, id: Some(id) } => write!(f, "user {user}, process {id}"),
            Self::Process { user, id: None } => write!(f, "user {user}"),
            Self::Unknown => write!(f, "an unknown program"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// A kind of entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Audited {
    /// A reload put a policy in force; the detail is what it changed.
    Reloaded,
    /// A reload was refused; the detail is why.
    ReloadRefused,
    /// A class got another rate.
    RateChanged,
    /// A class's rate was to be changed, and was not.
    RateRefused,
    /// A tenant's client put packets into other classes' flow queues; the detail is the consequence.
    ClientDistrusted,
}

impl Audited {
    /// The kind in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Reloaded => "reloaded",
            Self::ReloadRefused => "reload refused",
            Self::RateChanged => "rate changed",
            Self::RateRefused => "rate refused",
            Self::ClientDistrusted => "client distrusted",
        }
    }
}

/// One change, or a change that was refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    /// Its number since the daemon's start, from 1.
    pub number: u64,
    /// Seconds since the daemon's start.
    pub at: f64,
    /// Its kind.
    pub what: Audited,
    /// Who asked for it, or whose client it is.
    pub who: String,
    /// What has changed, or why it was refused.
    pub detail: String,
}

/// The last changes, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditReport {
    /// Seconds since the daemon's start.
    pub now: f64,
    /// Older entries that are no longer kept.
    pub forgotten: u64,
    /// The entries.
    pub entries: Vec<AuditEntry>,
}

/// The changes to a running daemon.
#[derive(Debug)]
pub struct Audit {
    start: Instant,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: VecDeque<AuditEntry>,
    count: u64,
}

impl Default for Audit {
    fn default() -> Self {
        Self { start: Instant::now(), kept: Mutex::default() }
    }
}

impl Audit {
    /// Logs a change and keeps it.
    pub fn note(&self, what: Audited, who: &str, detail: &str) {
        let at = self.start.elapsed().as_secs_f64();
        let (who, detail) = (plain(who), plain(detail.trim_end()));
        eprintln!("plimsoll: {}, by {who}: {detail}", what.words());
        let detail = shortened(detail);
        let mut kept = self.kept();
        kept.count += 1;
        let number = kept.count;
        if kept.entries.len() == MOST {
            kept.entries.pop_front();
        }
        kept.entries.push_back(AuditEntry { number, at, what, who, detail });
    }

    /// The entries that are kept.
    #[must_use]
    pub fn report(&self) -> AuditReport {
        let now = self.start.elapsed().as_secs_f64();
        let kept = self.kept();
        let forgotten = kept.count - kept.entries.len() as u64;
        AuditReport { now, forgotten, entries: kept.entries.iter().cloned().collect() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name that a request brought, for a line of the log or the journal: control characters and line breaks as escapes, and at
/// most [`NAME`] characters, with the number of those left out.
pub(crate) fn named(text: &str) -> String {
    let is_shown = |c: char| !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}');
    let one = |c: char| if is_shown(c) { String::from(c) } else { c.escape_default().to_string() };
    let shown: String = text.chars().take(NAME).map(one).collect();
    match text.chars().count().saturating_sub(NAME) {
        0 => shown,
        more => format!("{shown}... ({more} characters more)"),
    }
}

/// The text without control characters, which could write over other lines of the log.
fn plain(text: &str) -> String {
    let one = |c: char| if c.is_control() && c != '\n' { '?' } else { c };
    text.chars().map(one).collect()
}

/// The text, at most [`LONGEST`] bytes of it, with the number of those left out.
fn shortened(mut text: String) -> String {
    let whole = text.len();
    if whole > LONGEST {
        let end = (0..=LONGEST).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push_str(&format!("\n... {} bytes more, in the log", whole - end));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_changes_are_kept_and_no_more_memory_is_taken() {
        let audit = Audit::default();
        audit.note(Audited::RateRefused, "user 7", "no class `\x1b[2Jx`");
        for number in 0..MOST {
            audit.note(Audited::Reloaded, "SIGHUP", &format!("change {number}\n{}", "ä".repeat(LONGEST)));
        }
        let report = audit.report();
        assert_eq!((report.forgotten, report.entries.len()), (1, MOST));
        assert_eq!((report.entries[0].number, report.entries[MOST - 1].number), (2, MOST as u64 + 1));
        let detail = &report.entries[0].detail;
        assert!(detail.starts_with("change 0\nä") && detail.len() < LONGEST + 64, "{}", detail.len());
        assert!(detail.ends_with("bytes more, in the log"));
    }

    /// A line break in a name would begin a line of its own, which looks like the daemon's.
    #[test]
    fn a_requests_name_is_one_short_line() {
        assert_eq!(named("tenants/shop ä"), "tenants/shop ä");
        assert_eq!(
            named("x\nplimsoll: reloaded\r\u{1b}[2J\u{85}\u{2028}"),
            "x\\nplimsoll: reloaded\\r\\u{1b}[2J\\u{85}\\u{2028}"
        );
        let long = named(&"ä".repeat(30_000));
        assert!(long.chars().count() < 160 && long.ends_with("... (29872 characters more)"), "{long}");
    }

    #[test]
    fn a_detail_does_not_write_over_the_log() {
        let audit = Audit::default();
        audit.note(Audited::RateRefused, "user 7, process 8", "no class `\x1b[2Jx`\n");
        assert_eq!(audit.report().entries[0].detail, "no class `?[2Jx`");
        let json = serde_json::to_value(audit.report()).expect("JSON");
        assert_eq!(json["entries"][0]["what"], "rate_refused");
    }
}
