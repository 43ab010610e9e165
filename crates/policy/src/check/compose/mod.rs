//! Puts the files' parts together: whose child is what, and which sub-policy takes which place.
//!
//! Why: an operator, tenants and applications each write their own part (Loom §3, "Composing Sub-Policies").
//! From: Loom §3 and Figure 5: without limits the graph is a tree.
//! Not here: what a class becomes (`adopt`), reading files (`sub_policy`), names and classes without a place (`names`,
//! `leftovers`); rates, matches and costs, which are judged once the whole is there.
//! Invariant: every node has one parent, the first that claims it on the way down from the root; a class without a
//! place is reported, and then judged as if it lay below the root, so that all mistakes come in one go.

mod adopt;
mod included;
mod leftovers;
mod names;
mod rank_program;
mod sub_policy;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

use plimsoll_units::Span;

use self::names::reserved;
use self::sub_policy::Read;
pub(super) use self::sub_policy::beside;
use super::graph::{Draft, Graph, Known, LimitDraft, NodeIx, Scope, ScopeIx, TenantDraft, TenantIx, scoped};
use super::promises;
use crate::files::Files;
use crate::law::{Law, Problem, Problems};
use crate::program::RankId;
use crate::read;
use crate::read::syntax::{
    Child, ClassEntry, HostFile, LimitEntry, Order, OrderKind, PolicyFile, Queues, TenantEntry,
};
use plimsoll_document::{FileId, Located, Mark, Name, Sources};

/// Nodes that any policy may have in all; one whose engine has more flow queues may have as many as those.
pub(crate) const MAX_NODES: usize = 65_536;
/// Slack or deadline of a class below an `lstf` or `edf` node that states none.
pub(crate) const DEFAULT_TAG: Span = Span::millis(10);
/// Levels of the tree that is built, whatever `engine.max_depth` allows (64 at most): a class that lies deeper is reported,
/// and then judged as if it lay below its file's root. A path's length, and the time to walk it, have this bound.
const DEEPEST: usize = 64;

/// Where the graph grows, and what is wrong with it.
pub(crate) struct Composer<'a> {
    pub graph: Graph,
    pub problems: Problems,
    pub sources: &'a mut Sources,
    files: &'a mut dyn Files,
    /// The size of each tenant's file with the files that it names, by the place that the first of them takes.
    read_for: BTreeMap<NodeIx, Read>,
    /// Bytes of all tenants' files.
    read_in_all: usize,
    loaded: HashMap<String, FileId>,
    /// The files that are read, as one may take more than one place; `None` for one that is not YAML.
    read: HashMap<FileId, Option<Rc<PolicyFile>>>,
    /// The programs that `program` nodes name, by file; `None` for one that is wrong.
    ranks: HashMap<String, Option<RankId>>,
    /// The number of scopes in which each name of a class or limit stands.
    stated: HashMap<String, usize>,
    /// Limits of the operator's file.
    own_limits: usize,
    /// Nodes that the policy may have, and limits of all files but the operator's.
    most: usize,
    /// Levels that the tree may have.
    max_depth: usize,
    /// Sub-policies still to be put in their places.
    pending: VecDeque<(Sub, NodeIx)>,
    /// The operator's `tenants:`; the graph may have one more, `host`.
    pub tenants: Vec<TenantEntry>,
    /// The tenants' shares where the tree states none.
    pub weights: Vec<u32>,
    full: bool,
    /// The operator's policy has no root, so that nothing has a place.
    rootless: bool,
}

/// A policy that takes a leaf's place.
enum Sub {
    File(Name),
    Queues(Queues),
}

/// One file's classes while they find their places.
struct Family<'c> {
    pub classes: &'c [ClassEntry],
    /// The first class of each name.
    pub names: HashMap<&'c str, usize>,
    /// Each class's node, once it has one.
    pub nodes: Vec<Option<NodeIx>>,
    pub scope: ScopeIx,
    /// The node whose place the file's root has.
    pub place: NodeIx,
    /// The file states no root.
    pub rootless: bool,
}

impl<'a> Composer<'a> {
    pub fn new(sources: &'a mut Sources, files: &'a mut dyn Files) -> Self {
        Self {
            graph: Graph::default(),
            problems: Problems::default(),
            sources,
            files,
            read_for: BTreeMap::new(),
            read_in_all: 0,
            loaded: HashMap::new(),
            read: HashMap::new(),
            ranks: HashMap::new(),
            stated: HashMap::new(),
            own_limits: 0,
            most: MAX_NODES,
            max_depth: DEEPEST,
            pending: VecDeque::new(),
            tenants: Vec::new(),
            weights: Vec::new(),
            full: false,
            rootless: false,
        }
    }

    /// Takes what the first of the sources says, the file behind this path, and its problems.
    pub fn is_read(&mut self, path: &str, file: PolicyFile, problems: Problems) {
        self.loaded.insert(path.to_owned(), FileId(0));
        self.problems.append(problems);
        let file = Rc::new(self.rooted(file));
        self.read.insert(FileId(0), Some(file));
    }

    /// The operator's file and all that it names.
    pub fn compose(&mut self, host: HostFile) {
        for (index, tenant) in host.tenants.iter().enumerate() {
            self.problems.extend(reserved(&tenant.name));
            // The first of a name counts; the reader has told of the others.
            self.graph.tenant_names.entry(tenant.name.value.clone()).or_insert(index);
            let (name, at) = (tenant.name.value.clone(), tenant.name.at);
            let known = Known::of(tenant);
            self.graph.tenants.push(TenantDraft { name, at, node: None, matched_by: Vec::new(), known });
        }
        self.graph.flows = host.flows;
        self.weights = promises::weights(&host.tenants);
        self.tenants = host.tenants;
        self.most = MAX_NODES.max(host.engine.queues as usize);
        self.max_depth = (host.engine.max_depth as usize).min(DEEPEST);
        self.own_limits = host.policy.limits.len();
        self.host_tenant(&host.policy);
        let mut file = host.policy;
        if file.classes.is_none() {
            file.classes = Some(vec![self.default_root(file.at)]);
        }
        self.others(&mut file);
        let root = self.node(Draft::leaf("root".to_owned(), file.at, 0));
        let file = self.rooted(file);
        self.place(&file, None, root);
        self.unplaced_tenants();
        while let Some((sub, place)) = self.pending.pop_front() {
            match sub {
                Sub::File(path) => self.sub_policy(&path, place),
                Sub::Queues(queues) => {
                    let outer = self.graph.nodes[place].scope;
                    self.place(&queues.into_policy(), Some(outer), place);
                }
            }
        }
    }

    /// Without a policy all tenants share the link by weight.
    fn default_root(&self, at: Mark) -> ClassEntry {
        let mut root = ClassEntry::new(Located::new("root".to_owned(), at));
        if !self.tenants.is_empty() {
            let child = |tenant: &TenantEntry| Child { name: tenant.name.clone(), weight: None, rate: None };
            let first = |(index, _): &(usize, _)| self.is_first_tenant(*index);
            let children =
                self.tenants.iter().enumerate().filter(first).map(|(_, tenant)| child(tenant)).collect();
            root.order = Some(Order { kind: OrderKind::Wfq, at, children, module: None });
        }
        root
    }

    /// Whether no earlier tenant has its name.
    fn is_first_tenant(&self, index: TenantIx) -> bool {
        self.graph.tenant_named(&self.tenants[index].name.value) == Some(index)
    }

    fn node(&mut self, draft: Draft) -> NodeIx {
        self.graph.nodes.push(draft);
        self.graph.nodes.len() - 1
    }

    /// Puts a file's classes below `place`, whose position its root takes.
    fn place(&mut self, file: &PolicyFile, outer: Option<ScopeIx>, place: NodeIx) {
        let scope = self.graph.scopes.len();
        let at = file.at;
        self.graph.scopes.push(Scope {
            at,
            tenant: self.graph.nodes[place].tenant,
            root: place,
            outer,
            leaves: Vec::new(),
            limits: HashMap::new(),
            classes: HashMap::new(),
            stated: HashSet::new(),
            default: None,
        });
        if outer.is_some() {
            self.graph.nodes[place].sub = Some(scope);
        }
        let PolicyFile { limits, classes, rootless, .. } = file;
        if outer.is_some() && self.graph.limits.len() + limits.len() > self.most + self.own_limits {
            return self.too_many_limits(at);
        }
        self.add_limits(limits, scope, place);
        let Some(classes) = classes else {
            self.note_stated(scope);
            return self.finish_leaf_scope(scope, place);
        };
        let rootless = *rootless;
        self.rootless |= rootless && outer.is_none();
        let mut names: HashMap<&str, usize> = HashMap::with_capacity(classes.len());
        for (index, class) in classes.iter().enumerate() {
            names.entry(class.name.value.as_str()).or_insert(index);
        }
        self.graph.scopes[scope].stated = names.keys().map(|&name| name.to_owned()).collect();
        self.note_stated(scope);
        self.clashes(classes, scope);
        let mut family = Family { nodes: vec![None; classes.len()], classes, names, scope, place, rootless };
        self.grow(&mut family);
        self.leftovers(&mut family);
        for (index, class) in classes.iter().enumerate() {
            let Some(node) = family.nodes[index] else { continue };
            self.graph.scopes[scope].classes.entry(class.name.value.clone()).or_insert(node);
            if self.graph.nodes[node].is_leaf() {
                self.graph.scopes[scope].leaves.push(node);
            }
        }
    }

    /// Notes a scope's names, which no other scope may use.
    fn note_stated(&mut self, scope: ScopeIx) {
        let scope = &self.graph.scopes[scope];
        let limits = scope.limits.keys().filter(|name| !scope.stated.contains(*name));
        for name in scope.stated.iter().chain(limits) {
            match self.stated.get_mut(name) {
                Some(scopes) => *scopes += 1,
                None => drop(self.stated.insert(name.clone(), 1)),
            }
        }
    }

    /// The file, with a root of its own if its classes have none.
    fn rooted(&mut self, mut file: PolicyFile) -> PolicyFile {
        if let Some(classes) = &mut file.classes
            && classes.iter().all(|class| class.name.value != "root")
        {
            // One more, not twice as many: a file may have hundreds of thousands of classes.
            classes.reserve_exact(1);
            classes.push(self.missing_root(file.at));
            file.rootless = true;
        }
        file
    }

    /// Reports a missing root and makes one, so that the rest of the file can be judged.
    fn missing_root(&mut self, at: Mark) -> ClassEntry {
        let problem = Problem::error(Law::NoRoot, at, "`policy` has no `root`").label("this file");
        self.problems.push(problem.help("name the topmost class `root`, as in `root: {wfq: {a: 2, b: 1}}`"));
        let mut root = ClassEntry::new(Located::new("root".to_owned(), at));
        root.order = Some(Order { kind: OrderKind::Fifo, at, children: Vec::new(), module: None });
        root
    }

    /// A sub-policy without classes: its place stays a leaf.
    fn finish_leaf_scope(&mut self, scope: ScopeIx, place: NodeIx) {
        self.graph.scopes[scope].classes.insert("root".to_owned(), place);
        self.graph.scopes[scope].leaves.push(place);
    }

    fn add_limits(&mut self, limits: &[LimitEntry], scope: ScopeIx, place: NodeIx) {
        for entry in limits {
            let entry = entry.clone();
            let name = scoped(&self.graph.nodes[place].name, &entry.name.value);
            let number = self.graph.limits.len();
            let first = *self.graph.scopes[scope].limits.entry(entry.name.value.clone()).or_insert(number);
            let (via, outer) = (Vec::new(), Vec::new());
            let again = first != number;
            self.graph.limits.push(LimitDraft { name, entry, scope, via, tenants: Vec::new(), outer, again });
        }
    }

    /// Claims children from the root down and makes their nodes.
    fn grow(&mut self, family: &mut Family<'_>) {
        let root = family.names["root"];
        family.nodes[root] = Some(family.place);
        self.adopt_root(&family.classes[root], family.scope, family.place);
        self.grow_below(family, root, &|_| true);
    }

    /// Makes the node of a class that has no place, and of those below it, as if it lay below the root, so that their mistakes
    /// are reported too. `tell` says for which classes a second parent is reported.
    fn grow_loose(&mut self, family: &mut Family<'_>, class: usize, tell: &dyn Fn(usize) -> bool) {
        if self.full || family.nodes[class].is_some() {
            return;
        }
        if self.graph.nodes.len() >= self.most {
            return self.too_large(family.classes[class].name.at);
        }
        let node = self.adopt(&family.classes[class], family.place, 1, family.scope);
        self.graph.nodes[node].loose = true;
        family.nodes[class] = Some(node);
        self.grow_below(family, class, tell);
    }

    fn grow_below(&mut self, family: &mut Family<'_>, start: usize, tell: &dyn Fn(usize) -> bool) {
        let mut open = VecDeque::from([start]);
        while let Some(parent) = open.pop_front() {
            let (Some(order), Some(node)) = (&family.classes[parent].order, family.nodes[parent]) else {
                continue;
            };
            for child in &order.children {
                if self.graph.nodes.len() >= self.most {
                    return self.too_large(child.name.at);
                }
                let weight = child.weight.map_or(1, |weight| weight.value);
                match family.names.get(child.name.value.as_str()) {
                    Some(&class) if family.nodes[class].is_none() => {
                        let adopted = self.adopt(&family.classes[class], node, weight, family.scope);
                        self.graph.nodes[adopted].rate = child.rate;
                        family.nodes[class] = Some(adopted);
                        open.push_back(class);
                    }
                    Some(&class) if tell(class) => {
                        self.claimed_twice(child, &family.classes[class], family.nodes[class], node);
                    }
                    Some(_) => {}
                    None => self.adopt_tenant(child, order.kind, node, family.scope, tell(parent)),
                }
            }
        }
    }

    fn too_many_limits(&mut self, at: Mark) {
        let message = format!("the composed policy has more than {} limits", self.most);
        let problem = Problem::error(Law::TooLarge, at, message).label("no room for those of this file");
        self.problems.push(problem.help("share limits, or name the file in fewer places"));
        self.full = true;
        self.pending.clear();
    }

    fn too_large(&mut self, at: Mark) {
        if !self.full {
            let message = format!("the composed policy has more than {} classes", self.most);
            let problem = Problem::error(Law::TooLarge, at, message).label("no room from here on");
            self.problems.push(problem.help(format!(
                "merge classes, or have the operator give the engine as many flow queues: `engine: {{queues: N}}`, up to \
                 {}",
                read::MOST_QUEUES
            )));
        }
        self.full = true;
        self.pending.clear();
    }
}
