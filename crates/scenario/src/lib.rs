//! Scenario files: what to run, measure, expect and report.
