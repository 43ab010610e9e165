/* Sends 63 packets more for each batch, all to the network: the policy lets it (amplification: 64). */
#include "plimsoll.h"

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = batch->count; n < batch->room; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        packet->length = batch->packets[0].length;
        __builtin_memcpy(plimsoll_bytes(packet), plimsoll_bytes(&batch->packets[0]), packet->length);
        plimsoll_swap(plimsoll_bytes(packet), plimsoll_bytes(packet) + 6, 6);
        packet->verdict = PLIMSOLL_REDIRECT;
        packet->port = PLIMSOLL_NETWORK;
    }
    return batch->room;
}
