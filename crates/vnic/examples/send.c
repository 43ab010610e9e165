/* Sends UDP datagrams through a vNIC, as fast as the policy lets them leave.
 *
 * cc -Icrates/vnic/include crates/vnic/examples/send.c target/release/libplimsoll_vnic.a -lpthread -ldl -lm -o send
 * ./send /run/plimsoll/shop.sock 10.0.0.1 10.0.0.2 1000 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plimsoll_vnic.h"

enum { SOURCE_PORT = 5000, DESTINATION_PORT = 5001, LEN = 60 };

/* A datagram of 18 bytes for everybody on the link, without a UDP checksum. */
static void datagram(uint8_t *frame, const uint8_t *mac, const struct plimsoll_flow *flow) {
    static const uint8_t start[] = {0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17};
    const uint16_t udp[] = {htons(SOURCE_PORT), htons(DESTINATION_PORT), htons(26)};
    uint32_t sum = 0;
    memset(frame, 0, LEN);
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

int main(int argc, char **argv) {
    struct plimsoll_flow flow = {.family = 4, .protocol = 17, .has_ports = 1,
                                 .src_port = SOURCE_PORT, .dst_port = DESTINATION_PORT};
    struct plimsoll_completion done[64];
    long posted = 0, left = 0, dropped = 0;
    uint8_t mac[6], frame[LEN];

    if (argc != 5 || inet_pton(AF_INET, argv[2], flow.src) != 1 || inet_pton(AF_INET, argv[3], flow.dst) != 1) {
        fprintf(stderr, "usage: send SOCKET FROM TO COUNT\n");
        return 1;
    }
    long count = atol(argv[4]);
    struct plimsoll_vnic *vnic = plimsoll_vnic_connect(argv[1]);
    if (!vnic) {
        perror("send");
        return 1;
    }
    plimsoll_vnic_mac(vnic, mac);
    datagram(frame, mac, &flow);
    while (left + dropped < count) {
        /* For each batch: the answer comes from a cache, and may change with the policy. */
        int queue = plimsoll_vnic_classify(vnic, frame, LEN);
        if (queue < 0) {
            perror("send");
            return 1;
        }
        while (posted < count && plimsoll_vnic_send(vnic, (uint32_t)queue, frame, LEN, NULL, 0) == 0)
            posted++;
        if (plimsoll_vnic_ring(vnic) < 0 && errno != EAGAIN) {
            perror("send");
            return 1;
        }
        size_t told = plimsoll_vnic_poll(vnic, done, 64);
        for (size_t i = 0; i < told; i++)
            *(done[i].status == PLIMSOLL_SENT ? &left : &dropped) += 1;
        if (told == 0 && plimsoll_vnic_wait(vnic, 100) < 0) {
            perror("send");
            return 1;
        }
    }
    printf("%ld frames left, %ld were dropped\n", left, dropped);
    plimsoll_vnic_close(vnic);
    return 0;
}
