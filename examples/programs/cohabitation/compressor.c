/* Looks at each byte of a packet, as one does who compresses it; the coprocessor that does so is the scenario's. */
#include "plimsoll.h"

static uint32_t seen[256];

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++)
        for (uint32_t byte = 0; byte < batch->packets[n].length; byte++)
            seen[plimsoll_bytes(&batch->packets[n])[byte]]++;
    return batch->count;
}
