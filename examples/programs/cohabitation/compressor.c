/* Has the payload of each UDP packet compressed by the coprocessor: a tenant that keeps the unit busy. */
#include "plimsoll.h"

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found = {.ip = 14, .udp = 34};
        /* What comes back is shorter than its headers tell. */
        if (plimsoll_came_back(packet, PLIMSOLL_DEFLATE))
            plimsoll_set_length(packet, &found, packet->length);
        else if (plimsoll_find_udp(packet, &found) && found.udp == 34)
            plimsoll_ask(packet, PLIMSOLL_DEFLATE, found.payload, 0);
    }
    return batch->count;
}
