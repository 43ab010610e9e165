/* Takes COST times as long for each packet as COST=1 does: some 20 us times COST on a core of 3 GHz. */
#include "plimsoll.h"

#ifndef COST
#define COST 1
#endif

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++)
        for (volatile uint32_t turn = 0; turn < COST * 20000; turn++) {
        }
    return batch->count;
}
