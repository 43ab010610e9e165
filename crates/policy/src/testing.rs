//! Policies for tests.
