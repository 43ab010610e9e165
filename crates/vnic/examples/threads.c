/* Two threads send through one vNIC, each a flow of its own through a doorbell queue of its own, without a lock. The first says
 * that its packets belong to application 1, the second to application 2: a policy may match on that (docs/vnic.md, "Metadata").
 *
 * cc -pthread -Icrates/vnic/include crates/vnic/examples/threads.c target/release/libplimsoll_vnic.a -ldl -lm -o threads
 * ./threads /run/plimsoll/shop.sock 10.0.0.1 10.0.0.2 1000
 * first: 1000 frames left, 0 were dropped
 * second: 1000 frames left, 0 were dropped */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "datagram.h"
#include "plimsoll_vnic.h"

/* A thread's frames, and how many of them left or were dropped. */
struct work {
    uint32_t queue;
    uint8_t frame[DATAGRAM];
    long count, posted, left, dropped;
    struct plimsoll_poster *poster;
    atomic_int ended;
};

static void tally(struct work *work, const struct plimsoll_completion *done, size_t count) {
    for (size_t i = 0; i < count; i++)
        *(done[i].status == PLIMSOLL_SENT ? &work->left : &work->dropped) += 1;
}

static int through(const struct work *work) {
    return work->left + work->dropped >= work->count;
}

/* The second thread: it has a poster; the first thread hands its completions on. */
static void *post(void *argument) {
    struct work *work = argument;
    struct plimsoll_completion done[64];
    const struct plimsoll_metadata second = {.present = PLIMSOLL_APP, .app = 2};
    plimsoll_poster_set_metadata(work->poster, work->queue, &second);
    while (!through(work)) {
        while (work->posted < work->count &&
               plimsoll_poster_send(work->poster, work->queue, work->frame, DATAGRAM, NULL, 0) == 0)
            work->posted++;
        if (plimsoll_poster_ring(work->poster) < 0 && errno != EAGAIN)
            break;
        size_t told = plimsoll_poster_poll(work->poster, done, 64);
        if (told == 0) {
            int woken = plimsoll_poster_wait(work->poster, 100, done);
            if (woken < 0)
                break;
            told = (size_t)woken;
        }
        tally(work, done, told);
    }
    atomic_store(&work->ended, 1);
    return NULL;
}

/* The first thread: it has the vNIC, sends its own frames, and polls for both until both are through. */
static int serve(struct plimsoll_vnic *vnic, struct work *work, const struct work *other) {
    struct plimsoll_completion done[64];
    const struct plimsoll_metadata first = {.present = PLIMSOLL_APP, .app = 1};
    plimsoll_vnic_set_metadata(vnic, work->queue, &first);
    while (!through(work) || !atomic_load(&other->ended)) {
        while (work->posted < work->count &&
               plimsoll_vnic_send(vnic, work->queue, work->frame, DATAGRAM, NULL, 0) == 0)
            work->posted++;
        if (plimsoll_vnic_ring(vnic) < 0 && errno != EAGAIN)
            return -1;
        size_t told = plimsoll_vnic_poll(vnic, done, 64);
        tally(work, done, told);
        if (told == 0 && plimsoll_vnic_wait(vnic, 10) < 0)
            return -1;
    }
    return 0;
}

int main(int argc, char **argv) {
    struct plimsoll_flow flow = {.family = 4, .protocol = 17, .has_ports = 1, .src_port = 5000, .dst_port = 5001};
    static struct work works[2];
    uint8_t mac[6];
    pthread_t second;

    if (argc != 5 || inet_pton(AF_INET, argv[2], flow.src) != 1 || inet_pton(AF_INET, argv[3], flow.dst) != 1) {
        fprintf(stderr, "usage: threads SOCKET FROM TO COUNT\n");
        return 1;
    }
    struct plimsoll_vnic *vnic = plimsoll_vnic_connect(argv[1]);
    if (!vnic) {
        perror("threads");
        return 1;
    }
    plimsoll_vnic_mac(vnic, mac);
    for (int i = 0; i < 2; i++, flow.src_port++) {
        int queue = plimsoll_vnic_open_flow(vnic, &flow);
        if (queue < 0) {
            perror("threads");
            return 1;
        }
        works[i].queue = (uint32_t)queue;
        works[i].count = atol(argv[4]);
        datagram(works[i].frame, mac, &flow);
    }
    works[1].poster = plimsoll_vnic_poster(vnic, &works[1].queue, 1, 256);
    if (!works[1].poster || pthread_create(&second, NULL, post, &works[1]) != 0) {
        perror("threads");
        return 1;
    }
    int served = serve(vnic, &works[0], &works[1]);
    if (served < 0)
        perror("threads");
    /* A second thread that still waits for a completion is told that there will be none. */
    plimsoll_vnic_close(vnic);
    pthread_join(second, NULL);
    plimsoll_poster_close(works[1].poster);
    for (int i = 0; i < 2; i++)
        printf("%s: %ld frames left, %ld were dropped\n", i ? "second" : "first", works[i].left, works[i].dropped);
    return served < 0;
}
