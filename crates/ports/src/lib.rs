//! Where packets enter and leave: TAP, AF_XDP, AF_PACKET, pcap, memory.
