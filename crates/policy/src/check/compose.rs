//! Puts the files' parts together: whose child is what, and which sub-policy takes which place.
//!
//! Why: an operator, tenants and applications each write their own part (Loom §3, "Composing Sub-Policies").
//! From: Loom §3 and Figure 5: without limits the graph is a tree.
//! Not here: rates, matches and costs, which are judged once the whole is there.
//! Invariant: every node has one parent, the first that claims it on the way down from the root; what has no place is
//! told, and then judged as if it lay below the root, so that all mistakes come in one go.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

use plimsoll_units::{Bytes, Span};

use super::graph::{Draft, DraftKind, Graph, LimitDraft, NodeIx, Scope, ScopeIx, TenantDraft, TenantIx};
use super::metadata::Known;
use super::names::reserved;
use super::{ended, promises};
use crate::files::{Files, MAX_FILE, Unread};
use crate::law::{Law, Problem, Problems};
use crate::read;
use crate::read::syntax::{
    Child, ClassEntry, Flows, HostFile, LimitEntry, Order, OrderKind, PolicyFile, Queues, TenantEntry,
};
use plimsoll_document::{FileId, Located, Mark, Name, Sources, shown};

/// Nodes that any policy may have in all; one whose engine has more flow queues may have as many as those.
pub(crate) const MAX_NODES: usize = 65_536;
/// Slack or deadline of a class below an `lstf` or `edf` node that states none.
pub(crate) const DEFAULT_TAG: Span = Span::millis(10);
/// Levels of the tree that is built, whatever `engine.max_depth` allows (64 at most): a class that lies deeper is told,
/// and then judged as if it lay below its file's root. A path's length, and the time to walk it, have this bound.
const DEEPEST: usize = 64;
/// Names at each end of a path that is too deep to be shown whole.
const PATH_ENDS: usize = 3;

/// Where the graph grows, and what is wrong with it.
pub(crate) struct Composer<'a> {
    pub graph: Graph,
    pub problems: Problems,
    pub sources: &'a mut Sources,
    files: &'a mut dyn Files,
    /// What a tenant's file, and the files that it names, come to, by the place that the first of them takes.
    read_for: BTreeMap<NodeIx, Read>,
    /// Bytes of all of them.
    read_in_all: usize,
    loaded: HashMap<String, FileId>,
    /// What the files say that take more than one place, perhaps; nothing for one that is no YAML.
    read: HashMap<FileId, Option<Rc<PolicyFile>>>,
    /// Of each name of a class or limit, in how many scopes it stands.
    pub(super) stated: HashMap<String, usize>,
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
    /// Their shares where the tree states none.
    pub weights: Vec<u32>,
    pub(super) full: bool,
    /// The operator's policy has no root, so that nothing has a place.
    pub(super) rootless: bool,
}

/// What was read for one tenant.
#[derive(Default)]
struct Read {
    files: usize,
    bytes: usize,
}

/// Files that a tenant's file may name, and they further ones, itself counted.
const MOST_FILES: usize = 256;
/// Bytes of all files but the operator's together: half a kilobyte for each class that a policy may have.
const MOST_BYTES: Bytes = Bytes::new(32_000_000);

/// What takes a leaf's place.
enum Sub {
    File(Name),
    Queues(Queues),
}

/// One file's classes while they find their places.
pub(super) struct Family<'c> {
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

    /// The first of the sources is the file behind this path.
    pub fn is_loaded(&mut self, path: &str) {
        self.loaded.insert(path.to_owned(), FileId(0));
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
            root.order = Some(Order { kind: OrderKind::Wfq, at, children });
        }
        root
    }

    /// Whether no earlier tenant has its name.
    pub(super) fn is_first_tenant(&self, index: TenantIx) -> bool {
        self.graph.tenant_named(&self.tenants[index].name.value) == Some(index)
    }

    fn node(&mut self, draft: Draft) -> NodeIx {
        self.graph.nodes.push(draft);
        self.graph.nodes.len() - 1
    }

    /// Loads the file that takes `place`.
    fn sub_policy(&mut self, path: &Name, place: NodeIx) {
        let Some(file) = self.read_sub(path, place) else { return };
        let outer = self.graph.nodes[place].scope;
        self.place(&file, Some(outer), place);
    }

    fn read_sub(&mut self, path: &Name, place: NodeIx) -> Option<Rc<PolicyFile>> {
        let outer = self.graph.nodes[place].scope;
        let by_tenant = self.graph.scopes[outer].outer.is_some();
        if by_tenant && (path.value.starts_with('/') || path.value.split('/').any(|part| part == "..")) {
            let message = format!("`{}` leaves the directory of this file", path.value);
            let problem = Problem::error(Law::Outside, path.at, message).label("outside");
            self.problems.push(
                problem.help("a sub-policy may name only files beside or below its own file, without `..`"),
            );
            return None;
        }
        let name = beside(&self.sources.file(path.at.file).name, &path.value);
        let known = self.loaded.get(&name).copied();
        let id = known.or_else(|| self.load(path, name, outer, place))?;
        let mut scopes = std::iter::successors(Some(outer), |&scope| self.graph.scopes[scope].outer);
        if scopes.any(|scope| self.graph.scopes[scope].at.file == id) {
            let message = format!("`{}` contains itself", path.value);
            let problem =
                Problem::error(Law::Cycle, path.at, message).label("includes a file that includes it");
            self.problems.push(problem.help("give the sub-policy a file of its own"));
            return None;
        }
        if let Some(known) = self.read.get(&id) {
            return known.clone();
        }
        let file = match self.files.tree(self.sources, id) {
            Ok(tree) => {
                let (file, problems) = read::read_all(|reader| read::policy_file(reader, &tree));
                self.problems.append(problems);
                Some(Rc::new(self.rooted(file)))
            }
            Err(Unread::Syntax(error)) => {
                self.problems.push(super::no_yaml(error));
                None
            }
            Err(Unread::Ended(why)) => {
                self.problems.push(ended(path.at, &self.sources.file(id).name, &why));
                None
            }
        };
        self.read.insert(id, file.clone());
        file
    }

    /// Reads a file's text, if its tenant may have another file.
    fn load(&mut self, path: &Name, name: String, outer: ScopeIx, place: NodeIx) -> Option<FileId> {
        let scopes = std::iter::successors(Some(outer), |&scope| self.graph.scopes[scope].outer);
        let first = scopes.filter(|&scope| scope != 0).last();
        let first = first.map_or(place, |scope| self.graph.scopes[scope].root);
        self.read_for.entry(first).or_default().files += 1;
        // Before it is read: what is named thousands of times must not be read as often, to be refused each time.
        if !self.affords(path, first, 0) {
            return None;
        }
        match self.files.text(&name) {
            Ok(text) => self.affords(path, first, text.len()).then(|| {
                let id = self.sources.add(&name, text);
                self.loaded.insert(name, id);
                id
            }),
            Err(why) => {
                let message = format!("cannot read `{name}`: {why}");
                let problem = Problem::error(Law::File, path.at, message).label("names this file");
                self.problems
                    .push(problem.help("write the file, or leave `policy` out: then its traffic gets FIFO"));
                None
            }
        }
    }

    /// Whether a tenant's files may hold so much more, and all tenants' together; what they may not have is told.
    fn affords(&mut self, path: &Name, first: NodeIx, bytes: usize) -> bool {
        let read = self.read_for.entry(first).or_default();
        read.bytes = read.bytes.saturating_add(bytes);
        let message = if read.files > MOST_FILES {
            format!("there are more than {MOST_FILES} files with this one")
        } else if read.bytes > MAX_FILE.as_u64() as usize {
            format!("the files down to this one hold more than {MAX_FILE} together")
        } else {
            self.read_in_all = self.read_in_all.saturating_add(bytes);
            if self.read_in_all <= MOST_BYTES.as_u64() as usize {
                return true;
            }
            // The one that is named here may be the smallest.
            let (&most, read) = self.read_for.iter().max_by_key(|(_, read)| read.bytes).expect("this one's");
            let (name, bytes) = (&self.graph.nodes[most].name, Bytes::new(read.bytes as u64));
            format!(
                "all tenants' files down to this one hold more than {MOST_BYTES} together, {bytes} of it `{name}`'s"
            )
        };
        let problem = Problem::error(Law::TooLarge, path.at, message).label("names this file");
        self.problems.push(problem.help(
            "what a tenant's file and those that it names hold together is bounded, and what all tenants' do: merge small ones, \
             drop comments",
        ));
        false
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
            classes.push(self.missing_root(file.at));
            file.rootless = true;
        }
        file
    }

    /// Tells of it, and gives the file one, so that the rest of it can be judged.
    fn missing_root(&mut self, at: Mark) -> ClassEntry {
        let problem = Problem::error(Law::NoRoot, at, "`policy` has no `root`").label("this file");
        self.problems.push(problem.help("name the topmost class `root`, as in `root: {wfq: {a: 2, b: 1}}`"));
        let mut root = ClassEntry::new(Located::new("root".to_owned(), at));
        root.order = Some(Order { kind: OrderKind::Fifo, at, children: Vec::new() });
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
            self.graph.limits.push(LimitDraft { name, entry, scope, via, tenant: None, outer, again });
        }
    }

    /// Claims children from the root down and makes their nodes.
    fn grow(&mut self, family: &mut Family<'_>) {
        let root = family.names["root"];
        family.nodes[root] = Some(family.place);
        self.adopt_root(&family.classes[root], family.scope, family.place);
        self.grow_below(family, root, &|_| true);
    }

    /// The same for a class that has no place of its own, as if it lay below the root: its mistakes are told with
    /// those of all others. `tell` says of which classes a second claim is worth telling.
    pub(super) fn grow_loose(&mut self, family: &mut Family<'_>, class: usize, tell: &dyn Fn(usize) -> bool) {
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

    /// The sub-policy's root brings its order into the place's node, which keeps its own envelope.
    fn adopt_root(&mut self, root: &ClassEntry, scope: ScopeIx, place: NodeIx) {
        let top = self.graph.scopes[scope].outer.is_none();
        let refuse = |at: Option<Mark>, key: &str, help: &str| {
            at.map(|at| {
                let problem = Problem::error(Law::Meaningless, at, format!("`root` has `{key}`"));
                problem.label("not at the root").help(help)
            })
        };
        let min_help = "the root's share is not the file's to state: put `min` into its classes";
        let max_help =
            "whoever names this file states its `max`; to hold yourself back, write a limit and send via it";
        let match_help = "everything that comes here reaches the root: put the match into its classes";
        let mut refused = vec![
            refuse(root.min.map(|min| min.at), "min", min_help),
            refuse(root.matches.as_ref().map(|found| found.at), "match", match_help),
        ];
        if !top {
            refused.push(refuse(root.max.map(|max| max.at), "max", max_help));
        }
        self.problems.extend(refused.into_iter().flatten());
        let kind = self.kind_of(root, place);
        let node = &mut self.graph.nodes[place];
        (node.kind, node.form) = (kind, root.form);
        node.descriptors = root.descriptors.map(|cap| cap.value).or(node.descriptors);
        if top {
            (node.at, node.max, node.burst) = (root.name.at, root.max, root.burst);
        }
        let via = self.limits_named(&root.via, scope);
        self.graph.nodes[place].via.extend(via);
        self.judge_match(root, place, scope);
        if let Some(path) = &root.policy {
            let problem = Problem::error(Law::Meaningless, path.at, "`root` is itself another file's policy");
            self.problems
                .push(problem.label("not at the root").help("name that file where this one is named"));
            self.attach_aside(path, place);
        }
        if let Some(queues) = &root.queues {
            let problem = Problem::error(Law::Meaningless, queues.at, "`root` has `queues`");
            self.problems.push(problem.label("not at the root").help(
                "list them as its children, `priority: [voice, rest]`, and give each a `match` of its own",
            ));
        }
    }

    pub(super) fn adopt(
        &mut self,
        class: &ClassEntry,
        parent: NodeIx,
        weight: u32,
        scope: ScopeIx,
    ) -> NodeIx {
        let depth = self.graph.nodes[parent].depth + 1;
        // Too deep to be walked from below: it hangs from its file's root.
        let (hung, loose) =
            if depth > DEEPEST { (self.graph.scopes[scope].root, true) } else { (parent, false) };
        let name = self.path_below(parent, &class.name.value, depth);
        let tenant = self.graph.nodes[parent].tenant;
        let parent = hung;
        let node = self.node(Draft {
            parent: Some(parent),
            depth,
            loose,
            weight,
            min: class.min,
            max: class.max,
            burst: class.burst,
            descriptors: class.descriptors.map(|cap| cap.value),
            form: class.form,
            matches: class.matches.clone(),
            tenant,
            ..Draft::leaf(name, class.name.at, scope)
        });
        self.graph.nodes[parent].children.push(node);
        self.graph.nodes[node].kind = self.kind_of(class, node);
        self.graph.nodes[node].via = self.limits_named(&class.via, scope);
        self.judge_match(class, node, scope);
        if let Some(path) = &class.policy {
            self.attach(path, class, node);
        }
        if let Some(queues) = &class.queues {
            self.attach_queues(queues, class, node);
        }
        node
    }

    /// The path of a class below `parent`; of one that lies too deep, its ends.
    fn path_below(&self, parent: NodeIx, name: &str, depth: usize) -> String {
        let path = scoped(&self.graph.nodes[parent].name, &shown(name));
        if depth > self.max_depth { ends_of(&path) } else { path }
    }

    /// What is wrong with a match wherever it stands.
    fn judge_match(&mut self, class: &ClassEntry, node: NodeIx, scope: ScopeIx) {
        let Some(entry) = &class.matches else { return };
        let own = self.graph.scopes[scope].tenant;
        for name in &entry.tenant {
            let known = self.graph.tenant_named(&name.value);
            if own.is_some() && known != own {
                let message = format!("`{}` is not this file's tenant", name.value);
                let problem =
                    Problem::error(Law::Outside, name.at, message).label("outside of this sub-policy");
                self.problems.push(
                    problem.help("a sub-policy sees its own tenant's packets only: leave `tenant` out"),
                );
            } else if known.is_none() {
                self.unknown_name(name, scope, "tenant");
            }
        }
        // An empty range was told where it was read.
        if let Some(why) = entry.conditions.impossible().filter(|_| !entry.conditions.has_empty_range()) {
            let message = format!("no packet matches class `{}`: {why}", self.graph.nodes[node].name);
            let problem = Problem::error(Law::NeverMatches, entry.at, message).label("never holds");
            self.problems.push(problem.help("widen the match, or remove the class"));
        }
    }

    /// Notes a file that has no place, so that its mistakes are told all the same.
    fn attach_aside(&mut self, path: &Name, beside: NodeIx) {
        let near = &self.graph.nodes[beside];
        let (name, at, scope, tenant) = (near.name.clone(), near.at, near.scope, near.tenant);
        let depth = near.depth;
        let aside =
            Draft { parent: Some(beside), depth, tenant, loose: true, ..Draft::leaf(name, at, scope) };
        let aside = self.node(aside);
        self.pending.push_back((Sub::File(path.clone()), aside));
    }

    /// Notes the file whose root takes this leaf's place.
    fn attach(&mut self, path: &Name, class: &ClassEntry, node: NodeIx) {
        let stated = class
            .order
            .as_ref()
            .map(|order| (order.at, "children"))
            .or(class.flows.map(|f| (f.at, "`flows`")))
            // Or a cap in the file would take the place of this one.
            .or(class.descriptors.map(|cap| (cap.at, "`descriptors`")));
        match stated {
            Some((at, what)) => {
                let message = format!("`{}` has {what} and a `policy` file", class.name.value);
                let problem = Problem::error(Law::Meaningless, at, message).label("stated here");
                self.problems.push(
                    problem
                        .also(path.at, "and by this file")
                        .help("say it in that file's `root`, or drop the file"),
                );
                self.attach_aside(path, node);
            }
            None => self.pending.push_back((Sub::File(path.clone()), node)),
        }
    }

    /// Notes the queues that a class divides itself into.
    fn attach_queues(&mut self, queues: &Queues, class: &ClassEntry, node: NodeIx) {
        let stated = [
            class.order.as_ref().map(|order| (order.at, "children")),
            class.policy.as_ref().map(|path| (path.at, "a `policy` file")),
            class.flows.map(|flows| (flows.at, "`flows`")),
            class.slack.map(|slack| (slack.at, "`slack`")),
            class.deadline.map(|deadline| (deadline.at, "`deadline`")),
        ];
        let Some((at, what)) = stated.into_iter().flatten().next() else {
            return self.pending.push_back((Sub::Queues(queues.clone()), node));
        };
        let message = format!("`{}` has {what} and `queues`", class.name.value);
        let problem = Problem::error(Law::Meaningless, at, message).label("stated here");
        let help = "say it in each of the queues, or leave `queues` out";
        self.problems.push(problem.also(queues.at, "its queues").help(help));
    }

    /// A child that is no class of this file: a tenant, for the operator.
    fn adopt_tenant(&mut self, child: &Child, kind: OrderKind, parent: NodeIx, scope: ScopeIx, tell: bool) {
        let known = if scope == 0 { self.graph.tenant_named(&child.name.value) } else { None };
        let known = known.filter(|&tenant| tenant < self.tenants.len());
        let Some(tenant) = known else { return self.unknown_child(child, scope) };
        if let Some(first) = self.graph.tenants[tenant].node {
            if !tell {
                return;
            }
            let message = format!("tenant `{}` has two scheduling parents", child.name.value);
            return self.second_parent(message, child.name.at, first);
        }
        let stated = self.tenants[tenant].weight;
        let weight = child.weight.map_or(self.weights[tenant], |weight| weight.value);
        let node = self.place_tenant(tenant, parent, weight, scope);
        self.graph.nodes[node].rate = child.rate;
        self.graph.tenants[tenant].node = Some(node);
        self.weight_problems(child, stated, kind);
    }

    /// Makes a tenant's node.
    pub(super) fn place_tenant(
        &mut self,
        tenant: TenantIx,
        parent: NodeIx,
        weight: u32,
        scope: ScopeIx,
    ) -> NodeIx {
        let name = self.tenants[tenant].name.clone();
        let entry = std::mem::replace(&mut self.tenants[tenant].class, ClassEntry::new(name));
        let node = self.adopt(&entry, parent, weight, scope);
        self.tenants[tenant].class = entry;
        self.graph.nodes[node].tenant = Some(tenant);
        node
    }

    fn weight_problems(&mut self, child: &Child, stated: Option<Located<u32>>, kind: OrderKind) {
        let Some(stated) = stated else { return };
        if !kind.weighs() {
            let message = format!("the weight of tenant `{}` means nothing here", child.name.value);
            let problem = Problem::warning(Law::Meaningless, stated.at, message).label("this weight");
            self.problems.push(
                problem
                    .also(child.name.at, "no weights among these children")
                    .help("leave `weight` out, or put the tenant below a `wfq` or `drr` class"),
            );
        } else if let Some(weight) = child.weight.filter(|weight| weight.value != stated.value) {
            let message = format!("tenant `{}` has two weights; {} counts", child.name.value, weight.value);
            let problem =
                Problem::warning(Law::Meaningless, stated.at, message).label("this one does not count");
            self.problems.push(problem.also(weight.at, "this one counts").help("keep one of the two"));
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

    /// What a class is, and for a leaf how it orders its flow queues.
    fn kind_of(&mut self, class: &ClassEntry, node: NodeIx) -> DraftKind {
        let name = class.name.value.clone();
        if let (Some(order), Some(matches)) =
            (&class.order, class.matches.as_ref().filter(|_| name != "root"))
        {
            let message = format!("`{name}` has children and a `match`");
            let problem = Problem::error(Law::MatchOnNode, matches.at, message).label("only leaves match");
            self.problems.push(
                problem
                    .also(order.at, "has children")
                    .help("put the match into each of its leaves that it is meant for"),
            );
        }
        if let Some(order) = &class.order {
            let leaf_keys = [
                class.flows.map(|found| (found.at, "flows")),
                class.slack.map(|found| (found.at, "slack")),
                class.deadline.map(|found| (found.at, "deadline")),
                class.descriptors.map(|found| (found.at, "descriptors")),
            ];
            for (at, key) in leaf_keys.into_iter().flatten() {
                let message = format!("`{name}` has children and `{key}`");
                let problem = Problem::error(Law::Meaningless, at, message).label("only for leaves");
                self.problems.push(
                    problem
                        .also(order.at, "has children")
                        .help(format!("flow queues are in leaves: put `{key}` into the children")),
                );
            }
            return DraftKind::Order(order.kind);
        }
        let above = self.graph.path(node).skip(1).find_map(|above| match self.graph.nodes[above].kind {
            DraftKind::Order(OrderKind::Lstf) => Some(Flows::Lstf),
            DraftKind::Order(OrderKind::Edf) => Some(Flows::Edf),
            _ => None,
        });
        let implied = class.slack.map(|_| Flows::Lstf).or(class.deadline.map(|_| Flows::Edf)).or(above);
        let flows = class.flows.map(|flows| flows.value).or(implied).unwrap_or(Flows::Fifo);
        for (stated, key, wanted) in
            [(class.slack, "slack", Flows::Lstf), (class.deadline, "deadline", Flows::Edf)]
        {
            let Some(stated) = stated.filter(|_| flows != wanted) else { continue };
            let order = key_of(wanted);
            let message = format!("`{name}` has `{key}`, but nothing there orders by it");
            let problem = Problem::error(Law::Meaningless, stated.at, message).label("no effect");
            self.problems.push(problem.help(format!("write `flows: {order}`, or leave `{key}` out")));
        }
        let tag = match flows {
            Flows::Lstf => class.slack.map_or(DEFAULT_TAG, |slack| slack.value),
            Flows::Edf => class.deadline.map_or(DEFAULT_TAG, |deadline| deadline.value),
            Flows::Fifo | Flows::Drr => Span::ZERO,
        };
        DraftKind::Leaf { flows, tag }
    }
}

impl Draft {
    pub(super) fn leaf(name: String, at: Mark, scope: ScopeIx) -> Self {
        Self {
            name,
            at,
            parent: None,
            depth: 1,
            kind: DraftKind::Leaf { flows: Flows::Fifo, tag: Span::ZERO },
            weight: 1,
            rate: None,
            form: None,
            min: None,
            max: None,
            burst: None,
            descriptors: None,
            via: Vec::new(),
            matches: None,
            children: Vec::new(),
            tenant: None,
            scope,
            sub: None,
            implicit: false,
            loose: false,
        }
    }
}

fn key_of(flows: Flows) -> &'static str {
    match flows {
        Flows::Fifo => "fifo",
        Flows::Drr => "drr",
        Flows::Lstf => "lstf",
        Flows::Edf => "edf",
    }
}

/// A name below a node: `tenants/shop/web`; children of the root have no prefix.
pub(super) fn scoped(parent: &str, name: &str) -> String {
    if parent == "root" { name.to_owned() } else { format!("{parent}/{name}") }
}

/// The first and the last names of a long path.
fn ends_of(path: &str) -> String {
    let names: Vec<&str> = path.split('/').collect();
    if names.len() <= 2 * PATH_ENDS + 1 {
        return path.to_owned();
    }
    let (first, last) = (&names[..PATH_ENDS], &names[names.len() - PATH_ENDS..]);
    format!("{}/…/{}", first.join("/"), last.join("/"))
}

/// A path as seen from the file that states it.
fn beside(file: &str, path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    match file.rsplit_once('/') {
        Some((directory, _)) => format!("{directory}/{path}"),
        None => path.to_owned(),
    }
}
