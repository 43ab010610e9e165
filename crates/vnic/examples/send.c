/* Sends UDP datagrams through a vNIC, as fast as the policy lets them leave.
 *
 * cc -Icrates/vnic/include crates/vnic/examples/send.c target/release/libplimsoll_vnic.a -lpthread -ldl -lm -o send
 * ./send /run/plimsoll/shop.sock 10.0.0.1 10.0.0.2 1000 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datagram.h"
#include "plimsoll_vnic.h"

int main(int argc, char **argv) {
    struct plimsoll_flow flow = {.family = 4, .protocol = 17, .has_ports = 1, .src_port = 5000, .dst_port = 5001};
    struct plimsoll_completion done[64];
    long posted = 0, left = 0, dropped = 0;
    uint8_t mac[6], frame[DATAGRAM];

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
        int queue = plimsoll_vnic_classify(vnic, frame, DATAGRAM);
        if (queue < 0) {
            perror("send");
            return 1;
        }
        while (posted < count && plimsoll_vnic_send(vnic, (uint32_t)queue, frame, DATAGRAM, NULL, 0) == 0)
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
