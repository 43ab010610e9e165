//! The limiter of a coprocessor, and the cache with its colours, in long runs.

mod heap;
mod limiter;
mod striping;
