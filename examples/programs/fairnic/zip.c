/* Compresses each packet that comes, by the coprocessor, and then drops it: a tenant that keeps the unit busy. */
#include "plimsoll.h"

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found;
        if (plimsoll_came_back(packet, PLIMSOLL_DEFLATE))
            packet->verdict = PLIMSOLL_DROP;
        else if (plimsoll_find_udp(packet, &found))
            plimsoll_ask(packet, PLIMSOLL_DEFLATE, found.payload, 0);
    }
    return batch->count;
}
