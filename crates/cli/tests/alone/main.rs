//! Live tests that measure what neighbours notice, or need the whole machine: one at a time.

mod faults;
#[path = "../it/support/mod.rs"]
mod support;
mod vhost_user;
