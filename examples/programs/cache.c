/* Answers memcached's `get` over UDP from the NIC: values that have passed are kept, and a request for one of them never reaches the host.
 *
 * A value is kept when the server's answer to a `get` of one key leaves, for at most AGE. A command that changes one key ends what is kept of
 * that key; any other datagram to the server's port that is not understood ends all that is kept. What leaves within CHANGING after that is
 * not kept, as the server may have read it before. Clients that change values by TCP are not seen, and must not be used together with this;
 * a value that expires sooner than AGE is answered until then. */
#include "plimsoll.h"

#ifndef PORT
#define PORT 11211
#endif

/* Nanoseconds. */
#define CHANGING 100000000
#define AGE 1000000000

/* Values, the longest keys, and the longest answers that are kept, without memcached's header of 8 bytes. */
enum { ENTRIES = 4096, KEY = 32, TEXT = 440, HEADER = 8 };

/* Times are later by 1 than they were, so that 0 is never. */
static struct entry {
    uint64_t stored, changed;
    uint32_t server;
    uint16_t key_length, text_length;
    unsigned char key[KEY];
    unsigned char text[TEXT];
} table[ENTRIES];

/* When something came last that was not understood. */
static uint64_t forgotten;

/* Whether `at` is not more than `span` before `now`, or after it. */
static int is_within(uint64_t at, uint64_t now, int64_t span) {
    return at != 0 && (int64_t)(now + 1 - at) <= span;
}

static struct entry *entry_of(uint32_t server, const unsigned char *key, uint32_t length) {
    uint32_t hash = 2166136261u ^ server; /* FNV-1a */
    for (uint32_t n = 0; n < length; n++)
        hash = (hash ^ key[n]) * 16777619u;
    return &table[hash % ENTRIES];
}

static int same(const unsigned char *one, const unsigned char *other, uint32_t length) {
    for (uint32_t n = 0; n < length; n++)
        if (one[n] != other[n])
            return 0;
    return 1;
}

static void copy(unsigned char *to, const unsigned char *from, uint32_t length) {
    for (uint32_t n = 0; n < length; n++)
        to[n] = from[n];
}

/* A message of memcached's, in one datagram. */
struct message {
    struct plimsoll_udp found;
    uint32_t server, length;
    unsigned char *text;
};

/* Finds a message to the server (at 2) or from it (at 0). */
static int find(const struct plimsoll_packet *packet, uint32_t port_at, struct message *message) {
    struct plimsoll_udp *found = &message->found;
    if (!plimsoll_find_udp(packet, found) || found->end < found->payload + HEADER)
        return 0;
    unsigned char *frame = plimsoll_bytes(packet);
    /* The second number is that of the message's datagrams. */
    if (plimsoll_get16(frame + found->udp + port_at) != PORT || plimsoll_get16(frame + found->payload + 4) != 1)
        return 0;
    message->server = plimsoll_get32(frame + found->ip + (port_at ? 16 : 12));
    message->text = frame + found->payload + HEADER;
    message->length = found->end - found->payload - HEADER;
    return 1;
}

/* Whether a packet is UDP to the server's port, also if it is the first of some fragments. */
static int is_for_server(const struct plimsoll_packet *packet) {
    const unsigned char *frame = plimsoll_bytes(packet);
    if (packet->length < 34 || plimsoll_get16(frame + 12) != 0x0800 || frame[23] != 17)
        return 0;
    uint32_t udp = 14 + (uint32_t)(frame[14] & 15) * 4;
    return (plimsoll_get16(frame + 20) & 0x1fff) == 0 && packet->length >= udp + 4 && plimsoll_get16(frame + udp + 2) == PORT;
}

/* The length of the word at `from`, which ends with a space or a carriage return; 0 if it is too long for a key. */
static uint32_t word(const struct message *message, uint32_t from) {
    for (uint32_t n = 0; n <= KEY && from + n < message->length; n++)
        if (message->text[from + n] == ' ' || message->text[from + n] == '\r')
            return n;
    return 0;
}

/* The number at `from`, which ends as a word does; -1 if there is none, or one of more than four digits. */
static int32_t number(const struct message *message, uint32_t from) {
    uint32_t digits = word(message, from);
    int32_t value = 0;
    if (digits == 0 || digits > 4)
        return -1;
    for (uint32_t n = 0; n < digits; n++) {
        unsigned char digit = message->text[from + n];
        if (digit < '0' || digit > '9')
            return -1;
        value = value * 10 + (digit - '0');
    }
    return value;
}

/* Where the first line ends, behind `\r\n`; 0 if it does not. */
static uint32_t line(const struct message *message) {
    for (uint32_t n = 1; n < message->length; n++)
        if (message->text[n] == '\n')
            return message->text[n - 1] == '\r' ? n + 1 : 0;
    return 0;
}

/* What is asked of a server, in one datagram. */
enum asked { GET, CHANGE, UNKNOWN };

static enum asked asked(const struct message *message, uint32_t *key_at, uint32_t *key_length) {
    static const char lines[][9] = {"get ", "delete ", "incr ", "decr ", "touch "};
    static const char values[][9] = {"set ", "add ", "replace ", "append ", "prepend ", "cas "};
    uint32_t command = word(message, 0) + 1;
    uint32_t end = line(message);
    *key_at = command;
    *key_length = word(message, command);
    if (command == 1 || command > 8 || *key_length == 0 || end == 0 || message->length < command)
        return UNKNOWN;
    for (uint32_t n = 0; n < sizeof lines / sizeof *lines; n++)
        if (same(message->text, (const unsigned char *)lines[n], command) && lines[n][command] == 0) {
            if (end != message->length)
                return UNKNOWN;
            if (n > 0)
                return CHANGE;
            return end == command + *key_length + 2 ? GET : UNKNOWN;
        }
    for (uint32_t n = 0; n < sizeof values / sizeof *values; n++)
        if (same(message->text, (const unsigned char *)values[n], command) && values[n][command] == 0) {
            /* KEY FLAGS EXPTIME BYTES, and as many bytes behind the line. */
            uint32_t flags = command + *key_length + 1;
            uint32_t expires = flags + word(message, flags) + 1;
            int32_t bytes = number(message, expires + word(message, expires) + 1);
            return bytes >= 0 && end + (uint32_t)bytes + 2 == message->length ? CHANGE : UNKNOWN;
        }
    return UNKNOWN;
}

/* Answers a `get` with what is kept. */
static void answer(struct plimsoll_packet *packet, const struct message *message, const struct entry *entry) {
    uint32_t end = message->found.payload + HEADER + entry->text_length;
    if (end > packet->size - (packet->data - packet->buffer))
        return;
    copy(message->text, entry->text, entry->text_length);
    plimsoll_turn(packet, &message->found);
    plimsoll_set_length(packet, &message->found, end);
    packet->verdict = PLIMSOLL_REDIRECT;
    packet->port = PLIMSOLL_NETWORK;
}

static int is_kept(const struct entry *entry, const struct message *message, const unsigned char *key, uint32_t length, uint64_t now) {
    return is_within(entry->stored, now, AGE) && entry->stored > forgotten && entry->server == message->server &&
           entry->key_length == length && same(entry->key, key, length);
}

PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct plimsoll_packet *packet = &batch->packets[n];
        struct message message;
        uint32_t key_at = 0, length = 0;
        if (!is_for_server(packet))
            continue;
        enum asked what = find(packet, 2, &message) ? asked(&message, &key_at, &length) : UNKNOWN;
        if (what == UNKNOWN) {
            forgotten = batch->now + 1;
            continue;
        }
        const unsigned char *key = message.text + key_at;
        struct entry *entry = entry_of(message.server, key, length);
        if (what == CHANGE) {
            entry->changed = batch->now + 1;
            entry->stored = 0;
        } else if (is_kept(entry, &message, key, length, batch->now)) {
            answer(packet, &message, entry);
        }
    }
    return batch->count;
}

/* Whether the message is one value, `VALUE KEY FLAGS BYTES\r\n`, as many bytes, and `\r\nEND\r\n`; its key is `length` long. */
static int is_one_value(const struct message *message, uint32_t length) {
    uint32_t flags = 6 + length + 1;
    int32_t bytes = number(message, flags + word(message, flags) + 1);
    uint32_t end = line(message);
    return bytes >= 0 && end != 0 && end + (uint32_t)bytes + 7 == message->length &&
           same(message->text + message->length - 7, (const unsigned char *)"\r\nEND\r\n", 7);
}

PLIMSOLL_EXPORT(egress) uint32_t egress(uint32_t at) {
    struct plimsoll_batch *batch = plimsoll_batch(at);
    for (uint32_t n = 0; n < batch->count; n++) {
        struct message message;
        if (!find(&batch->packets[n], 0, &message) || message.length > TEXT || message.length < 6 + 7)
            continue;
        uint32_t length = word(&message, 6);
        if (length == 0 || !same(message.text, (const unsigned char *)"VALUE ", 6) || !is_one_value(&message, length))
            continue;
        struct entry *entry = entry_of(message.server, message.text + 6, length);
        if (is_within(entry->changed, batch->now, CHANGING) || is_within(forgotten, batch->now, CHANGING))
            continue;
        copy(entry->key, message.text + 6, length);
        copy(entry->text, message.text, message.length);
        entry->stored = batch->now + 1;
        entry->server = message.server;
        entry->key_length = (uint16_t)length;
        entry->text_length = (uint16_t)message.length;
    }
    return batch->count;
}
