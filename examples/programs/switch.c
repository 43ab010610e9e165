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

/* A flow's addresses, source and destination, and its ports, as they lie in a packet. */
struct flow {
    uint64_t addresses;
    uint32_t ports;
};

static struct entry {
    uint64_t addresses;
    uint32_t ports;
    uint8_t action, port;
} table[ENTRIES];

static uint32_t place_of(struct flow flow) {
    uint64_t mixed = flow.addresses ^ flow.ports * 0xff51afd7ed558ccdu;
    return (uint32_t)((mixed ^ mixed >> 32) * 0x9e3779b97f4a7c15u >> 40) % ENTRIES;
}

static int is_of(const struct entry *entry, struct flow flow) {
    return entry->addresses == flow.addresses && entry->ports == flow.ports;
}

/* The entry of a flow that does not lie at its own place, or else a free one, or else the one at its own place. */
static struct entry *search(uint64_t addresses, uint32_t ports, uint32_t place) {
    struct flow flow = {addresses, ports};
    struct entry *room = 0;
    for (uint32_t n = 0; n < FAR; n++) {
        struct entry *entry = &table[(place + n) % ENTRIES];
        if (entry->action == MISS)
            room = room ? room : entry;
        else if (is_of(entry, flow))
            return entry;
    }
    return room ? room : &table[place];
}

/* Nearly all lie at their own place, and each turn of a loop has a check of the time. */
__attribute__((always_inline)) static inline struct entry *entry_of(struct flow flow) {
    uint32_t place = place_of(flow);
    struct entry *own = &table[place];
    return own->action != MISS && is_of(own, flow) ? own : search(flow.addresses, flow.ports, place);
}

static struct flow flow_at(const unsigned char *addresses, const unsigned char *ports) {
    struct flow flow = {plimsoll_raw64(addresses), plimsoll_raw32(ports)};
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
        const struct entry *entry = entry_of(flow);
        if (!is_of(entry, flow))
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
        struct entry *entry = entry_of(flow);
        if (order[0] == MISS && !is_of(entry, flow))
            continue;
        entry->addresses = flow.addresses;
        entry->ports = flow.ports;
        entry->action = order[0];
        entry->port = order[1];
    }
    return batch->count;
}
