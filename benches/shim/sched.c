/*
 * rte_sched in the pattern of the engine's bench: every packet that leaves is queued again, in a queue chosen
 * at random. The loop is here and not in Rust because packet writing and bursts are static inlines.
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_sched.h>

#define BATCH 32
#define BEST_EFFORT (RTE_SCHED_TRAFFIC_CLASSES_PER_PIPE - 1)

static struct rte_mempool *pool;
static struct rte_sched_port *port;
static uint32_t pipe_count;
static uint32_t seed = 1;

/* Starts DPDK without huge pages, devices or files; 0 when it runs. */
int plimsoll_dpdk_start(void)
{
	char *args[] = { "benches", "--no-huge", "-m", "512", "--no-pci", "-l", "0", "--no-telemetry",
			 "--no-shconf", "--log-level", "error" };

	if (rte_eal_init(sizeof(args) / sizeof(args[0]), args) < 0)
		return -rte_errno;
	pool = rte_pktmbuf_pool_create("frames", 65535, 0, 0, RTE_PKTMBUF_HEADROOM + 64, 0);
	return pool ? 0 : -rte_errno;
}

static uint32_t next_random(void)
{
	seed = seed * 1664525u + 1013904223u;
	return seed >> 8;
}

/* Marks a frame with one of the four best-effort queues of one of the pipes. */
static void choose_queue(struct rte_mbuf *frame)
{
	uint32_t queue = next_random() % (pipe_count * RTE_SCHED_BE_QUEUES_PER_PIPE);

	rte_sched_port_pkt_write(port, frame, 0, queue / RTE_SCHED_BE_QUEUES_PER_PIPE, BEST_EFFORT,
				 queue % RTE_SCHED_BE_QUEUES_PER_PIPE, RTE_COLOR_GREEN);
}

/*
 * Builds a port with `pipes` pipes (a power of two) of equal weight and fills it with `frames` frames of 1500 B.
 * Every rate is that of the port, 100 GB/s, far above what a core can schedule. Returns 0 if it was built.
 */
int plimsoll_sched_open(uint32_t pipes, uint32_t frames)
{
	const uint64_t rate = 100000000000ull;
	struct rte_sched_subport_profile_params whole = { .tb_rate = rate, .tb_size = 1000000, .tc_period = 10 };
	struct rte_sched_pipe_params pipe = { .tb_rate = rate, .tb_size = 1000000, .tc_period = 10,
					      .tc_ov_weight = 1, .wrr_weights = { 1, 1, 1, 1 } };
	struct rte_sched_subport_params subport = { .n_pipes_per_subport_enabled = pipes, .pipe_profiles = &pipe,
						    .n_pipe_profiles = 1, .n_max_pipe_profiles = 1 };
	struct rte_sched_port_params params = { .name = "bench", .rate = rate, .mtu = 1522,
						.frame_overhead = RTE_SCHED_FRAME_OVERHEAD_DEFAULT,
						.n_subports_per_port = 1, .subport_profiles = &whole,
						.n_subport_profiles = 1, .n_max_subport_profiles = 1,
						.n_pipes_per_subport = pipes };

	for (int class = 0; class < RTE_SCHED_TRAFFIC_CLASSES_PER_PIPE; class++)
		whole.tc_rate[class] = rate;
	pipe.tc_rate[BEST_EFFORT] = rate;
	subport.qsize[BEST_EFFORT] = 64;
	pipe_count = pipes;
	port = rte_sched_port_config(&params);
	if (!port)
		return -1;
	if (rte_sched_subport_config(port, 0, &subport, 0))
		return -2;
	for (uint32_t p = 0; p < pipes; p++)
		if (rte_sched_pipe_config(port, 0, p, 0))
			return -3;
	for (uint32_t f = 0; f < frames; f++) {
		struct rte_mbuf *frame = rte_pktmbuf_alloc(pool);

		if (!frame)
			return -4;
		frame->pkt_len = frame->data_len = 1500;
		choose_queue(frame);
		rte_sched_port_enqueue(port, &frame, 1);
	}
	return 0;
}

/* Moves at least `frames` frames, each out and in again. Returns the processor time in nanoseconds; counts in `moved` and `lost`. */
uint64_t plimsoll_sched_run(uint64_t frames, uint64_t *moved, uint64_t *lost)
{
	struct timespec from, to;
	uint64_t done = 0, gone = 0;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
	while (done < frames) {
		struct rte_mbuf *batch[BATCH];
		int n = rte_sched_port_dequeue(port, batch, BATCH);

		for (int i = 0; i < n; i++)
			choose_queue(batch[i]);
		if (n)
			gone += n - rte_sched_port_enqueue(port, batch, n);
		done += n;
	}
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
	*moved = done;
	*lost = gone;
	return (to.tv_sec - from.tv_sec) * 1000000000ull + to.tv_nsec - from.tv_nsec;
}

/* Frees the port and what it holds. */
void plimsoll_sched_close(void)
{
	rte_sched_port_free(port);
	port = NULL;
}
