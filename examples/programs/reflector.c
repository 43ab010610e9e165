/* Sends each UDP packet that comes from the network back to its sender, without the tenant's host. */
#include "plimsoll.h"

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found;
        if (!plimsoll_find_udp(packet, &found))
            continue;
        plimsoll_turn(packet, &found);
        packet->verdict = PLIMSOLL_REDIRECT;
        packet->port = PLIMSOLL_NETWORK;
    }
    return batch->count;
}
