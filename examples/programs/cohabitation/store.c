/* A key-value store's cache: a request's first eight bytes are its key, and an answer's, too. Keys that its host has answered are answered
 * from here with VALUE bytes; every tenth key is never kept. */
#include "plimsoll.h"

enum { KEYS = 4096, PLACES = 8192, VALUE = 256 };

/* By hash: the key and one more, or 0. */
static uint32_t table[PLACES];

static uint32_t key_of(const unsigned char *frame, const struct plimsoll_udp *found) {
    return plimsoll_get32(frame + found->payload + 4) % KEYS;
}

static uint32_t *place_of(uint32_t key) {
    uint32_t place = key * 0x9e3779b1u >> 19;
    while (table[place] != 0 && table[place] != key + 1)
        place = (place + 1) % PLACES;
    return &table[place];
}

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found;
        if (!plimsoll_find_udp(packet, &found) || found.end < found.payload + 8)
            continue;
        if (*place_of(key_of(plimsoll_bytes(packet), &found)) == 0)
            continue;
        for (uint32_t byte = found.payload + 8; byte < found.payload + VALUE; byte++)
            plimsoll_bytes(packet)[byte] = (unsigned char)byte;
        plimsoll_set_length(packet, &found, found.payload + VALUE);
        plimsoll_turn(packet, &found);
        packet->verdict = PLIMSOLL_REDIRECT;
        packet->port = PLIMSOLL_NETWORK;
    }
    return batch->count;
}

PLIMSOLL_EXPORT(egress) uint32_t egress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_udp found;
        if (!plimsoll_find_udp(&batch->packets[n], &found) || found.end < found.payload + 8)
            continue;
        uint32_t key = key_of(plimsoll_bytes(&batch->packets[n]), &found);
        if (key % 10 != 0)
            *place_of(key) = key + 1;
    }
    return batch->count;
}
