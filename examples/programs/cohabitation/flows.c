/* An exact-match switch's cache of flows: UDP packets of a flow that the tenant's host has forwarded are sent on from here; others go to the
 * host. */
#include "plimsoll.h"

/* Entries, and how far from its own place one may lie. */
enum { ENTRIES = 1024, FAR = 4 };

static struct flow {
    uint32_t source, destination, ports;
} table[ENTRIES];

static struct flow flow_of(const unsigned char *frame, const struct plimsoll_udp *found) {
    struct flow flow = {plimsoll_get32(frame + found->ip + 12), plimsoll_get32(frame + found->ip + 16),
                        plimsoll_get32(frame + found->udp)};
    return flow;
}

/* The entry of a flow, or else a free one, or else the one at its own place. */
static struct flow *entry_of(const struct flow *flow) {
    uint32_t place = (flow->source * 31 + flow->destination) * 0x9e3779b1u ^ flow->ports * 0x85ebca6bu;
    for (uint32_t n = 0; n < FAR; n++) {
        struct flow *entry = &table[((place >> 16) + n) % ENTRIES];
        if (entry->source == 0 || (entry->source == flow->source && entry->destination == flow->destination && entry->ports == flow->ports))
            return entry;
    }
    return &table[(place >> 16) % ENTRIES];
}

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found;
        if (!plimsoll_find_udp(packet, &found))
            continue;
        struct flow flow = flow_of(plimsoll_bytes(packet), &found);
        struct flow *entry = entry_of(&flow);
        if (entry->source == flow.source && entry->destination == flow.destination && entry->ports == flow.ports) {
            packet->verdict = PLIMSOLL_REDIRECT;
            packet->port = PLIMSOLL_NETWORK;
        }
    }
    return batch->count;
}

PLIMSOLL_EXPORT(egress) uint32_t egress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_udp found;
        if (!plimsoll_find_udp(&batch->packets[n], &found))
            continue;
        struct flow flow = flow_of(plimsoll_bytes(&batch->packets[n]), &found);
        *entry_of(&flow) = flow;
    }
    return batch->count;
}
