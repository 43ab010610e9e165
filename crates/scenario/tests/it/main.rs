//! Scenario files, as their users meet them.

mod backpressure;
mod errors;
mod examples;
mod language;
mod report;
mod support;
