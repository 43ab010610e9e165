//! The limiters that are compared with the engine behave as their papers say.

use crate::support::{assert_holds, outcome, scenario};

/// Runs a scenario and asserts that all its expectations hold.
fn holds(text: &str) {
    let scenario = scenario(text);
    assert_holds(&scenario, &outcome(&scenario, 1));
}

#[test]
fn class_fetch_modules_carry_what_their_latency_allows() {
    holds(
        "
name: fetch
rate: 10Gbps
duration: 100ms
repeat: {c: 8}
systems:
  - one: {kind: class_fetch, fetch: {sigma: 0s}}
  - two: {kind: class_fetch, fetch: {modules: 2, sigma: 0s}}
  - bursts: {kind: class_fetch, fetch: {sigma: 0s, burst: 3000B}}
tenants: {c<c>: {}, alone: {}}
workloads:
  u<c>: {tenant: c<c>, kind: udp, size: 470B, rate: <11Gbps / c>, stop: 5ms}
  single: {tenant: alone, kind: udp, size: 470B, rate: 11Gbps, start: 60ms, stop: 65ms}
measure: {window: 1ms, from: 1ms, to: 5ms, gaps: true}
expect:
  # 512 bytes each 1,250 + 50 ns.
  - {that: one.c.throughput ~ 3.151Gbps +- 0.1%}
  - {that: two.c.throughput ~ 6.302Gbps +- 1%}
  - {that: 'two.alone.throughput[61ms..64ms] ~ 3.151Gbps +- 0.1%', because: a class is with one module at a time}
  # Five packets of 512 bytes are within 3,000: 5 * 512 B each 5 * 1,250 + 50 ns.
  - {that: bursts.c.throughput ~ 3.251Gbps +- 0.5%}
  - {that: 'max(one.cycles, two.cycles) <= 5'}
",
    );
}

#[test]
fn a_class_is_paced_to_its_rate_by_the_round() {
    holds(
        "
name: rates
rate: 10Gbps
duration: 200ms
repeat: {c: 20}
systems: [class_fetch]
tenants: {c<c>: {}}
policy: {root: {rate_share: {c<c>: 50Mbps}}}
workloads:
  u<c>: {tenant: c<c>, kind: udp, size: 1458B, rate: 60Mbps}
measure: {gaps: true, from: 20ms}
expect:
  - {that: 'max(each(class_fetch.c.gap_mean)) ~ 240us +- 0.1%'}
  # A round of 20 looks takes 1 us, and a packet on the link 1.2 us.
  - {that: 'max(each(class_fetch.c.gap_max)) <= 240us + 4us'}
",
    );
}

#[test]
fn a_limiter_that_two_share_knows_their_sum_alone() {
    holds(
        "
name: shared
rate: 1Gbps
duration: 500ms
systems: [{two: {kind: hwrl, limiters: 2}}, {four: {kind: hwrl, limiters: 4}}, ptb]
tenants: {a: {max: 100Mbps}, b: {max: 100Mbps}, c: {max: 100Mbps}, d: {max: 100Mbps}}
workloads:
  ua: {tenant: a, kind: udp, rate: 300Mbps}
  ub: {tenant: b, kind: udp, rate: 300Mbps}
  uc: {tenant: c, kind: udp, rate: 20Mbps}
measure: {from: 200ms}
expect:
  - {that: two.a.throughput >= 150Mbps, because: c leaves it}
  - {that: two.b.throughput ~ 200Mbps +- 1%, because: no other tenant uses its limiter}
  - {that: four.a.throughput ~ 100Mbps +- 1%}
  - {that: ptb.a.throughput ~ 100Mbps +- 1%}
  - {that: ptb.c.throughput ~ 20Mbps +- 1%}
",
    );
}

/// SENIC §8: with fewer limiters than tenants, the busiest have one each, and the others share.
#[test]
fn the_busiest_tenants_get_a_limiter_each_also_when_others_become_busy() {
    holds(
        "
name: busiest
rate: 1Gbps
duration: 1s
repeat: {c: 16}
systems: [{round_robin: {kind: hwrl, limiters: 4}}, {busiest: {kind: hwrl, limiters: 4, reassign: 10ms}}]
tenants: {a: {max: 50Mbps}, b: {max: 50Mbps}, c<c>: {max: 20Mbps}}
workloads:
  ua: {tenant: a, kind: udp, rate: 150Mbps, stop: 500ms}
  ub: {tenant: b, kind: udp, rate: 150Mbps, start: 500ms}
  u<c>: {tenant: c<c>, kind: udp, rate: 2Mbps}
measure: {from: 100ms}
expect:
  - {that: 'busiest.a.throughput[100ms..500ms] ~ 50Mbps +- 2%', because: a limiter of its own}
  - {that: 'busiest.b.throughput[600ms..1s] ~ 50Mbps +- 2%', because: it became the busiest}
  - {that: 'round_robin.a.throughput[100ms..500ms] >= 100Mbps', because: it takes what the others of its limiter leave}
  - {that: 'min(each(busiest.c.throughput)) ~ 2Mbps +- 5%'}
",
    );
}

#[test]
fn one_lock_carries_one_packet_in_two_operations() {
    holds(
        "
name: locked
rate: 10Gbps
duration: 200ms
wake: 2us
systems: [{locked: {kind: htb, lock: 925ns}}, htb]
tenants: {a: {max: 5Gbps}, b: {max: 4Gbps}}
workloads:
  ua: {tenant: a, kind: udp, size: 1458B, rate: 6Gbps}
  ub: {tenant: b, kind: udp, size: 1458B, rate: 5Gbps}
measure: {from: 50ms, cpu: true}
expect:
  - {that: locked.throughput <= 6.55Gbps, because: '1,500 B each 1.85 us are 6.49 Gb/s'}
  - {that: locked.throughput >= 6Gbps}
  - {that: locked.cpu >= 100%, because: one core holds the lock and others spin}
  - {that: htb.throughput ~ 9Gbps +- 1%}
",
    );
}

#[test]
fn timers_and_threads_that_wake_late_leave_rates_and_disturb_gaps() {
    holds(
        "
name: late
rate: 10Gbps
duration: 300ms
wake: {min: 10us, p50: 20us, p90: 30us, p99: 40us, p99_9: 200us, p99_99: 1ms, max: 2ms}
systems: [plimsoll, htb, busy_poll: {kind: plimsoll, engine: {flows: fifo, busy_poll: true}}]
hosts: {host: {cpu: {process: 100ns, pull: 200ns}}}
repeat: {c: 4}
tenants: {c<c>: {}}
policy: {root: {rate_share: {c<c>: 625Mbps}}}
engine: {flows: fifo}
workloads:
  u<c>: {tenant: c<c>, kind: udp, size: 1458B, rate: 700Mbps}
measure: {gaps: true, cpu: true, from: 20ms}
expect:
  - {that: plimsoll.c.throughput ~ 2.5Gbps +- 0.1%, because: a limit makes up for late packets}
  - {that: htb.c.throughput ~ 2.5Gbps +- 1%}
  - {that: 'max(each(plimsoll.c.gap_stddev[20ms..90ms])) <= 1us', because: it spins for packets 19 us apart}
  - {that: 'min(each(plimsoll.c.gap_stddev[120ms..190ms])) >= 4us', because: it used all of its core and sleeps}
  - {that: 'max(each(plimsoll.c.gap_stddev[220ms..290ms])) <= 1us', because: it used little of its core and spins}
  - {that: 'max(each(busy_poll.c.gap_stddev)) <= 1us', because: it never sleeps}
  - {that: 'min(each(htb.c.gap_stddev)) >= 4us', because: no core comes with a packet when one is due}
  - {that: plimsoll.cpu >= 60%, because: it spins for two thirds of the time}
",
    );
}

#[test]
fn a_core_answers_and_sends_one_thing_after_the_other() {
    holds(
        "
name: cores
rate: 10Gbps
duration: 300ms
systems: [plimsoll, {ptb: {cost: 20us}}]
hosts: {near: {cores: {answer: 50us, send: 10us}}, far: {}}
links: {wire: {between: [near, far], rate: 10Gbps}}
tenants: {server: {host: near}, client: {host: far}}
workloads:
  ask: {tenant: client, to: server, kind: request_response, connections: 32}
measure: {from: 50ms}
expect:
  - {that: plimsoll.ask.requests ~ 16666 +- 3%, because: 50 us to answer and 10 to send}
  - {that: ptb.ask.requests ~ 12500 +- 3%, because: a packet takes 20 us more}
",
    );
}

/// FairNIC §3.1.1: with equal turns, shares are as the lengths of packets; a queue that is empty has no turn.
#[test]
fn turns_by_packets_divide_by_the_lengths_of_packets() {
    holds(
        "
name: turns
rate: 10Gbps
duration: 100ms
systems: [round_robin]
tenants: {long: {}, middle: {}, short: {}}
workloads:
  a: {tenant: long, kind: udp, rate: flood, size: 982B}
  b: {tenant: middle, kind: udp, rate: flood, size: 470B}
  c: {tenant: short, kind: udp, rate: flood, size: 214B, start: 20ms}
measure: {window: 1ms}
expect:
  - {that: 'round_robin.long.throughput[5ms..20ms] / round_robin.middle.throughput[5ms..20ms] ~ 2 +- 1%'}
  - {that: 'round_robin.long.throughput[25ms..40ms] / round_robin.short.throughput[25ms..40ms] ~ 4 +- 1%'}
  - {that: 'round_robin.middle.throughput[25ms..40ms] / round_robin.short.throughput[25ms..40ms] ~ 2 +- 1%'}
  - {that: 'round_robin.throughput[5ms..40ms] >= 99% * line'}
",
    );
}
