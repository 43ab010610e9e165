//! Rank programs, attacked: any text, random programs in both forms, and the engine's own orders beside the examples.
//!
//! One binary, so that all of them share the kit.

mod agreement;
mod engine;
mod errors;
mod examples;
mod kit;
mod node;
mod nodes;
