/* Never ends. */
#include "plimsoll.h"

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    for (volatile uint32_t for_ever = 1; for_ever;) {
    }
    return plimsoll_batch(at)->count;
}
