//! What the documentation shows, and what it says of itself.

#![forbid(unsafe_code)]

mod licences;
mod pages;
