//! Frames, attacked from outside of the crate.

mod hostile;
mod joined;
mod overlay;
mod pieces;
mod pulls;
mod tcp;
