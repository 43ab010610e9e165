/* Seals the payload of UDP packets to and from a port on their way out, and opens it on their way in: two tenants with this program and one
 * key talk in private over any network. A packet grows by 24 bytes, so applications send 24 bytes less than the MTU allows. A demonstration:
 * IPv6, packets with a VLAN tag and fragments pass as they are, and nothing keeps a packet from being sent again by others. A nonce must never
 * be used twice with a key, and the count begins anew when the daemon starts: each start takes another KEY. A reload with `state: keep` goes
 * on counting.
 *
 * The policy gives it the coprocessor: program: {module: tunnel.wasm, units: {aes: 1}}. */
#include "plimsoll.h"

#ifndef PORT
#define PORT 5000
#endif

/* Of a demonstration: compile it with -DKEY=... and -DSENDER=..., another sender at each end, as both ends count. */
#ifndef KEY
#define KEY {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
#endif
#ifndef SENDER
#define SENDER 1
#endif

/* Bytes in front of what is sealed: who has counted it, and the count. */
enum { HEAD = 8 };

/* The arguments of a batch: they are read when it ends. */
static struct plimsoll_key arguments[64];
static uint32_t count;

static int find(const struct plimsoll_packet *packet, struct plimsoll_udp *found) {
    if (!plimsoll_find_udp(packet, found))
        return 0;
    const unsigned char *udp = plimsoll_bytes(packet) + found->udp;
    return plimsoll_get16(udp) == PORT || plimsoll_get16(udp + 2) == PORT;
}

static void put32(unsigned char *at, uint32_t value) {
    plimsoll_put16(at, (uint16_t)(value >> 16));
    plimsoll_put16(at + 2, (uint16_t)value);
}

/* Asks for the payload behind its head, whose bytes are the nonce, to be sealed or opened. */
static void ask(struct plimsoll_packet *packet, const struct plimsoll_udp *found, enum plimsoll_operation operation, uint32_t place) {
    static const unsigned char key[16] = KEY;
    struct plimsoll_key *argument = &arguments[place];
    __builtin_memcpy(argument->key, key, sizeof key);
    __builtin_memset(argument->nonce, 0, sizeof argument->nonce);
    __builtin_memcpy(argument->nonce, plimsoll_bytes(packet) + found->payload, HEAD);
    plimsoll_ask(packet, operation, found->payload + HEAD, argument);
}

PLIMSOLL_EXPORT(egress) uint32_t egress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found;
        if (plimsoll_came_back(packet, PLIMSOLL_SEAL)) {
            /* The headers still tell the length that it had. */
            if (packet->argument != 0)
                packet->verdict = PLIMSOLL_DROP;
            else if (plimsoll_find_udp(packet, &found))
                plimsoll_set_length(packet, &found, packet->length);
        } else if (find(packet, &found)) {
            if (packet->data + found.end + HEAD > packet->buffer + packet->size) {
                packet->verdict = PLIMSOLL_DROP;
                continue;
            }
            unsigned char *payload = plimsoll_bytes(packet) + found.payload;
            __builtin_memmove(payload + HEAD, payload, found.end - found.payload);
            put32(payload, SENDER);
            put32(payload + 4, ++count);
            packet->length = found.end + HEAD;
            ask(packet, &found, PLIMSOLL_SEAL, n);
        }
    }
    return batch->count;
}

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found;
        if (plimsoll_came_back(packet, PLIMSOLL_OPEN)) {
            /* Its headers tell more than it has now. */
            uint32_t payload = 14 + (uint32_t)(plimsoll_bytes(packet)[14] & 15) * 4 + 8;
            if (packet->argument != 0) {
                packet->verdict = PLIMSOLL_DROP;
                continue;
            }
            unsigned char *bytes = plimsoll_bytes(packet) + payload;
            __builtin_memmove(bytes, bytes + HEAD, packet->length - payload - HEAD);
            found = (struct plimsoll_udp){14, payload - 8, payload, 0};
            plimsoll_set_length(packet, &found, packet->length - HEAD);
        } else if (find(packet, &found)) {
            if (found.end < found.payload + HEAD + 16)
                packet->verdict = PLIMSOLL_DROP;
            else {
                packet->length = found.end;
                ask(packet, &found, PLIMSOLL_OPEN, n);
            }
        }
    }
    return batch->count;
}

PLIMSOLL_EXPORT(state_save) uint64_t state_save(void) {
    return plimsoll_state(&count, sizeof count);
}

PLIMSOLL_EXPORT(state_room) uint32_t state_room(uint32_t length) {
    return length == sizeof count ? plimsoll_address(&count) : 0;
}

PLIMSOLL_EXPORT(state_restore) int32_t state_restore(uint32_t length) {
    (void)length;
    return 0;
}
