/* An exact-match switch: UDP packets from the network follow the entry of their flow; those without one go to the tenant's host, which may
 * then make an entry.
 *
 * The host makes entries by UDP packets to port CONTROL, at any address; they do not leave. Their payload: the action (enum action), then
 * the port for TO_PORT, then of the flow the source and destination address (4 bytes each) and port (2 bytes each), as in a packet. */
#include "plimsoll.h"

#ifndef CONTROL
#define CONTROL 6653
#endif

enum action { MISS = 0, DROP_IT = 1, TO_HOST = 2, TO_PORT = 3 };

/* Entries, and how far from its own place one may lie. */
enum { ENTRIES = 4096, FAR = 8 };

struct flow {
    uint32_t source, destination, ports;
};

static struct entry {
    struct flow flow;
    uint8_t action, port;
} table[ENTRIES];

static uint32_t place_of(const struct flow *flow) {
    uint64_t hash = ((uint64_t)flow->source << 32 | flow->destination) * 0x9e3779b97f4a7c15u;
    return (uint32_t)((hash ^ flow->ports * 0xff51afd7ed558ccdu) >> 40) % ENTRIES;
}

static int same_flow(const struct flow *one, const struct flow *other) {
    return one->source == other->source && one->destination == other->destination && one->ports == other->ports;
}

/* The entry of a flow, or else a free one, or else the one at its own place. */
static struct entry *entry_of(const struct flow *flow) {
    uint32_t place = place_of(flow);
    struct entry *room = 0;
    for (uint32_t n = 0; n < FAR; n++) {
        struct entry *entry = &table[(place + n) % ENTRIES];
        if (entry->action == MISS)
            room = room ? room : entry;
        else if (same_flow(&entry->flow, flow))
            return entry;
    }
    return room ? room : &table[place];
}

static struct flow flow_at(const unsigned char *addresses, const unsigned char *ports) {
    struct flow flow = {plimsoll_get32(addresses), plimsoll_get32(addresses + 4), plimsoll_get32(ports)};
    return flow;
}

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found;
        if (!plimsoll_find_udp(packet, &found))
            continue;
        const unsigned char *frame = plimsoll_bytes(packet);
        struct flow flow = flow_at(frame + found.ip + 12, frame + found.udp);
        const struct entry *entry = entry_of(&flow);
        if (!same_flow(&entry->flow, &flow))
            continue;
        if (entry->action == DROP_IT) {
            packet->verdict = PLIMSOLL_DROP;
        } else if (entry->action == TO_PORT) {
            packet->verdict = PLIMSOLL_REDIRECT;
            packet->port = entry->port;
        }
    }
    return batch->count;
}

PLIMSOLL_EXPORT(egress) uint32_t egress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found;
        if (!plimsoll_find_udp(packet, &found))
            continue;
        const unsigned char *frame = plimsoll_bytes(packet);
        if (plimsoll_get16(frame + found.udp + 2) != CONTROL)
            continue;
        packet->verdict = PLIMSOLL_DROP;
        const unsigned char *order = frame + found.payload;
        if (found.end < found.payload + 14 || order[0] > TO_PORT)
            continue;
        struct flow flow = flow_at(order + 2, order + 10);
        struct entry *entry = entry_of(&flow);
        if (order[0] == MISS && !same_flow(&entry->flow, &flow))
            continue;
        entry->flow = flow;
        entry->action = order[0];
        entry->port = order[1];
    }
    return batch->count;
}
