//! Data structures: rank queues, timing wheel, rings.
