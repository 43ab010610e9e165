//! The kind of a file: a policy, a part of one, or a scenario.
//!
//! Why: a file given to the wrong command gets one message, and not one for each of its keys.
//! From: the keys at its top, which differ.
//! Not here: reading the file.
//! Invariant: in doubt a file is a policy.

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A host's policy file.
    Policy,
    /// The file of a tenant or an application.
    SubPolicy,
    /// A file of the folder that a policy includes.
    Included,
    /// A scenario.
    Scenario,
}

impl FileKind {
    /// The kind by the top-level keys; in doubt a policy.
    #[must_use]
    pub fn of(keys: &[String]) -> Self {
        let has = |wanted: &[&str]| keys.iter().any(|key| wanted.contains(&key.as_str()));
        if has(&["workloads", "systems", "duration", "expect"]) && !has(&["uplink"]) {
            Self::Scenario
        } else if has(&["policy", "limits"]) && keys.iter().all(|key| key == "policy" || key == "limits") {
            Self::SubPolicy
        } else if has(&["tenants"]) && keys.iter().all(|key| key == "tenants") {
            Self::Included
        } else {
            Self::Policy
        }
    }

    /// Fails when a file with these keys at its top is clearly of another kind.
    ///
    /// # Errors
    /// A message with the file's name, its kind and its use.
    pub fn want(self, file: &str, keys: &[String]) -> Result<(), String> {
        let kind = Self::of(keys);
        // A scenario may lack all keys that tell its kind.
        let clear = matches!(kind, Self::Scenario | Self::Included) || keys.iter().any(|key| key == "uplink");
        if kind == self || !clear {
            return Ok(());
        }
        let (is, wanted, use_of) = (kind.words(), self.words(), kind.runs_by());
        Err(format!("{file} is {is}, but this command needs {wanted}; {use_of}"))
    }

    /// The kind with its article, for a message.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Policy => "a policy",
            Self::SubPolicy => "a sub-policy",
            Self::Included => "an included file",
            Self::Scenario => "a scenario",
        }
    }

    /// How a file of this kind is used, for a message.
    fn runs_by(self) -> &'static str {
        match self {
            Self::Policy => "`plimsoll run` runs it on a host",
            Self::SubPolicy => "the operator's file names it under `policy` of a tenant",
            Self::Included => "the operator's file, which has `uplink`, names its folder under `include`",
            Self::Scenario => "`plimsoll lab` runs it live, `plimsoll sim` runs it in virtual time",
        }
    }
}
