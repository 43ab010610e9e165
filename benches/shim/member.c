/*
 * DPDK's rte_member with a sketch (HeavyKeeper): counts keys and reports the heaviest.
 */
#include <stdint.h>
#include <string.h>

#include <rte_errno.h>
#include <rte_member.h>

#define KEY 40

static struct rte_member_setsum *sketch;
static uint32_t most;

/* Makes a sketch that reports `top` keys of 40 bytes; 0 when it was made. */
int plimsoll_member_open(uint32_t top)
{
	struct rte_member_parameters params = {
		.name = "heavy", .type = RTE_MEMBER_TYPE_SKETCH, .key_len = KEY, .prim_hash_seed = 7,
		.sec_hash_seed = 11, .error_rate = 0.0001f, .sample_rate = 1.0f, .top_k = top, .num_keys = 1 << 16,
		.extra_flag = RTE_MEMBER_SKETCH_ALWAYS_BOUNDED, .socket_id = 0,
	};

	sketch = rte_member_create(&params);
	most = top;
	return sketch ? 0 : -rte_errno;
}

void plimsoll_member_add(const uint8_t *keys, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		rte_member_add(sketch, keys + i * KEY, 1);
}

/* Writes the heaviest keys and their counts, and returns how many. */
int plimsoll_member_report(uint8_t *keys, uint64_t *counts)
{
	void *found[most];
	int count = rte_member_report_heavyhitter(sketch, found, counts);

	for (int i = 0; i < count; i++)
		memcpy(keys + i * KEY, found[i], KEY);
	return count;
}

void plimsoll_member_close(void)
{
	rte_member_free(sketch);
	sketch = NULL;
}
