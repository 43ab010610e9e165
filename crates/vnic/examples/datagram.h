/* A datagram to send, for the examples in C. */
#ifndef DATAGRAM_H
#define DATAGRAM_H

#include <arpa/inet.h>
#include <stdint.h>
#include <string.h>

#include "plimsoll_vnic.h"

enum { DATAGRAM = 60 };

/* Writes a datagram of an IPv4 flow: 18 bytes, broadcast on the link, without a UDP checksum. */
static void datagram(uint8_t *frame, const uint8_t *mac, const struct plimsoll_flow *flow) {
    static const uint8_t start[] = {0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17};
    const uint16_t udp[] = {htons(flow->src_port), htons(flow->dst_port), htons(26)};
    uint32_t sum = 0;
    memset(frame, 0, DATAGRAM);
    memset(frame, 0xff, 6);
    memcpy(frame + 6, mac, 6);
    frame[12] = 8;
    memcpy(frame + 14, start, sizeof start);
    memcpy(frame + 26, flow->src, 4);
    memcpy(frame + 30, flow->dst, 4);
    for (int at = 14; at < 34; at += 2)
        sum += (uint32_t)frame[at] << 8 | frame[at + 1];
    sum = ~((sum & 0xffff) + (sum >> 16));
    frame[24] = (uint8_t)(sum >> 8);
    frame[25] = (uint8_t)sum;
    memcpy(frame + 34, udp, sizeof udp);
}

#endif
