//! Agents of several hosts, and feedback that crosses the overlay in real frames.

mod agent;
mod hostile;
mod overlay;
mod two_loops;
