//! A tenant's program.
#![no_std]

use plimsoll_program::{Batch, Udp, number, program};

/// What is kept from call to call.
struct Program {
    dropped: u64,
}

impl Program {
    /// From the network to the tenant: drops UDP packets to port 9, and passes all others.
    fn ingress(&mut self, batch: &mut Batch<'_>) {
        for packet in batch.packets() {
            let found = Udp::find(packet.bytes());
            if found.is_some_and(|found| number(packet.bytes(), found.udp + 2) == Some(9)) {
                packet.discard();
                self.dropped += 1;
            }
        }
    }
}

// A program may have `egress` as well, for packets from the tenant to the network; without it they pass.
program!(Program = Program { dropped: 0 }; ingress);
