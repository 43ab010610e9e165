//! Classification of many flows under a policy of many rules.
//!
//! Why: `Program::classify` looks at every rule and every limit; with thousands of tenants that is too slow even once
//! per flow.
//! From: rules of different tenants cannot both match, so only those of the packet's own tenant and of no tenant are looked at.
//! Not here: what a match means (`program`).
//! Invariant: the same answers as `Program::classify`, in every case.

use std::collections::HashMap;

use crate::program::{Fields, LimitId, NodeId, Placement, Program, Rule, Scope, TenantId};

/// An index over a program's rules and limits.
#[derive(Clone, Debug)]
pub struct Classifier {
    /// Indices of rules that name no tenant.
    general: Vec<u32>,
    /// Indices of each tenant's rules.
    of_tenant: HashMap<TenantId, Vec<u32>>,
    /// Stated limits by the node that sends through them.
    via: HashMap<NodeId, Vec<LimitId>>,
}

impl Classifier {
    /// Indexes a program; to be made anew when the program changes.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        let mut made = Self { general: Vec::new(), of_tenant: HashMap::new(), via: HashMap::new() };
        for (index, rule) in (0..).zip(&program.rules) {
            match rule.matches.tenant.first().copied() {
                Some(tenant) => made.of_tenant.entry(tenant).or_default().push(index),
                None => made.general.push(index),
            }
        }
        for (index, limit) in (0..).zip(&program.limits) {
            if let Scope::Match { via, .. } = &limit.scope {
                via.iter().for_each(|&node| made.via.entry(node).or_default().push(LimitId(index)));
            }
        }
        made
    }

    /// Answers as `program.classify(fields)` does; `program` is the one that was indexed.
    #[must_use]
    pub fn classify(&self, program: &Program, fields: &Fields) -> Placement {
        self.place(
            program,
            self.rule(program, fields).map_or(program.default_class, |(_, rule)| rule.class),
            fields,
        )
    }

    /// The rule that decides, with its number.
    #[must_use]
    pub fn rule<'p>(&self, program: &'p Program, fields: &Fields) -> Option<(usize, &'p Rule)> {
        let own = fields.tenant.and_then(|tenant| self.of_tenant.get(&tenant)).map_or(&[][..], Vec::as_slice);
        let first = |rules: &[u32]| {
            rules
                .iter()
                .map(|&index| index as usize)
                .find(|&index| program.rules[index].matches.holds(fields))
        };
        let index = match (first(own), first(&self.general)) {
            (Some(own), Some(general)) => own.min(general),
            (own, general) => own.or(general)?,
        };
        Some((index, &program.rules[index]))
    }

    /// Answers as `program.place(class, fields)` does.
    #[must_use]
    pub fn place(&self, program: &Program, class: NodeId, fields: &Fields) -> Placement {
        let mut limits: Vec<LimitId> = program.path(class).filter_map(|id| program.node(id).max).collect();
        let maxima = limits.len();
        for id in program.path(class) {
            let through = self.via.get(&id).map_or(&[][..], Vec::as_slice);
            limits.extend(through.iter().filter(|&&limit| match &program.limit(limit).scope {
                Scope::Match { matches, .. } => matches.holds(fields),
                Scope::Subtree(_) | Scope::Peer(_) => false,
            }));
        }
        limits[maxima..].sort_unstable();
        limits.dedup();
        Placement { class, limits }
    }
}
