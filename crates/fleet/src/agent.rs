//! A host's agent: has the host's daemon do what the directory says.
//!
//! Why: the daemon depends on no store; it reads a file, and this process writes that file.
//! From: control loops that compare what is wanted with what is there.
//! Not here: composing (`compose`), asking the daemon (the caller's [`Local`]).
//! Invariant: the file always holds a policy that was checked; without the directory it stays as it is. A host whose agent does
//! not hear the directory counts for no other host's end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::change::Edit;
use crate::clock::unix_time;
use crate::compose::{Composed, compose_without};
use crate::directory::{Directory, DirectoryError, News, Outcome};
use crate::object::{Alive, RolloutState, VERSION, Value};
use crate::rollout::{Step, step};
use crate::state::{Empty, Seen, State};

/// The host's own side of an agent.
pub trait Local {
    /// Checks a policy, as `plimsoll check` does.
    ///
    /// # Errors
    /// Its mistakes.
    fn check(&mut self, composed: &Composed) -> Result<(), String>;

    /// Has the daemon read its file again.
    ///
    /// # Errors
    /// Why it did not: it does not run, or refuses.
    fn reload(&mut self) -> Result<(), String>;

    /// The tenants whose promises were broken in the last `seconds`, each with the cause.
    ///
    /// # Errors
    /// Why the daemon does not say.
    fn broken(&mut self, seconds: u64) -> Result<BTreeMap<String, String>, String>;

    /// The daemon's health, where it is not `ok`.
    fn health(&mut self) -> Option<String>;
}

/// What an agent is told at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The host that it is for.
    pub host: String,
    /// The policy file that it writes.
    pub file: PathBuf,
}

/// A host's agent.
pub struct Agent<'a> {
    settings: Settings,
    directory: Box<dyn Directory>,
    local: Box<dyn Local + 'a>,
    log: Box<dyn FnMut(&str) + 'a>,
    state: State,
    /// Whether that may mean another policy than the one that was put in force last.
    changed: bool,
    /// The policy that the daemon has in force, as far as is known.
    in_force: Option<Composed>,
    /// Since when.
    since: Instant,
    /// The tenants of it.
    serving: BTreeSet<String>,
    status: Alive,
    /// What the directory knows of `status`, and when it was told.
    beaten: Option<(Vec<u8>, Instant)>,
    /// Since when hosts are silent.
    silent: BTreeMap<String, Instant>,
    /// Whether the directory answered last time; none: it was not asked yet.
    heard: Option<bool>,
    back_off: Duration,
    /// When what is wanted and not in force is tried again.
    retry: Option<Instant>,
    retry_after: Duration,
    /// When the fleet's common duties are due.
    duties: Instant,
    complaint: Option<String>,
}

/// How long to wait for further changes, so that many make one reload.
const GATHER: Duration = Duration::from_millis(10);
/// Rounds of that at most.
const GATHERED: usize = 20;
/// How long to wait between tries when the directory does not answer: the first time, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// How long until a policy that the daemon did not take is tried again: the first time, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// How often the fleet's common duties are looked at.
const DUTIES: Duration = Duration::from_secs(1);

/// Why what the directory says is not in force.
enum Trouble {
    /// It makes no sense; only a change mends it.
    Directory(String),
    /// It was not taken; it may be taken later.
    Daemon(String),
}

impl<'a> Agent<'a> {
    /// An agent that has not asked the directory yet.
    pub fn new(
        settings: Settings,
        directory: Box<dyn Directory>,
        local: Box<dyn Local + 'a>,
        log: Box<dyn FnMut(&str) + 'a>,
    ) -> Self {
        let now = Instant::now();
        Self {
            settings,
            directory,
            local,
            log,
            state: State::default(),
            changed: false,
            in_force: None,
            since: now,
            serving: BTreeSet::new(),
            status: Alive { v: VERSION, ..Alive::default() },
            beaten: None,
            silent: BTreeMap::new(),
            heard: None,
            back_off: BACK_OFF.0,
            retry: None,
            retry_after: RETRY.0,
            duties: now,
            complaint: None,
        }
    }

    /// Works for ever.
    pub fn run(&mut self) -> ! {
        loop {
            self.turn();
        }
    }

    /// What the agent knows of the fleet.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// One turn: hears of changes, has them put in force, and says how the host is. Lasts about a second at most while the
    /// directory answers.
    pub fn turn(&mut self) {
        if let Err(error) = self.try_turn() {
            self.not_heard(&error);
        }
    }

    fn try_turn(&mut self) -> Result<(), DirectoryError> {
        self.listen()?;
        if self.heard != Some(true) {
            let place = self.directory.place().to_owned();
            self.say(&format!("the directory at {place} answers"));
            (self.heard, self.back_off) = (Some(true), BACK_OFF.0);
            self.silent.clear();
        }
        let now = Instant::now();
        if self.changed || self.retry.is_some_and(|at| at <= now) {
            self.update();
        }
        if now >= self.duties {
            self.duties = now + DUTIES;
            self.judge();
            self.common_duties()?;
        }
        self.beat()
    }

    /// Waits for changes, and notes whether the policy may have changed: also where the directory is lost in between.
    fn listen(&mut self) -> Result<(), DirectoryError> {
        let mut news = self.directory.wait(self.patience())?;
        for _ in 0..GATHERED {
            match &news {
                News::Changes(changes) if changes.is_empty() => break,
                News::Changes(changes) => {
                    self.changed |= changes.iter().any(|change| concerns_policy(&change.key))
                }
                News::All(_) => self.changed = true,
            }
            self.state.hear(&news);
            news = self.directory.wait(GATHER)?;
        }
        Ok(())
    }

    /// How long nothing is due.
    fn patience(&self) -> Duration {
        let now = Instant::now();
        let due = [Some(self.duties), self.retry].into_iter().flatten().min();
        due.map_or(DUTIES, |due| due.saturating_duration_since(now)).max(Duration::from_millis(1))
    }

    fn not_heard(&mut self, error: &DirectoryError) {
        if self.heard != Some(false) {
            let file = self.settings.file.display().to_string();
            let goes_on = if self.settings.file.exists() {
                format!("this host goes on with {file} as it is")
            } else {
                format!("and there is no {file} yet")
            };
            self.say(&format!("{error}; {goes_on}"));
            self.heard = Some(false);
        }
        // The daemon may be back meanwhile.
        if self.retry.is_some() {
            self.update();
        }
        std::thread::sleep(self.back_off);
        self.back_off = (self.back_off * 2).min(BACK_OFF.1);
    }

    /// Puts in force what the directory says. A tenant that is new here and that the daemon does not take, because its port
    /// cannot be opened, is left out: it keeps no change from the others.
    fn update(&mut self) {
        (self.changed, self.retry) = (false, None);
        let Err(trouble) = self.put_in_force(&BTreeMap::new()) else {
            (self.status.error, self.complaint) = (None, None);
            self.retry_after = RETRY.0;
            return;
        };
        let why = match trouble {
            Trouble::Directory(why) => return self.complain(&why),
            Trouble::Daemon(why) => why,
        };
        self.retry = Some(Instant::now() + self.retry_after);
        self.retry_after = (self.retry_after * 2).min(RETRY.1);
        let mut without: BTreeMap<String, String> =
            self.newcomers().map(|name| (name, why.clone())).collect();
        if without.is_empty() || self.put_in_force(&without).is_err() {
            return self.complain(&why);
        }
        for name in without.keys().cloned().collect::<Vec<_>>() {
            let Some(before) = without.remove(&name) else { continue };
            match self.put_in_force(&without) {
                Ok(()) => {}
                Err(Trouble::Daemon(why)) => _ = without.insert(name, why),
                Err(Trouble::Directory(_)) => _ = without.insert(name, before),
            }
        }
        match without.into_iter().next() {
            Some((name, why)) => self.complain(&format!("tenant {name} is left out: {why}")),
            None => (self.status.error, self.complaint) = (None, None),
        }
    }

    /// Tenants that are placed here and not in force.
    fn newcomers(&self) -> impl Iterator<Item = String> {
        let tenants = self.state.tenants_of(&self.settings.host).map(|(name, _)| name.clone());
        tenants.filter(|name| self.in_force.as_ref().is_some_and(|_| !self.serving.contains(name)))
    }

    /// Puts in force what the directory says, without some tenants.
    fn put_in_force(&mut self, without: &BTreeMap<String, String>) -> Result<(), Trouble> {
        let composed = compose_without(&self.state, &self.settings.host, without);
        let composed = composed.map_err(|error| Trouble::Directory(error.to_string()))?;
        for left in composed
            .left_out
            .iter()
            .filter(|left| !without.contains_key(left.key.trim_start_matches("tenants/")))
        {
            let before = self.in_force.as_ref().is_some_and(|before| before.left_out.contains(left));
            if !before {
                (self.log)(&format!("left out {}: {}", left.key, left.why));
            }
        }
        let same = |before: &Composed| before.text == composed.text && before.files == composed.files;
        if self.in_force.as_ref().is_some_and(same) {
            // The file may hold what the daemon did not take.
            write(&self.settings.file, &composed).map_err(|error| Trouble::Daemon(error.to_string()))?;
            self.in_force = Some(composed);
            return Ok(());
        }
        self.local.check(&composed).map_err(|mistakes| {
            Trouble::Directory(format!(
                "the policy that the directory makes for this host is wrong: {mistakes}"
            ))
        })?;
        write(&self.settings.file, &composed)
            .map_err(|error| Trouble::Daemon(format!("{}: {error}", self.settings.file.display())))?;
        self.local.reload().map_err(Trouble::Daemon)?;
        if self.status.applied != composed.policy || self.in_force.is_none() {
            self.since = Instant::now();
            self.status.judged = 0;
            self.status.broken.clear();
        }
        self.status.applied.clone_from(&composed.policy);
        self.status.overlay =
            self.state.fleet.as_ref().map(|fleet| fleet.overlay.clone()).unwrap_or_default();
        let tenants = self.state.tenants_of(&self.settings.host).map(|(name, _)| name.clone());
        self.serving = tenants.filter(|name| !without.contains_key(name)).collect();
        let policy =
            composed.policy.as_ref().map_or_else(|| "no policy".to_owned(), |used| format!("policy {used}"));
        let tenants = self.serving.len();
        self.in_force = Some(composed);
        self.say(&format!("in force: {tenants} tenants, {policy}"));
        Ok(())
    }

    fn complain(&mut self, why: &str) {
        self.status.error = Some(why.chars().take(2_000).collect());
        if self.complaint.as_deref() != Some(why) {
            self.say(why);
            self.complaint = Some(why.to_owned());
        }
    }

    fn say(&mut self, what: &str) {
        (self.log)(what);
    }

    /// Looks at what tenants were promised, while this host tries a policy for others.
    fn judge(&mut self) {
        if self.in_force.is_none() {
            return;
        }
        let health = self.local.health();
        self.status.health = health;
        let own = &self.settings.host;
        let mut running =
            self.state.rollouts.values().filter(|rollout| rollout.state == RolloutState::Canary);
        if !running.any(|rollout| rollout.canaries.contains(own)) {
            return;
        }
        // The second of the reload itself is not counted.
        let seconds = self.since.elapsed().as_secs().saturating_sub(1);
        if seconds == 0 {
            return;
        }
        match self.local.broken(seconds.min(60)) {
            Ok(broken) => (self.status.judged, self.status.broken) = (seconds, broken),
            Err(why) => self.status.health = Some(why),
        }
    }

    /// Renews the lease, where that is due or the host's status has changed.
    fn beat(&mut self) -> Result<(), DirectoryError> {
        let own = self.settings.host.clone();
        let Some(fleet) = self.state.fleet.as_ref().filter(|_| self.state.hosts.contains_key(&own)) else {
            return Ok(());
        };
        let lease = Duration::from_nanos(fleet.lease.as_u64());
        let value = self.status.write();
        let due = self.beaten.as_ref().is_none_or(|(said, at)| *said != value || at.elapsed() >= lease / 3);
        if due {
            self.directory.keep(&format!("alive/{own}"), &value, lease)?;
            self.beaten = Some((value, Instant::now()));
        }
        Ok(())
    }

    /// What one host does for all: the first by name whose lease holds.
    fn common_duties(&mut self) -> Result<(), DirectoryError> {
        let own = self.settings.host.clone();
        let mut due = Vec::new();
        if self.state.freed.contains_key(&own) && self.state.alive.contains_key(&own) {
            due.push((
                Edit::new(&self.state).remove(&format!("freed/{own}")).made(),
                "this host is back".to_owned(),
            ));
        }
        let first = self.state.alive.keys().next() == Some(&own);
        for host in self.state.hosts.keys() {
            if self.state.seen(host) == Seen::Silent {
                self.silent.entry(host.clone()).or_insert_with(Instant::now);
            } else {
                self.silent.remove(host);
            }
        }
        let free_after = self.state.fleet.as_ref().and_then(|fleet| fleet.free_after);
        if let Some(after) = free_after.map(|after| Duration::from_nanos(after.as_u64())).filter(|_| first) {
            let over = self
                .silent
                .iter()
                .filter(|(host, since)| since.elapsed() >= after && self.state.hosts.contains_key(*host));
            for (host, _) in over {
                let edit =
                    Edit::new(&self.state).rely(&format!("hosts/{host}")).rely(&format!("alive/{host}"));
                let freed = edit.put(&format!("freed/{host}"), &Empty { v: VERSION }).made();
                due.push((
                    freed,
                    format!("host {host} has been silent for {after:?}: its tenants may be placed elsewhere"),
                ));
            }
        }
        if first {
            for name in self.state.rollouts.keys() {
                if let Step::Make(transaction, what) = step(&self.state, name, unix_time()) {
                    due.push((transaction, format!("policy {name} goes {what}")));
                }
            }
        }
        for (transaction, words) in due {
            if self.directory.commit(&transaction)? == Outcome::Done {
                self.say(&words);
            }
        }
        Ok(())
    }
}

/// Whether a key may change a host's policy.
fn concerns_policy(key: &str) -> bool {
    ["fleet", "hosts/", "tenants/", "policies/"].into_iter().any(|start| key.starts_with(start))
}

/// Replaces the policy file and those that it names, each as a whole; the policy after what it names. Then removes the texts of
/// tenants that have left.
fn write(file: &Path, composed: &Composed) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for (name, text) in &composed.files {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        replace(&path, text)?;
    }
    replace(file, &composed.text)?;
    let Ok(there) = fs::read_dir(folder.join(composed.folder())) else { return Ok(()) };
    for entry in there.flatten() {
        let name = format!("{}/{}", composed.folder(), entry.file_name().to_string_lossy());
        if !composed.files.contains_key(&name) {
            let _ = fs::remove_file(entry.path()); // it is of no use, and no harm
        }
    }
    Ok(())
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.new"));
    fs::write(&new, text)?;
    fs::File::open(&new)?.sync_all()?;
    fs::rename(&new, path)
}
