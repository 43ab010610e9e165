//! The policy language: parse, compose, check, explain, compile to a flat [`Program`].
#![forbid(unsafe_code)]

mod program;

pub use program::*;
