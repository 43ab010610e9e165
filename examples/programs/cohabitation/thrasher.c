/* Touches 4,096 cache lines for each packet. */
#include "plimsoll.h"

enum { LINES = 4096, STRIDE = 128 };

static volatile unsigned char memory[LINES * STRIDE];

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++)
        for (uint32_t line = 0; line < LINES; line++)
            memory[line * STRIDE]++;
    return batch->count;
}
