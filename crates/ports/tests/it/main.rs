//! Ports against the kernel, against guests and clients, and against memory.

mod apart;
mod live_netns;
mod live_packet;
mod live_tap;
mod live_xdp;
mod memory;
mod pcap;
mod support;
mod vhost_user;
mod vhost_user_fuse;
mod vhost_user_hostile;
mod vhost_user_limit;
mod vhost_user_linger;
mod vnic;
mod vnic_hostile;
mod vnic_linger;
