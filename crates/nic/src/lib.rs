//! The engine: host interface and egress.
#![forbid(unsafe_code)]
