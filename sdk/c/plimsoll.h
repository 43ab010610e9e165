/* plimsoll.h: what a tenant's program and its host agree on, version 1.
 *
 * A program is compiled to WebAssembly and handed to the operator:
 *
 *     clang --target=wasm32 -O2 -mbulk-memory -nostdlib -Wl,--no-entry -I sdk/c -o filter.wasm filter.c
 *     plimsoll program check filter.wasm
 *
 * It defines `ingress`, for packets from the network to the tenant, `egress`, for packets from the tenant to the network, or both:
 *
 *     PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
 *         struct plimsoll_batch *batch = plimsoll_batch(at);
 *         for (uint32_t n = 0; n < batch->count; n++)
 *             if (batch->packets[n].length > 1000)
 *                 batch->packets[n].verdict = PLIMSOLL_DROP;
 *         return batch->count;
 *     }
 *
 * It may also define `int32_t init(void)`, which is called once and returns 0, and `void tick(uint64_t now)`, which is called from time to
 * time. A program whose state is to outlive a reload defines state_save, state_room and state_restore, see below. It may
 * change packets in place, and move their beginning and end within their buffers. Where the operator allows it, it may add
 * packets: batch->packets[batch->count] up to batch->packets[batch->room - 1] are free buffers; the function returns how many packets
 * the batch has then, no fewer than came. Memory behind what the module states is the host's to begin with: an allocator grows it first.
 *
 * With PLIMSOLL_NATIVE, programs are compiled for this machine, to be measured beside WebAssembly:
 *
 *     cc -O2 -shared -fPIC -DPLIMSOLL_NATIVE -I sdk/c -o filter.so filter.c
 */
#ifndef PLIMSOLL_H
#define PLIMSOLL_H

#include <stdint.h>

/* What becomes of a packet. */
enum plimsoll_verdict {
    PLIMSOLL_PASS = 0,     /* it goes on in its direction */
    PLIMSOLL_DROP = 1,     /* it is dropped */
    PLIMSOLL_REDIRECT = 2, /* it goes to `port` */
    PLIMSOLL_UNIT = 3,     /* it goes to a coprocessor, and comes back: see plimsoll_ask */
};

/* What coprocessors do with a packet, from a place in it on. */
enum plimsoll_operation {
    PLIMSOLL_DEFLATE = 0, /* compresses (RFC 1951) */
    PLIMSOLL_INFLATE = 1, /* expands */
    PLIMSOLL_SEAL = 2,    /* encrypts by AES-128-GCM, and puts a tag of 16 bytes behind it; struct plimsoll_key */
    PLIMSOLL_OPEN = 3,    /* decrypts, and removes the tag; struct plimsoll_key */
    PLIMSOLL_MATCH = 4,   /* finds the first of some regular expressions: a length of 4 bytes, and the expressions, one a line */
};

/* Added to the operation, the port of a packet that comes back. */
#define PLIMSOLL_FROM_UNIT 128

/* The result of an operation that has failed: the packet is as it was. */
#define PLIMSOLL_FAILED 0xffffffffu

/* The argument of PLIMSOLL_SEAL and PLIMSOLL_OPEN. No nonce may be used twice with a key to seal. */
struct plimsoll_key {
    unsigned char key[16], nonce[12];
};

/* The port that stands for the network; others are the tenant's own. */
#define PLIMSOLL_NETWORK 0

/* A packet of a batch. Addresses are offsets in the program's memory: see plimsoll_bytes. */
struct plimsoll_packet {
    uint32_t data;     /* address of the first byte, in its buffer */
    uint32_t length;   /* bytes */
    uint32_t buffer;   /* address of its buffer */
    uint32_t size;     /* bytes of its buffer */
    uint8_t verdict;   /* enum plimsoll_verdict */
    uint8_t port;      /* where it came from; with PLIMSOLL_REDIRECT, where it goes */
    uint16_t offset;   /* with PLIMSOLL_UNIT, where its input begins */
    uint32_t argument; /* with PLIMSOLL_UNIT, the address of the argument; of a packet that comes back, the result */
    uint64_t arrived;  /* nanoseconds */
};

/* A batch of packets. */
struct plimsoll_batch {
    uint64_t now;      /* nanoseconds */
    uint32_t count;    /* packets in it */
    uint32_t room;     /* packets that it has room for */
    struct plimsoll_packet packets[];
};

_Static_assert(sizeof(struct plimsoll_packet) == 32, "the layout is fixed");
_Static_assert(sizeof(struct plimsoll_batch) == 16, "the layout is fixed");

#ifdef PLIMSOLL_NATIVE
#define PLIMSOLL_EXPORT(name) __attribute__((visibility("default")))
/* Where the memory of the program begins. */
PLIMSOLL_EXPORT(plimsoll_memory) unsigned char *plimsoll_memory;
#define PLIMSOLL_AT(address) (plimsoll_memory + (address))
#else
#define PLIMSOLL_EXPORT(name) __attribute__((export_name(#name)))
#define PLIMSOLL_AT(address) ((unsigned char *)(uintptr_t)(address))
#endif

/* Says which version of this file the program was written for. */
PLIMSOLL_EXPORT(plimsoll_abi_1) void plimsoll_abi_1(void);
void plimsoll_abi_1(void) {}

/* The batch at an address. */
static inline struct plimsoll_batch *plimsoll_batch(uint32_t at) {
    return (struct plimsoll_batch *)PLIMSOLL_AT(at);
}

/* The bytes of a packet. */
static inline unsigned char *plimsoll_bytes(const struct plimsoll_packet *packet) {
    return PLIMSOLL_AT(packet->data);
}

/* What state_save returns: where the state lies, and how long it is.
 *
 *     static struct table table;
 *     PLIMSOLL_EXPORT(state_save) uint64_t state_save(void) { return plimsoll_state(&table, sizeof table); }
 *     PLIMSOLL_EXPORT(state_room) uint32_t state_room(uint32_t length) { return length == sizeof table ? plimsoll_address(&table) : 0; }
 *     PLIMSOLL_EXPORT(state_restore) int32_t state_restore(uint32_t length) { return 0; }
 */
static inline uint32_t plimsoll_address(const void *at) {
#ifdef PLIMSOLL_NATIVE
    return (uint32_t)((const unsigned char *)at - plimsoll_memory);
#else
    return (uint32_t)(uintptr_t)at;
#endif
}

static inline uint64_t plimsoll_state(const void *at, uint32_t length) {
    return (uint64_t)plimsoll_address(at) << 32 | length;
}

/* Sends a packet to a coprocessor, from `offset` on. It comes back in a later batch of the same direction. The argument is read once this
 * function of the program ends. */
static inline void plimsoll_ask(struct plimsoll_packet *packet, enum plimsoll_operation operation, uint32_t offset, const void *argument) {
    packet->verdict = PLIMSOLL_UNIT;
    packet->port = (uint8_t)operation;
    packet->offset = (uint16_t)offset;
    packet->argument = argument ? plimsoll_address(argument) : 0;
}

/* Whether a packet comes back from a coprocessor that has done this; packet->argument is the result. */
static inline int plimsoll_came_back(const struct plimsoll_packet *packet, enum plimsoll_operation operation) {
    return packet->port == (PLIMSOLL_FROM_UNIT | operation);
}

/* Numbers of packets are big-endian, and lie at any place: one load, and a swap, which a comparison with a constant does without. */
static inline uint16_t plimsoll_get16(const unsigned char *at) {
    uint16_t value;
    __builtin_memcpy(&value, at, sizeof value);
    return __builtin_bswap16(value);
}

static inline uint32_t plimsoll_get32(const unsigned char *at) {
    uint32_t value;
    __builtin_memcpy(&value, at, sizeof value);
    return __builtin_bswap32(value);
}

static inline void plimsoll_put16(unsigned char *at, uint16_t value) {
    value = __builtin_bswap16(value);
    __builtin_memcpy(at, &value, sizeof value);
}

/* Bytes of a packet as they lie there, to be compared or hashed: WebAssembly has no instruction that swaps them. */
static inline uint32_t plimsoll_raw32(const unsigned char *at) {
    uint32_t value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t plimsoll_raw64(const unsigned char *at) {
    uint64_t value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}

/* Sums the 16-bit words of a header, for the checksum of IPv4 (RFC 1071). */
static inline uint16_t plimsoll_checksum(const unsigned char *at, uint32_t length) {
    uint32_t sum = 0;
    for (uint32_t n = 0; n + 1 < length; n += 2)
        sum += plimsoll_get16(at + n);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

/* Where the headers of a UDP packet over IPv4 lie, in bytes from its beginning, and where its payload ends: padding may follow. */
struct plimsoll_udp {
    uint32_t ip, udp, payload, end;
};

/* Finds the headers of a UDP packet over IPv4 that is whole, no fragment, and has no VLAN tag; returns 0 for any other packet. */
static inline int plimsoll_find_udp(const struct plimsoll_packet *packet, struct plimsoll_udp *found) {
    const unsigned char *frame = plimsoll_bytes(packet);
    if (packet->length < 42 || plimsoll_get16(frame + 12) != 0x0800)
        return 0;
    uint32_t header = (uint32_t)(frame[14] & 15) * 4;
    if (frame[14] >> 4 != 4 || header < 20 || packet->length < 14 + header + 8)
        return 0;
    if (frame[23] != 17 || (plimsoll_get16(frame + 20) & 0x3fff) != 0)
        return 0;
    found->ip = 14;
    found->udp = 14 + header;
    found->payload = found->udp + 8;
    found->end = found->udp + plimsoll_get16(frame + found->udp + 4);
    return found->end >= found->payload && found->end <= packet->length &&
           found->end <= 14 + (uint32_t)plimsoll_get16(frame + 16);
}

/* Swaps two places of `length` bytes. */
static inline void plimsoll_swap(unsigned char *one, unsigned char *other, uint32_t length) {
    for (uint32_t n = 0; n < length; n++) {
        unsigned char byte = one[n];
        one[n] = other[n];
        other[n] = byte;
    }
}

/* Turns a UDP packet round: its sender becomes its receiver. No checksum changes, as the same words are summed. */
static inline void plimsoll_turn(struct plimsoll_packet *packet, const struct plimsoll_udp *found) {
    unsigned char *frame = plimsoll_bytes(packet);
    plimsoll_swap(frame, frame + 6, 6);
    plimsoll_swap(frame + found->ip + 12, frame + found->ip + 16, 4);
    plimsoll_swap(frame + found->udp, frame + found->udp + 2, 2);
}

/* Gives a UDP packet another length, counted from its beginning, and writes the headers that tell it. It has no UDP checksum then, which
 * IPv4 allows. */
static inline void plimsoll_set_length(struct plimsoll_packet *packet, const struct plimsoll_udp *found, uint32_t length) {
    unsigned char *frame = plimsoll_bytes(packet);
    packet->length = length;
    plimsoll_put16(frame + found->ip + 2, (uint16_t)(length - found->ip));
    plimsoll_put16(frame + found->ip + 10, 0);
    plimsoll_put16(frame + found->ip + 10, plimsoll_checksum(frame + found->ip, found->udp - found->ip));
    plimsoll_put16(frame + found->udp + 4, (uint16_t)(length - found->udp));
    plimsoll_put16(frame + found->udp + 6, 0);
}

#endif
