//! The binary from outside: commands, files, and live hosts. These tests run side by side.

mod api;
mod attach;
mod audit;
mod binding;
mod carrier;
mod cni;
mod commands;
mod docker;
mod hostile;
mod hostile_files;
mod hosts;
mod interface;
mod kept;
mod libvirt;
#[path = "../../../ports/tests/it/support/linger.rs"]
#[expect(dead_code, reason = "the tests of ports use the rest")]
mod linger;
mod live;
mod networks;
mod privileges;
mod programs;
mod prometheus;
mod sim_and_lab;
mod snap_length;
mod succession;
mod support;
mod unfinished;
mod watched;
