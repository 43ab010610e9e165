//! Runs the documentation's examples, and checks what it says of the code, the Makefile and licences.

#![forbid(unsafe_code)]

mod apart;
mod api;
mod licences;
mod lines;
mod logs;
mod makefile;
mod packages;
mod pages;
