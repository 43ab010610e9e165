//! What a name in a figure stands for: a tenant, a workload, or a family of either.
//!
//! Why: with 10,000 tenants each figure of each tenant must not look at all of them.
//! From: `tenants.NAME`, `workloads.NAME` and `repeat` of a scenario.
//! Not here: the figures (`measure`).
//! Invariant: a name's workloads stand in the order of the file, each once.

use std::collections::BTreeMap;

use crate::{Scenario, Workload};

/// An index of a scenario's tenants and workloads by each name that stands for them.
#[derive(Clone, Debug)]
pub(crate) struct Names<'a> {
    all: &'a [Workload],
    /// Positions of workloads, by their names, families, tenants and tenants' families.
    workloads: BTreeMap<&'a str, Vec<usize>>,
    /// The tenants of each family.
    families: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Names<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Self {
        let mut families: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut family_of: BTreeMap<&str, &str> = BTreeMap::new();
        for tenant in &scenario.tenants {
            let Some(family) = tenant.family.as_deref() else { continue };
            families.entry(family).or_default().push(&tenant.name);
            family_of.insert(&tenant.name, family);
        }
        let mut workloads: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, workload) in scenario.workloads.iter().enumerate() {
            let tenants = family_of.get(workload.tenant.as_str()).copied();
            let own = [Some(workload.name.as_str()), workload.family.as_deref()];
            for name in own.into_iter().chain([Some(workload.tenant.as_str()), tenants]).flatten() {
                let found = workloads.entry(name).or_default();
                // Several of the names may be the same.
                if found.last() != Some(&index) {
                    found.push(index);
                }
            }
        }
        Self { all: &scenario.workloads, workloads, families }
    }

    /// The workloads that `subject` stands for; all of them without a subject.
    pub(crate) fn workloads(&self, subject: Option<&str>) -> Vec<&'a Workload> {
        match subject {
            None => self.all.iter().collect(),
            Some(name) => self.workloads.get(name).into_iter().flatten().map(|&at| &self.all[at]).collect(),
        }
    }

    /// The tenant of that name, whether or not there is one, and the tenants of the family of that name.
    pub(crate) fn tenants<'b>(&'b self, name: &'b str) -> impl Iterator<Item = &'b str> {
        let members = self.families.get(name).into_iter().flatten().copied();
        std::iter::once(name).chain(members.filter(move |member| *member != name))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{Form, Scenario};

    use super::*;

    /// A family of tenants and one of workloads, and workloads of a tenant that is in none.
    const TEXT: &str = "
name: names
rate: 1Gbps
duration: 1s
systems: [fifo]
repeat: {n: 3}
tenants:
  batch<n>: {}
  shop: {}
workloads:
  load<n>: {tenant: batch<n>, kind: bulk}
  sell: {tenant: shop, kind: bulk}
  other: {tenant: shop, kind: bulk}
";

    #[test]
    fn a_name_stands_for_what_a_look_at_every_workload_would_find() {
        let parsed = Scenario::parse(TEXT, "names.yaml", Path::new(""), Form::Full);
        let scenario = parsed.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        let names = Names::new(&scenario);
        let tenant = |name: &str| scenario.tenants.iter().find(|tenant| tenant.name == name).expect("one");
        let slow = |subject: &str| {
            let of = |workload: &&Workload| {
                let family = tenant(&workload.tenant).family.as_deref();
                workload.name == subject
                    || workload.tenant == subject
                    || [workload.family.as_deref(), family].contains(&Some(subject))
            };
            scenario.workloads.iter().filter(of).map(|workload| &workload.name).collect::<Vec<_>>()
        };
        let fast =
            |subject| names.workloads(Some(subject)).into_iter().map(|one| &one.name).collect::<Vec<_>>();
        let tenants = scenario.tenants.iter().map(|tenant| tenant.name.as_str());
        let all = tenants.chain(scenario.workloads.iter().map(|workload| workload.name.as_str()));
        for subject in all.chain(["batch", "load", "nobody"]) {
            assert_eq!(fast(subject), slow(subject), "{subject}");
        }
        assert!(fast("batch").len() == 3, "a family's workloads: {:?}", fast("batch"));
        assert_eq!(names.workloads(None).len(), scenario.workloads.len());
        assert_eq!(names.tenants("shop").collect::<Vec<_>>(), ["shop"]);
        assert_eq!(names.tenants("batch").count(), 1 + 3, "the name itself and its members");
    }
}
