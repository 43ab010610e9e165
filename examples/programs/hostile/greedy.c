/* Takes all the memory that it may have, and fills it in each batch. */
#include "plimsoll.h"

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    static uint32_t begin, pages;
    for (uint32_t page = (uint32_t)__builtin_wasm_memory_grow(0, 1); page != (uint32_t)-1; page = (uint32_t)__builtin_wasm_memory_grow(0, 1)) {
        begin = begin ? begin : page * 65536;
        pages++;
    }
    __builtin_memset((void *)(uintptr_t)begin, 7, (uint64_t)pages * 65536);
    return batch->count;
}
