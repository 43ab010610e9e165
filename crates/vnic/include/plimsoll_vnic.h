/* The client of Plimsoll's shared-memory vNIC, for C. The format is in docs/vnic.md.
 *
 * Link with libplimsoll_vnic.a (cargo build --release -p plimsoll-vnic).
 * A vNIC belongs to one thread at a time, and so does each poster: each other thread sends with a poster of its own. A
 * function that fails returns -1 (or NULL) and sets errno. */
#ifndef PLIMSOLL_VNIC_H
#define PLIMSOLL_VNIC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct plimsoll_vnic;
struct plimsoll_poster;

/* Headers of the packets of one flow. Addresses are in network order, ports and VLAN in the machine's. */
struct plimsoll_flow {
    uint8_t family;    /* 0: not IP; 4; 6 */
    uint8_t protocol;  /* of IP */
    uint8_t dscp;
    uint8_t has_ports; /* 1: TCP, UDP or SCTP */
    uint16_t vlan;     /* 0: none */
    uint16_t src_port;
    uint16_t dst_port;
    uint8_t src[16];   /* the first 4 for IPv4 */
    uint8_t dst[16];
};

/* Work left to the daemon, in virtio-net's terms. */
struct plimsoll_offload {
    uint8_t flags;    /* 1: complete the checksum */
    uint8_t gso_type; /* 0: one frame; 1: TCP over IPv4; 4: TCP over IPv6; 5: UDP */
    uint16_t hdr_len;
    uint16_t gso_size;
    uint16_t csum_start;
    uint16_t csum_offset;
};

enum plimsoll_status { PLIMSOLL_SENT = 0, PLIMSOLL_DROPPED = 1, PLIMSOLL_MALFORMED = 2 };

struct plimsoll_completion {
    uint32_t queue;
    uint16_t status; /* enum plimsoll_status */
};

/* Which fields of plimsoll_metadata are set. */
enum plimsoll_present { PLIMSOLL_PRIORITY = 1, PLIMSOLL_CGROUP = 2, PLIMSOLL_USER = 4, PLIMSOLL_APP = 8 };

/* Metadata of packets, which their headers do not hold: this tenant's own classes may match on it. */
struct plimsoll_metadata {
    uint32_t present; /* enum plimsoll_present, or-ed; the other fields are ignored */
    uint32_t priority;
    uint32_t user;
    uint32_t app;
    uint64_t cgroup;
};

/* Counters of the cache of rules. */
struct plimsoll_rules {
    uint64_t hits;   /* packets whose queue was known */
    uint64_t misses; /* packets whose queue was asked for */
    uint64_t pushed; /* rules that came without a question */
    uint64_t ended;  /* rules that a new policy has ended */
};

/* Connects to a tenant's socket; waits up to five seconds for one that is not there yet. */
struct plimsoll_vnic *plimsoll_vnic_connect(const char *path);
void plimsoll_vnic_close(struct plimsoll_vnic *vnic);
void plimsoll_vnic_mac(const struct plimsoll_vnic *vnic, uint8_t mac[6]);

/* Opens a flow queue for the flow's packets and returns its number. Queue 0 is always open: the daemon classifies each of
 * its packets. ENOSPC: the tenant has no flow queue left. */
int plimsoll_vnic_open_flow(struct plimsoll_vnic *vnic, const struct plimsoll_flow *flow);
/* Returns the flow queue for the flow's packets, or for the frame, by the daemon's rules: from a cache, or after asking.
 * Call it for each packet, as a rule ends with the policy. 0: the daemon classifies. */
int plimsoll_vnic_queue_for(struct plimsoll_vnic *vnic, const struct plimsoll_flow *flow);
int plimsoll_vnic_classify(struct plimsoll_vnic *vnic, const void *frame, size_t len);
void plimsoll_vnic_rules(const struct plimsoll_vnic *vnic, struct plimsoll_rules *into);
int plimsoll_vnic_close_flow(struct plimsoll_vnic *vnic, uint32_t queue);

/* Copies a frame and posts it. offload may be NULL; tag is the slack or deadline in microseconds, 0 for the class's.
 * EAGAIN: no room, poll and try again. */
int plimsoll_vnic_send(struct plimsoll_vnic *vnic, uint32_t queue, const void *frame, size_t len,
                       const struct plimsoll_offload *offload, uint32_t tag);
/* Like plimsoll_vnic_send, for a frame that lies in several places: at most 40 pieces of up to 2048 bytes. */
int plimsoll_vnic_sendv(struct plimsoll_vnic *vnic, uint32_t queue, const struct iovec *parts, size_t count,
                        const struct plimsoll_offload *offload, uint32_t tag);
/* Sets the metadata of a flow queue's packets, in place of earlier metadata. It holds from the next ring on, for packets
 * that the daemon has not taken by then and for all later ones. EAGAIN: too many doorbells wait, ring first. */
int plimsoll_vnic_set_metadata(struct plimsoll_vnic *vnic, uint32_t queue, const struct plimsoll_metadata *metadata);
/* Like plimsoll_vnic_sendv, for a frame with metadata of its own. Each field that it has replaces the flow queue's. */
int plimsoll_vnic_send_described(struct plimsoll_vnic *vnic, uint32_t queue, const struct iovec *parts, size_t count,
                                 const struct plimsoll_offload *offload, uint32_t tag,
                                 const struct plimsoll_metadata *metadata);
/* Rings the doorbell for all that was posted. EAGAIN: no room for the doorbells, ring again later. */
int plimsoll_vnic_ring(struct plimsoll_vnic *vnic);
/* Takes up to `most` completions and returns their number; into may be NULL. */
size_t plimsoll_vnic_poll(struct plimsoll_vnic *vnic, struct plimsoll_completion *into, size_t most);
/* Copies the oldest received frame out and returns its length. EAGAIN: there is none. */
ssize_t plimsoll_vnic_receive(struct plimsoll_vnic *vnic, void *into, size_t len);

/* Sleeps until a frame has completed or has arrived, at most `millis` (for ever if negative): 1 if one has, 0 if not. */
int plimsoll_vnic_wait(struct plimsoll_vnic *vnic, int millis);
/* Returns the descriptor that is readable when plimsoll_vnic_wait would end: call plimsoll_vnic_wait with 0 before
 * polling the descriptor, and after. */
int plimsoll_vnic_fd(const struct plimsoll_vnic *vnic);

/* Makes a poster, with which another thread sends without a lock. It has a doorbell queue of its own, `buffers` free
 * buffers of 2048 bytes, and `count` flow queues, which must be idle; only the poster may use them from now on. It may
 * have an equal part of the completion ring's frames on their way. The thread that has the vNIC makes the poster, and
 * hands it to the other thread.
 * ENOSPC: doorbell queues or buffers are used up, or a flow queue is in use.
 *
 * Its completions come from the thread that has the vNIC, which hands them on as it polls: that thread must go on polling.
 * A poster may be closed before its vNIC or after it; its buffers, flow queues and doorbell queue do not come back. */
struct plimsoll_poster *plimsoll_vnic_poster(struct plimsoll_vnic *vnic, const uint32_t *queues, size_t count,
                                             size_t buffers);
void plimsoll_poster_close(struct plimsoll_poster *poster);
/* Each does what the function of a vNIC with the same ending does. */
int plimsoll_poster_send(struct plimsoll_poster *poster, uint32_t queue, const void *frame, size_t len,
                         const struct plimsoll_offload *offload, uint32_t tag);
int plimsoll_poster_sendv(struct plimsoll_poster *poster, uint32_t queue, const struct iovec *parts, size_t count,
                          const struct plimsoll_offload *offload, uint32_t tag);
int plimsoll_poster_set_metadata(struct plimsoll_poster *poster, uint32_t queue, const struct plimsoll_metadata *metadata);
int plimsoll_poster_send_described(struct plimsoll_poster *poster, uint32_t queue, const struct iovec *parts, size_t count,
                                   const struct plimsoll_offload *offload, uint32_t tag,
                                   const struct plimsoll_metadata *metadata);
int plimsoll_poster_ring(struct plimsoll_poster *poster);
size_t plimsoll_poster_poll(struct plimsoll_poster *poster, struct plimsoll_completion *into, size_t most);
/* Sleeps until a completion is handed on, at most `millis` (for ever if negative), and takes it: 1 if it took one, 0 if
 * not; into may be NULL. EPIPE: the vNIC is closed. */
int plimsoll_poster_wait(struct plimsoll_poster *poster, int millis, struct plimsoll_completion *into);

#ifdef __cplusplus
}
#endif

#endif
