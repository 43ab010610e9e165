/* Touches 1 MiB for each packet, one byte in each 128 (FairNIC, Table 2): as much of the cache as it can get. */
#include "plimsoll.h"

enum { LINE = 128, BYTES = 1 << 20 };

static volatile unsigned char all[BYTES];

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++)
        for (uint32_t byte = 0; byte < BYTES; byte += LINE)
            all[byte]++;
    return batch->count;
}
