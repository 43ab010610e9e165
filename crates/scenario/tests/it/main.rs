//! Scenario files, as their users meet them.

mod backpressure;
mod errors;
mod examples;
mod language;
mod programs;
mod report;
mod support;
