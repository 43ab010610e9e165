/* Calls the coprocessor several times for each UDP packet that its tenant sends, each time with BYTES bytes of text that it puts behind the
 * packet, and then lets the packet go. The last two digits of the packet's port say how many calls that is; how many are left is in the place
 * of its checksum meanwhile, so that it leaves without one. At most FLYING packets are in their calls; more are dropped. So a tenant that
 * sends enough always has requests, and what leaves counts its calls. */
#include "plimsoll.h"

#ifndef BYTES
#define BYTES 20
#endif

/* Where the UDP header and its checksum lie in a packet. */
enum { UDP = 34, CHECKSUM = 40 };
/* As many as keep the coprocessor busy while the engine does other things; no more than 64 of a tenant's may wait there. */
enum { FLYING = 60, LONGEST = 1280 };

static unsigned char text[LONGEST];
static uint32_t flying;

/* Text whose bytes repeat often enough to be compressed, and not so often that it takes no time. */
PLIMSOLL_EXPORT(init) int32_t init(void) {
    uint32_t state = 7;
    for (uint32_t n = 0; n < LONGEST; n++) {
        state = state * 1664525u + 1013904223u;
        text[n] = "etaoinshrdlucmfw"[state >> 28];
    }
    return 0;
}

/* Where the packet itself ends: its IPv4 header says. */
static uint32_t end_of(const struct plimsoll_packet *packet) {
    return 14 + (uint32_t)plimsoll_get16(plimsoll_bytes(packet) + 16);
}

static void ask(struct plimsoll_packet *packet) {
    uint32_t end = end_of(packet);
    __builtin_memcpy(plimsoll_bytes(packet) + end, text, BYTES);
    packet->length = end + BYTES;
    plimsoll_ask(packet, PLIMSOLL_DEFLATE, end, 0);
}

/* How many calls a packet asks for. */
static uint32_t calls_of(const struct plimsoll_packet *packet) {
    struct plimsoll_udp found;
    if (!plimsoll_find_udp(packet, &found) || found.udp != UDP || end_of(packet) + BYTES > packet->size)
        return 0;
    return plimsoll_get16(plimsoll_bytes(packet) + UDP + 2) % 100;
}

PLIMSOLL_EXPORT(egress) uint32_t egress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        unsigned char *checksum = plimsoll_bytes(packet) + CHECKSUM;
        uint32_t left;
        if (plimsoll_came_back(packet, PLIMSOLL_DEFLATE)) {
            left = (uint32_t)plimsoll_get16(checksum) - 1;
            if (left == 0) {
                packet->length = end_of(packet);
                flying--;
            }
        } else {
            left = calls_of(packet);
            if (left > 0 && flying == FLYING) {
                packet->verdict = PLIMSOLL_DROP;
                continue;
            }
            if (left == 0)
                continue;
            flying++;
        }
        plimsoll_put16(checksum, (uint16_t)left);
        if (left > 0)
            ask(packet);
    }
    return batch->count;
}
