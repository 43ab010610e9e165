/* Has each packet that comes searched by the coprocessor, for expressions that take it long, and passes it on. */
#include "plimsoll.h"

#define EXPRESSIONS "(.{0,200}q){3}z"

static struct {
    uint32_t length;
    char text[sizeof EXPRESSIONS - 1];
} expressions = {sizeof EXPRESSIONS - 1, EXPRESSIONS};

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found;
        if (!plimsoll_came_back(packet, PLIMSOLL_MATCH) && plimsoll_find_udp(packet, &found))
            plimsoll_ask(packet, PLIMSOLL_MATCH, found.payload, &expressions);
    }
    return batch->count;
}
