//! The engine's promises, attacked: golden cases, properties, an exact reference, hostile input.
//!
//! One binary, so that all of them share the kit.

mod against_reference;
mod bounds;
mod cases;
mod fair_lag;
mod flat;
mod fluid;
mod fq;
mod golden;
mod hostile;
mod kit;
mod limits;
mod long_after;
mod loom;
mod many;
mod properties;
mod queues;
mod rate_share;
mod reference;
mod shares;
mod threads;
