//! How long requests and responses are.
//!
//! Why: a mix of tiny and large values has other waits than values of one size, and operators run a mix.
//! From: Atikoglu et al., "Workload Analysis of a Large-Scale Key-Value Store" (SIGMETRICS 2012) §5: pool ETC's key
//! sizes (generalised extreme value), value sizes (a table below 15 bytes, generalised Pareto above) and thirty reads
//! for one write; memcached's text protocol around them.
//! Not here: when requests come (`rpc`).
//! Invariant: a request and a response have at least one byte; each exchange draws as many random numbers as any other.

use crate::chance::Chance;

/// Sizes of exchanges.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sizes {
    /// One size for all.
    Fixed {
        /// Bytes of a request.
        request: u64,
        /// Bytes of a response.
        response: u64,
    },
    /// Facebook's pool ETC.
    Etc,
}

/// Value sizes of 0 to 14 bytes, by their part of all (Table 5).
const SMALL: [f64; 15] = [
    0.005_36, 0.000_47, 0.178_20, 0.092_39, 0.000_18, 0.027_40, 0.000_65, 0.006_06, 0.000_23, 0.008_37,
    0.008_37, 0.089_89, 0.000_92, 0.003_26, 0.019_80,
];
/// Generalised Pareto distribution of value sizes: location, scale, shape.
const VALUE: (f64, f64, f64) = (15.0, 214.476, 0.348_238);
/// Generalised extreme value distribution of key sizes: location, scale, shape.
const KEY: (f64, f64, f64) = (30.798_4, 8.204_49, 0.078_688);
/// memcached's own limits.
const LONGEST_KEY: f64 = 250.0;
const LARGEST_VALUE: f64 = 1_000_000.0;
/// Reads for each write.
const READS: u32 = 30;

impl Sizes {
    /// memcached's text protocol with keys and values of one size.
    pub(crate) fn memcached(key: u64, value: u64) -> Self {
        Self::Fixed { request: get(key), response: found(key, value) }
    }

    /// Bytes of the next request, and of its response.
    pub(crate) fn draw(self, chance: &mut Chance) -> (u64, u64) {
        match self {
            Self::Fixed { request, response } => (request.max(1), response.max(1)),
            Self::Etc => {
                let (key, value) = (key_size(chance.unit()), value_size(chance.unit()));
                let write = chance.below(READS + 1) == 0;
                if write { (set(key, value), STORED) } else { (get(key), found(key, value)) }
            }
        }
    }
}

fn key_size(part: f64) -> u64 {
    let (at, scale, shape) = KEY;
    let size = at + scale * (libm::pow(-libm::log(part), -shape) - 1.0) / shape;
    size.clamp(1.0, LONGEST_KEY) as u64
}

fn value_size(part: f64) -> u64 {
    let mut rest = part;
    for (size, small) in (0..).zip(SMALL) {
        if rest <= small {
            return size;
        }
        rest -= small;
    }
    let (at, scale, shape) = VALUE;
    let large = 1.0 - SMALL.iter().sum::<f64>();
    let left = (1.0 - rest / large).max(f64::MIN_POSITIVE);
    (at + scale * (libm::pow(left, -shape) - 1.0) / shape).min(LARGEST_VALUE) as u64
}

/// `get KEY\r\n`.
fn get(key: u64) -> u64 {
    "get \r\n".len() as u64 + key
}

/// `VALUE KEY 0 LENGTH\r\n`, the value, `\r\nEND\r\n`.
fn found(key: u64, value: u64) -> u64 {
    "VALUE  0 \r\n\r\nEND\r\n".len() as u64 + key + digits(value) + value
}

/// `set KEY 0 0 LENGTH\r\n`, the value, `\r\n`.
fn set(key: u64, value: u64) -> u64 {
    "set  0 0 \r\n\r\n".len() as u64 + key + digits(value) + value
}

/// `STORED\r\n`.
const STORED: u64 = 8;

fn digits(value: u64) -> u64 {
    u64::from(value.max(1).ilog10()) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etc_has_the_published_shape() {
        let mut chance = Chance::of(1, "etc");
        let keys: Vec<u64> = (0..100_000).map(|_| key_size(chance.unit())).collect();
        let values: Vec<u64> = (0..100_000).map(|_| value_size(chance.unit())).collect();
        let part = |values: &[u64], most: u64| values.iter().filter(|v| **v <= most).count() as f64 / 1e5;
        // Keys: 20 to 45 bytes hold most of ETC's; the distribution's median is at - scale * ln(ln 2) by shape.
        assert!((part(&keys, 33) - 0.5).abs() < 0.05, "{}", part(&keys, 33));
        assert!(part(&keys, 45) - part(&keys, 19) > 0.8);
        // Values: 27.6 % have 2 or 3 bytes or less; the Pareto part's median is 15 + scale * (2^shape - 1) / shape.
        assert!((part(&values, 3) - 0.276_42).abs() < 0.01, "{}", part(&values, 3));
        let large: Vec<u64> = values.into_iter().filter(|value| *value >= 15).collect();
        let below = large.iter().filter(|value| **value <= 183).count() as f64 / large.len() as f64;
        assert!((below - 0.5).abs() < 0.01, "{below}");
    }

    #[test]
    fn one_in_thirty_one_is_a_write() {
        let mut chance = Chance::of(1, "writes");
        let writes = (0..31_000).filter(|_| Sizes::Etc.draw(&mut chance).1 == STORED).count();
        assert!((900..1_100).contains(&writes), "{writes}");
    }
}
