//! The user that the engine's process runs as.
//!
//! Why: the process must not reach files and processes of root or of any other user.
//! From: setresuid(2), systemd's list of user ids (no person has one of `60,000` and above).
//! Not here: access rights: this user owns nothing, and all files that it needs are opened for it.
//! Invariant: a user that the operator names is used, or the start ends with an error.

use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User as Account, geteuid, setgroups, setresgid, setresuid};

/// The user that the process becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    name: String,
    ids: Option<(Uid, Gid)>,
    /// The operator has named it.
    stated: bool,
}

impl User {
    /// The stated user, by name or number; else `plimsoll`, where there is such a user; else a number that no user has. A
    /// process that is not root's keeps its user, unless another one is stated.
    pub(crate) fn choose(stated: Option<&str>) -> Result<Self, String> {
        if let Some(stated) = stated {
            return Self::stated(stated);
        }
        if !geteuid().is_root() {
            return Ok(Self { name: format!("uid {}", geteuid()), ids: None, stated: false });
        }
        if let Ok(Some(account)) = Account::from_name(USUAL) {
            return Ok(Self::of(&account, false));
        }
        let free = |id: &u32| {
            matches!(Account::from_uid(Uid::from_raw(*id)), Ok(None))
                && matches!(Group::from_gid(Gid::from_raw(*id)), Ok(None))
        };
        let id = (RESERVED..RESERVED + TRIES).find(free).unwrap_or(RESERVED);
        let ids = Some((Uid::from_raw(id), Gid::from_raw(id)));
        Ok(Self { name: format!("uid {id}"), ids, stated: false })
    }

    fn stated(stated: &str) -> Result<Self, String> {
        if let Ok(Some(account)) = Account::from_name(stated) {
            return Ok(Self::of(&account, true));
        }
        let id: u32 = stated.parse().map_err(|_| {
            format!("`--user {stated}`: there is no such user; make one (`useradd --system {stated}`), or give a number")
        })?;
        if let Ok(Some(account)) = Account::from_uid(Uid::from_raw(id)) {
            return Ok(Self::of(&account, true));
        }
        let ids = Some((Uid::from_raw(id), Gid::from_raw(id)));
        Ok(Self { name: format!("uid {id}"), ids, stated: true })
    }

    fn of(account: &Account, stated: bool) -> Self {
        let name = format!("user {} (uid {})", account.name, account.uid);
        Self { name, ids: Some((account.uid, account.gid)), stated }
    }

    /// Becomes that user for good, without further groups; answers its name.
    pub(crate) fn become_it(&self) -> Result<String, String> {
        let Some((uid, gid)) = self.ids else { return Ok(self.name.clone()) };
        let switched =
            setgroups(&[]).and_then(|()| setresgid(gid, gid, gid)).and_then(|()| setresuid(uid, uid, uid));
        match switched {
            Ok(()) => Ok(self.name.clone()),
            Err(error) if self.stated => Err(format!("may not become {}: {error}", self.name)),
            // A user namespace with one user in it, or a root without CAP_SETUID and CAP_SETGID.
            Err(Errno::EINVAL | Errno::EPERM) => {
                eprintln!(
                    "plimsoll: may not become another user here, so the engine stays uid {} without privileges",
                    geteuid()
                );
                Ok(format!("uid {} (no other can be had here)", geteuid()))
            }
            Err(error) => Err(format!("may not become {}: {error}", self.name)),
        }
    }
}

/// The user that packages make for the daemon.
const USUAL: &str = "plimsoll";

/// A number that systemd, Debian and Fedora give to no user (systemd: 60,706 to 61,183 are unused).
const RESERVED: u32 = 60_977;

/// How many numbers from there on are tried if a user has it.
const TRIES: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_named_by_name_or_number() {
        let named = User::choose(Some("root")).expect("every system has it");
        assert_eq!(named, User::choose(Some("0")).expect("by number"));
        assert_eq!(named.ids, Some((Uid::from_raw(0), Gid::from_raw(0))));
        let why = User::choose(Some("no-such-user-here")).expect_err("none");
        assert!(why.contains("useradd --system no-such-user-here"), "{why}");
    }

    #[test]
    fn without_a_word_root_becomes_a_user_of_its_own() {
        let chosen = User::choose(None).expect("one");
        match chosen.ids {
            Some((uid, _)) => assert!(geteuid().is_root() && !uid.is_root(), "{chosen:?}"),
            None => assert!(!geteuid().is_root(), "{chosen:?}"),
        }
    }
}
