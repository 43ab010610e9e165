/* Makes each UDP packet that leaves SIZE bytes long: FairNIC's experiment of Figure 1, where bytes of the bus and of the wire differ. */
#include "plimsoll.h"

#ifndef SIZE
#define SIZE 256
#endif

PLIMSOLL_EXPORT(egress) uint32_t egress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct plimsoll_udp found;
        if (!plimsoll_find_udp(packet, &found) || SIZE < found.payload ||
            SIZE > packet->size - (packet->data - packet->buffer))
            continue;
        for (uint32_t byte = found.end; byte < SIZE; byte++)
            plimsoll_bytes(packet)[byte] = 0;
        plimsoll_set_length(packet, &found, SIZE);
    }
    return batch->count;
}
