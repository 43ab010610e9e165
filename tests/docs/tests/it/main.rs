//! What the documentation shows, and what it says of itself.

#![forbid(unsafe_code)]

mod apart;
mod licences;
mod lines;
mod makefile;
mod pages;
