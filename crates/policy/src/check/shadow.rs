//! Matches that can never fire, because those before them take every packet that they ask for.
//!
//! Why: such a class looks served and gets nothing. Seldom does one earlier match take everything; more often several do
//! together.
//! From: first match wins (`docs/policy.md`, "match"); `packets` says what is left behind the earlier ones.
//! Not here: matches that no packet at all could meet (`rules`).
//! Invariant: what is refused never fires; a match that fires is never refused; where the comparisons do not suffice, a warning says so.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::ops::Range;

use super::graph::{Graph, NodeIx, RuleDraft};
use crate::law::{Law, Problem, Problems};
use crate::packets::{Rest, Senders, rest};
use crate::program::{Match, Prefix};
use plimsoll_document::Mark;

/// The packets that a class asks for at one place of a file.
pub(crate) struct Claim {
    pub class: NodeIx,
    pub at: Mark,
    /// Packets, one set for each tenant that is named, and the rules that come before; none of them left is a mistake.
    pub wanted: Vec<(Match, Range<usize>)>,
    /// The claims up to this one are of files below: without packets when this one is.
    pub end: usize,
}

/// Comparisons with one earlier match at a glance, in a whole policy.
const MOST_GLANCES: u64 = 1 << 25;
/// Comparisons of pieces of one match with earlier ones, for one claim.
const MOST_FOR_ONE: u64 = 1 << 18;
/// Comparisons of pieces of matches with earlier ones, in a whole policy.
const MOST_IN_ALL: u64 = 1 << 19;
/// Earlier matches of which a message tells whether each is needed.
const MOST_THINNED: usize = 32;
/// Earlier matches that a message names.
const MOST_NAMED: usize = 6;

/// Reports every class that nothing is left for.
pub(crate) fn judge(graph: &Graph, rules: &[RuleDraft], claims: &[Claim], problems: &mut Problems) {
    let mut judge = Judge {
        graph,
        rules,
        index: Index::new(graph, rules),
        senders: Senders::Tenants(graph.tenants.len()),
        glances: MOST_GLANCES,
        closer: MOST_IN_ALL,
    };
    let mut taken: BTreeMap<NodeIx, Taken> = BTreeMap::new();
    let mut next = 0;
    while let Some(claim) = claims.get(next) {
        if judge.is_spent() {
            problems.push(judge.unknown(claim));
            // Classes whose later claims were not judged may still get packets.
            claims[next..].iter().for_each(|claim| taken.entry(claim.class).or_default().not_all = true);
            break;
        }
        let found = if claim.wanted.is_empty() { Takers::NoClaim } else { judge.takers(claim) };
        if matches!(found, Takers::Unknown) {
            if judge.is_spent() {
                continue;
            }
            problems.push(judge.unknown(claim));
        }
        next += 1;
        let class = taken.entry(claim.class).or_default();
        match found {
            Takers::NoClaim => {}
            Takers::NotAll | Takers::Unknown => class.not_all = true,
            Takers::All(takers) => {
                class.first.get_or_insert(next - 1);
                class.takers.extend(takers);
                next = next.max(claim.end);
            }
        }
    }
    for Taken { first, takers, .. } in taken.into_values().filter(|class| !class.not_all) {
        if let Some(first) = first {
            problems.push(judge.never(&claims[first], &takers.into_iter().collect::<Vec<_>>()));
        }
    }
}

/// The claims of one class, which has one for each place that its file is read at: a class is without packets when all of
/// its claims are.
#[derive(Default)]
struct Taken {
    /// The first claim that nothing is left for.
    first: Option<usize>,
    /// The rules that take what such claims ask for.
    takers: BTreeSet<usize>,
    /// Whether a claim may get packets.
    not_all: bool,
}

/// The rules that take all packets of a claim.
enum Takers {
    /// It asks for nothing.
    NoClaim,
    NotAll,
    /// Rules, by number.
    All(Vec<usize>),
    Unknown,
}

struct Judge<'a> {
    graph: &'a Graph,
    rules: &'a [RuleDraft],
    index: Index,
    senders: Senders,
    glances: u64,
    closer: u64,
}

impl Judge<'_> {
    /// Whether the comparisons allowed for a policy are used up.
    fn is_spent(&self) -> bool {
        self.glances == 0 || self.closer == 0
    }

    fn takers(&mut self, claim: &Claim) -> Takers {
        let mut takers = Vec::new();
        for (wanted, before) in &claim.wanted {
            match self.takers_of(wanted, before) {
                Takers::All(some) => takers.extend(some),
                other => return other,
            }
        }
        takers.sort_unstable();
        takers.dedup();
        if takers.is_empty() { Takers::NotAll } else { Takers::All(takers) }
    }

    fn takers_of(&mut self, wanted: &Match, before: &Range<usize>) -> Takers {
        let mut met = Vec::new();
        for number in self.index.rules(wanted, before) {
            let earlier = &self.rules[number].matches;
            self.glances = self.glances.saturating_sub(earlier.pairs_with(wanted));
            if self.glances == 0 {
                return Takers::Unknown;
            }
            if earlier.plainly_covers(wanted) {
                return Takers::All(vec![number]);
            }
            if earlier.may_meet(wanted) {
                met.push(number);
            }
        }
        met.sort_unstable();
        met.dedup();
        self.together(wanted, met)
    }

    /// Whether these rules together take everything, and which of them are needed.
    fn together(&mut self, wanted: &Match, mut met: Vec<usize>) -> Takers {
        match self.rest(wanted, &met) {
            Rest::Some => return Takers::NotAll,
            Rest::Unknown => return Takers::Unknown,
            Rest::Nothing(takers) => met = takers.into_iter().map(|taker| met[taker]).collect(),
        }
        if met.len() <= MOST_THINNED {
            for at in (0..met.len()).rev() {
                let mut fewer = met.clone();
                fewer.remove(at);
                if matches!(self.rest(wanted, &fewer), Rest::Nothing(_)) {
                    met = fewer;
                }
            }
        }
        Takers::All(met)
    }

    fn rest(&mut self, wanted: &Match, earlier: &[usize]) -> Rest {
        let earlier: Vec<&Match> = earlier.iter().map(|&number| &self.rules[number].matches).collect();
        let allowed = MOST_FOR_ONE.min(self.closer);
        let mut left = allowed;
        let rest = rest(wanted, &earlier, self.senders, &mut left);
        self.closer -= allowed - left;
        rest
    }

    fn never(&self, claim: &Claim, takers: &[usize]) -> Problem {
        let name = &self.graph.nodes[claim.class].name;
        let takers = takers.iter().map(|&taker| (self.rules[taker].class, self.rules[taker].at));
        let mut seen = HashSet::new();
        let places: Vec<(NodeIx, Option<Mark>)> = takers.filter(|place| seen.insert(*place)).collect();
        let mut names: Vec<String> = places
            .iter()
            .take(MOST_NAMED)
            .map(|(class, _)| format!("`{}`", self.graph.nodes[*class].name))
            .collect();
        names.dedup();
        let more = places.len().saturating_sub(MOST_NAMED);
        if more > 0 {
            names.push(format!("{more} more"));
        }
        let (who, label) = match names.as_slice() {
            [one] => (format!("{one} takes them all"), "this takes every such packet first"),
            [first @ .., last] => (
                format!("{} and {last} take them all together", first.join(", ")),
                "this takes a part of them first",
            ),
            [] => ("others take them all".to_owned(), ""),
        };
        let problem =
            Problem::error(Law::NeverMatches, claim.at, format!("no packet reaches class `{name}`: {who}"));
        let problem = places
            .iter()
            .take(MOST_NAMED)
            .filter_map(|(_, at)| *at)
            .fold(problem.label("never holds"), |problem, at| problem.also(at, label));
        problem.help(
            "matches are tried in the order of the file, the operator's before a tenant's: put the narrower one first, \
             or narrow the broader one",
        )
    }

    fn unknown(&self, claim: &Claim) -> Problem {
        let name = &self.graph.nodes[claim.class].name;
        let message = format!(
            "whether a packet reaches class `{name}` is not known: too many earlier matches overlap it"
        );
        let problem = Problem::warning(Law::NeverMatches, claim.at, message);
        let problem = problem.label(if self.is_spent() {
            "neither this nor any later match was compared in full"
        } else {
            "not compared in full"
        });
        problem.help("`plimsoll explain` says where a packet goes; fewer conditions in earlier matches make this known")
    }
}

/// Rules by tenant, and by what few others share: those of different tenants, hosts or ports never meet.
struct Index {
    of_tenant: Vec<Shelf>,
    general: Shelf,
    all: Shelf,
}

/// Rules, each once: by destination host, else by destination port, else in one list.
#[derive(Clone, Default)]
struct Shelf {
    hosts: Keyed<IpAddr>,
    ports: Keyed<u16>,
    others: Vec<usize>,
}

/// Rules that ask for one of a few values.
#[derive(Clone)]
struct Keyed<K> {
    all: Vec<usize>,
    by: HashMap<K, Vec<usize>>,
}

impl<K> Default for Keyed<K> {
    fn default() -> Self {
        Self { all: Vec::new(), by: HashMap::new() }
    }
}

impl Index {
    fn new(graph: &Graph, rules: &[RuleDraft]) -> Self {
        let mut index = Self {
            of_tenant: vec![Shelf::default(); graph.tenants.len()],
            general: Shelf::default(),
            all: Shelf::default(),
        };
        for (number, rule) in rules.iter().enumerate() {
            let own =
                rule.matches.tenant.first().and_then(|tenant| index.of_tenant.get_mut(tenant.0 as usize));
            own.unwrap_or(&mut index.general).add(number, &rule.matches);
            index.all.add(number, &rule.matches);
        }
        index
    }

    /// The rules in `before` that may meet such packets; those that name no tenant come first. One may come more than once.
    fn rules(&self, wanted: &Match, before: &Range<usize>) -> impl Iterator<Item = usize> {
        let own = wanted.tenant.first().map(|tenant| self.of_tenant.get(tenant.0 as usize));
        let shelves = match own {
            None => [Some(&self.all), None],
            Some(own) => [Some(&self.general), own],
        };
        let (hosts, ports) = (hosts_of(wanted), ports_of(wanted));
        let mut lists = Vec::new();
        for shelf in shelves.into_iter().flatten() {
            lists.push(shelf.others.as_slice());
            shelf.hosts.find(hosts.as_deref(), &mut lists);
            shelf.ports.find(ports.as_deref(), &mut lists);
        }
        let before = before.clone();
        let inside = move |list: &[usize]| {
            let end = |number| list.partition_point(|&known| known < number);
            end(before.start)..end(before.end)
        };
        lists.into_iter().flat_map(move |list| list[inside(list)].iter().copied())
    }
}

impl Shelf {
    fn add(&mut self, number: usize, matches: &Match) {
        match (hosts_of(matches), ports_of(matches)) {
            (Some(hosts), _) => self.hosts.add(number, hosts),
            (None, Some(ports)) => self.ports.add(number, ports),
            (None, None) => self.others.push(number),
        }
    }
}

impl<K: Eq + Hash> Keyed<K> {
    fn add(&mut self, number: usize, keys: Vec<K>) {
        self.all.push(number);
        for key in keys {
            self.by.entry(key).or_default().push(number);
        }
    }

    /// The rules for some of these values, or all of them where any value will do.
    fn find<'i>(&'i self, keys: Option<&[K]>, lists: &mut Vec<&'i [usize]>) {
        match keys {
            Some(keys) => lists.extend(keys.iter().filter_map(|key| self.by.get(key)).map(Vec::as_slice)),
            None => lists.push(&self.all),
        }
    }
}

/// The destinations that a match asks for, if it asks for single hosts.
fn hosts_of(matches: &Match) -> Option<Vec<IpAddr>> {
    let host =
        |prefix: &Prefix| (prefix.len == if prefix.addr.is_ipv4() { 32 } else { 128 }).then_some(prefix.addr);
    if matches.dst.is_empty() { None } else { matches.dst.iter().map(host).collect() }
}

/// The destination ports that a match asks for, if it asks for single ports.
fn ports_of(matches: &Match) -> Option<Vec<u16>> {
    let one = |&(from, to): &(u16, u16)| (from == to).then_some(from);
    if matches.dst_port.is_empty() { None } else { matches.dst_port.iter().map(one).collect() }
}
