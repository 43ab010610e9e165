//! The rules of the language, by name.
//!
//! Why: a message names the rule that is broken, and the reference explains it under that name.
//! From: Loom §3 (rules of the graph), `docs/policy.md` (all rules).
//! Not here: finding what breaks them (`read`, `check`), and showing it (`document`).
//! Invariant: a name, once printed, stays: scripts read it.

use schemars::JsonSchema;
use serde::Serialize;

use plimsoll_document::{self as document, Mistake, Rule, Severity};

/// One thing that is wrong with a policy.
pub type Problem = document::Problem<Law>;

/// Problems of a policy, as they are found.
pub(crate) type Problems = document::Problems<Law>;

/// Everything that is wrong with a policy.
pub type Errors = document::Errors<Law>;

/// A problem of a policy as a machine reads it.
pub type ProblemRecord = document::ProblemRecord<Law>;

/// The rules of the language, by the name under which `docs/policy.md` explains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Law {
    /// A file is YAML.
    Syntax,
    /// A file that a policy names can be read.
    File,
    /// Only keys of the language.
    UnknownKey,
    /// No key twice in one place.
    DuplicateKey,
    /// A key that is needed is there.
    MissingKey,
    /// A value has its key's form.
    BadValue,
    /// Names are letters, digits, `_`, `-` and `.`, start with a letter, and are not reserved.
    BadName,
    /// A name means one thing.
    NameClash,
    /// A name that is used is defined.
    UnknownName,
    /// A sub-policy names nothing outside of itself.
    Outside,
    /// A policy has a root.
    NoRoot,
    /// Without limits the graph is a tree: one scheduling parent (Loom §3, Figure 5a and b).
    SecondParent,
    /// No node is its own ancestor, and no limit encloses itself.
    Cycle,
    /// Every class hangs below the root, and every tenant is carried by a class.
    Orphan,
    /// A limit shapes and never orders; a class orders and never shapes (Loom §3, Figure 5c and d).
    WrongKind,
    /// Packets that pass an inner limit also match the one around it.
    Nesting,
    /// Weights and rates are above zero.
    Zero,
    /// The rates promised to classes fit the link and their ancestors' `max`.
    MinAboveLink,
    /// A `min` fits below the `max` of the same class and of every ancestor.
    MinAboveMax,
    /// A delay target should be no less than the worst case.
    DelayNotHeld,
    /// The rates that a sub-policy promises should be covered by its place's guarantee.
    MinNotBacked,
    /// The rate of a flow that backpressure slows down should be no less than what its tenants are promised.
    MinNotHeld,
    /// A rate above the link limits nothing.
    MaxAboveLink,
    /// A match can hold for some packet.
    NeverMatches,
    /// Only leaves match.
    MatchOnNode,
    /// A burst holds at least one frame.
    BurstTooSmall,
    /// A burst leaves within a minute at its limit's rate.
    BurstTooLarge,
    /// A limit that no class uses.
    UnusedLimit,
    /// A limit behind one that is as tight holds nothing back.
    NeverBinds,
    /// A key means something where it stands.
    Meaningless,
    /// Flows are metered at their sources' hosts.
    SourceNotReached,
    /// Two ports are two things.
    PortClash,
    /// The tenants' descriptors fit the host's.
    TooManyDescriptors,
    /// The tree is at most as deep as configured (Loom §4.2.3).
    TooDeep,
    /// A packet can be scheduled in the time that a frame takes on the link (Loom §3, "Policy limitations").
    TooCostly,
    /// A policy fits the engine's tables.
    TooLarge,
}

impl Law {
    /// Every rule, in the order of the reference.
    pub const ALL: [Self; 36] = [
        Self::Syntax,
        Self::File,
        Self::UnknownKey,
        Self::DuplicateKey,
        Self::MissingKey,
        Self::BadValue,
        Self::BadName,
        Self::NameClash,
        Self::UnknownName,
        Self::Outside,
        Self::NoRoot,
        Self::SecondParent,
        Self::Cycle,
        Self::Orphan,
        Self::WrongKind,
        Self::Nesting,
        Self::Zero,
        Self::MinAboveLink,
        Self::MinAboveMax,
        Self::DelayNotHeld,
        Self::MinNotBacked,
        Self::MinNotHeld,
        Self::MaxAboveLink,
        Self::NeverMatches,
        Self::MatchOnNode,
        Self::BurstTooSmall,
        Self::BurstTooLarge,
        Self::UnusedLimit,
        Self::NeverBinds,
        Self::Meaningless,
        Self::SourceNotReached,
        Self::PortClash,
        Self::TooManyDescriptors,
        Self::TooDeep,
        Self::TooCostly,
        Self::TooLarge,
    ];

    /// The rule's name, as printed.
    #[must_use]
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }
}

impl Rule for Law {
    fn heading(&self, severity: Severity) -> String {
        format!("{severity}: rule `{}`", self.name())
    }

    fn of(mistake: Mistake) -> Self {
        match mistake {
            Mistake::UnknownKey => Self::UnknownKey,
            Mistake::DuplicateKey => Self::DuplicateKey,
            Mistake::MissingKey => Self::MissingKey,
            Mistake::BadValue => Self::BadValue,
            Mistake::Zero => Self::Zero,
        }
    }
}
