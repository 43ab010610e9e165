//! Frames, attacked from outside of the crate.

mod hostile;
mod overlay;
mod pulls;
mod tcp;
