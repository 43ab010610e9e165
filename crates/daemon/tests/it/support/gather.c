/* Sends a datagram of three segments, headers and payload apart, then waits for a frame: functions of the C client that
 * the examples do not use. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plimsoll_vnic.h"

enum { HEADERS = 42, PAYLOAD = 3000, SEGMENT = 1000 };

int main(int argc, char **argv) {
    static uint8_t headers[HEADERS] = {2, 0, 0, 0, 0, 99, 2, 0, 0, 0, 0, 1, 8, 0, 0x45};
    static uint8_t payload[PAYLOAD], frame[2048];
    const struct plimsoll_offload cut = {
        .flags = 1, .gso_type = 5, .hdr_len = HEADERS, .gso_size = SEGMENT, .csum_start = 34, .csum_offset = 6};
    const struct iovec parts[] = {{headers, HEADERS}, {payload, 10}, {payload + 10, PAYLOAD - 10}};
    struct plimsoll_completion done = {0, 99};
    struct plimsoll_rules rules;
    ssize_t len = -1;

    struct plimsoll_vnic *vnic = argc == 2 ? plimsoll_vnic_connect(argv[1]) : NULL;
    if (!vnic) {
        perror("gather");
        return 1;
    }
    headers[16] = (20 + 8 + PAYLOAD) >> 8, headers[17] = (20 + 8 + PAYLOAD) & 255;
    headers[22] = 64, headers[23] = 17;
    memcpy(headers + 26, (uint8_t[]){10, 0, 0, 1, 10, 0, 0, 99, 0, 8, 0, 80}, 12);
    headers[38] = (8 + PAYLOAD) >> 8, headers[39] = (8 + PAYLOAD) & 255;
    for (int i = 0; i < PAYLOAD; i++)
        payload[i] = (uint8_t)(i / SEGMENT);

    int queue = plimsoll_vnic_classify(vnic, headers, HEADERS);
    /* Cut off: it is no whole datagram, so the daemon classifies it. */
    printf("%d ", queue);
    struct plimsoll_flow flow = {.family = 4, .protocol = 17, .has_ports = 1, .src_port = 8, .dst_port = 80,
                                 .src = {10, 0, 0, 1}, .dst = {10, 0, 0, 99}};
    queue = plimsoll_vnic_queue_for(vnic, &flow);
    printf("%d %d ", queue, plimsoll_vnic_queue_for(vnic, &flow));
    if (plimsoll_vnic_sendv(vnic, (uint32_t)queue, parts, 3, &cut, 0) < 0 || plimsoll_vnic_ring(vnic) < 0) {
        perror("gather");
        return 1;
    }
    while (plimsoll_vnic_poll(vnic, &done, 1) == 0)
        plimsoll_vnic_wait(vnic, 1000);
    while ((len = plimsoll_vnic_receive(vnic, frame, sizeof frame)) < 0 && errno == EAGAIN)
        plimsoll_vnic_wait(vnic, 1000);
    plimsoll_vnic_rules(vnic, &rules);
    printf("%u %u %zd %u %d %d\n", done.queue, done.status, len, frame[len - 1], (int)rules.hits, (int)rules.misses);
    plimsoll_vnic_close(vnic);
    return 0;
}
