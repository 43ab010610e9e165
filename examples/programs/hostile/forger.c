/* Sends each packet on in the name of whoever sent it, and writes another sender into all of its memory. */
#include "plimsoll.h"

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        unsigned char *frame = plimsoll_bytes(&batch->packets[n]);
        for (uint32_t byte = 6; byte < 12; byte++)
            frame[byte] ^= (unsigned char)(byte == 11);
        batch->packets[n].verdict = PLIMSOLL_REDIRECT;
        batch->packets[n].port = PLIMSOLL_NETWORK;
    }
    return batch->count;
}
