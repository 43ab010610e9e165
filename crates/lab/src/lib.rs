//! Scenarios on real namespaces, TAPs and Linux TCP.
