/* Passes UDP packets from the network only if their payload begins with a token, and takes the token off. ARP and other protocols over IPv4
 * pass; fragments of UDP, packets with a VLAN tag and IPv6 do not, as it cannot see their payload. */
#include "plimsoll.h"

#ifndef TOKEN
#define TOKEN "PLIMSOLL"
#endif

enum { LENGTH = sizeof(TOKEN) - 1 };

/* ARP, and IPv4 that is no UDP. */
static int may_pass(const struct plimsoll_packet *packet) {
    const unsigned char *frame = plimsoll_bytes(packet);
    if (packet->length < 34)
        return 0;
    uint16_t type = plimsoll_get16(frame + 12);
    return type == 0x0806 || (type == 0x0800 && frame[23] != 17);
}

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found;
        unsigned char *frame = plimsoll_bytes(packet);
        if (!plimsoll_find_udp(packet, &found)) {
            if (!may_pass(packet))
                packet->verdict = PLIMSOLL_DROP;
            continue;
        }
        int same = found.end >= found.payload + LENGTH;
        for (uint32_t byte = 0; same && byte < LENGTH; byte++)
            same = frame[found.payload + byte] == (unsigned char)TOKEN[byte];
        if (!same) {
            packet->verdict = PLIMSOLL_DROP;
            continue;
        }
        /* The headers move over the token, as they are shorter than the payload may be. */
        for (uint32_t byte = found.payload; byte-- > 0;)
            frame[byte + LENGTH] = frame[byte];
        packet->data += LENGTH;
        plimsoll_set_length(packet, &found, found.end - LENGTH);
    }
    return batch->count;
}
