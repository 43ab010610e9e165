//! TCP end points against theory, against faults, and against each other.

mod bbr;
mod conversation;
mod marks;
mod pipe;
mod properties;
mod recovery;
mod theory;
