//! The fluid model: the rate that each class should get, by progressive filling, for policies whose limits hold wherever they are.
//!
//! Why: shares that a packet engine must come to, from the policy alone.
//! From: max-min fairness in a tree; minima first, then priorities and weights (docs/decisions, 2); behind a limit by match the
//! policy restricted to what passes it (docs/decisions, 1).
//! Not here: packets, bursts, time; how much each class sends (`shares`).
//! Invariant: each class is held by what it sends, by the link, or by a limit; none of them could give it more.

use plimsoll_policy::{LimitId, NodeKind, Program};

/// Rounds within which rates settle, if they ever do.
const ROUNDS: usize = 400;

/// A share of something: the link with its maxima and minima, or a limit by match.
struct Source<'a> {
    program: &'a Program,
    /// Whether it is the link, in which minima and maxima hold.
    whole: bool,
    capacity: f64,
    members: Vec<bool>,
}

/// Mb/s of each node's own packets. `demands` by node, in Mb/s, for classes; `through` says which limits by match a class's
/// packets pass. `None` where the rates do not settle.
pub fn rates(program: &Program, demands: &[f64], through: &[Vec<LimitId>]) -> Option<Vec<f64>> {
    let mut sources = vec![Source {
        program,
        whole: true,
        capacity: mbps(program.link.get()),
        members: vec![true; program.nodes.len()],
    }];
    for (index, limit) in (0_u32..).zip(&program.limits) {
        let members: Vec<bool> = through.iter().map(|limits| limits.contains(&LimitId(index))).collect();
        if members.contains(&true) {
            sources.push(Source { program, whole: false, capacity: mbps(limit.rate.get()), members });
        }
    }
    let mut offers = vec![demands.to_vec(); sources.len()];
    for round in 0..ROUNDS {
        let mut moved: f64 = 0.0;
        for (index, source) in sources.iter().enumerate() {
            let needs = needs(demands, &offers, &sources, index);
            let offer = source.offer(&needs, demands);
            for (before, now) in offers[index].iter_mut().zip(offer) {
                moved = moved.max((*before - now).abs());
                // Slowly, towards the end: two sources that answer each other may swing.
                *before += (now - *before) * if round < 20 { 1.0 } else { 0.5 };
            }
        }
        if moved < 0.01 {
            return Some(needs_of(demands, &offers, &sources));
        }
    }
    None
}

fn mbps(rate: u64) -> f64 {
    rate as f64 / 1e6
}

/// The rate that each class could use of one source: what it sends, as far as the other sources let it.
fn needs(demands: &[f64], offers: &[Vec<f64>], sources: &[Source], but: usize) -> Vec<f64> {
    let mut needs = demands.to_vec();
    for (index, (offer, source)) in offers.iter().zip(sources).enumerate() {
        for (class, need) in needs.iter_mut().enumerate() {
            if index != but && source.members[class] {
                *need = need.min(offer[class]);
            }
        }
    }
    needs
}

fn needs_of(demands: &[f64], offers: &[Vec<f64>], sources: &[Source]) -> Vec<f64> {
    needs(demands, offers, sources, usize::MAX)
}

impl Source<'_> {
    /// The rate that each class would get of this source if no other source held it.
    fn offer(&self, needs: &[f64], demands: &[f64]) -> Vec<f64> {
        let found = self.share(needs);
        let held = |class: usize| found[class] < needs[class] - 1e-6;
        let alone = |class: usize| {
            let mut needs = needs.to_vec();
            needs[class] = demands[class];
            self.share(&needs)[class]
        };
        let offer = |class: usize| match () {
            () if !self.members[class] || demands[class] == 0.0 => demands[class],
            () if held(class) => found[class],
            () => alone(class),
        };
        (0..needs.len()).map(offer).collect()
    }

    fn share(&self, needs: &[f64]) -> Vec<f64> {
        let mut whole = vec![0.0; needs.len()];
        for id in (0..needs.len()).rev() {
            let node = &self.program.nodes[id];
            let below: f64 = node.children.iter().map(|child| whole[child.0 as usize]).sum();
            let own =
                if self.members[id] && matches!(node.kind, NodeKind::Class(_)) { needs[id] } else { 0.0 };
            let max = node.max.filter(|_| self.whole).map(|max| mbps(self.program.limit(max).rate.get()));
            whole[id] = (below + own).min(max.unwrap_or(f64::INFINITY));
        }
        let mut found = vec![0.0; needs.len()];
        found[0] = self.capacity.min(whole[0]);
        for id in 0..needs.len() {
            let children: Vec<usize> =
                self.program.nodes[id].children.iter().map(|child| child.0 as usize).collect();
            for (child, rate) in children.iter().zip(self.divide(id, &children, &whole, found[id])) {
                found[*child] = rate;
            }
        }
        found
    }

    /// Minima first, and what is left by priority or weight.
    fn divide(&self, node: usize, children: &[usize], needs: &[f64], capacity: f64) -> Vec<f64> {
        let min = |child: usize| {
            let min = self.program.nodes[child].min.filter(|_| self.whole);
            min.map_or(0.0, |min| mbps(min.get())).min(needs[child])
        };
        let mut shares: Vec<f64> = children.iter().map(|&child| min(child)).collect();
        let mut left = (capacity - shares.iter().sum::<f64>()).max(0.0);
        let wants: Vec<f64> = children.iter().zip(&shares).map(|(&child, got)| needs[child] - got).collect();
        if self.program.nodes[node].kind == NodeKind::Priority {
            for (share, want) in shares.iter_mut().zip(wants) {
                *share += want.min(left);
                left -= want.min(left);
            }
            return shares;
        }
        let weight = |index: usize| f64::from(self.program.nodes[children[index]].weight);
        let mut open: Vec<usize> = (0..children.len()).collect();
        open.sort_by(|&a, &b| (wants[a] / weight(a)).total_cmp(&(wants[b] / weight(b))));
        let mut total: f64 = open.iter().map(|&index| weight(index)).sum();
        for index in open {
            let share = wants[index].min(left * weight(index) / total);
            shares[index] += share;
            (left, total) = (left - share, total - weight(index));
        }
        shares
    }
}
