#include "plimsoll.h"

/* From the network to the tenant: drops UDP packets to port 9, and passes all others. */
PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found;
        if (plimsoll_find_udp(packet, &found) && plimsoll_get16(plimsoll_bytes(packet) + found.udp + 2) == 9)
            packet->verdict = PLIMSOLL_DROP;
    }
    return batch->count;
}

/* A program may have `egress` as well, for packets from the tenant to the network; without it they pass. */
