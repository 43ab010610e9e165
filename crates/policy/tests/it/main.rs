//! The policy language, as its users meet it.

mod backpressure;
mod cost;
mod documents;
mod golden;
mod included;
mod language;
mod one_go;
mod properties;
mod rank_nodes;
mod threads;
