//! Who owns time, threads and sockets on a live host.
