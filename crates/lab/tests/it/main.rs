//! Live labs, one at a time.

mod engine;
mod faults;
mod fleet;
mod live;
mod papers;
mod picnic;
mod support;
mod unprivileged;
