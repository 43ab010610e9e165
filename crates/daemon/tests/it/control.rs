//! Operators' changes to a running daemon, with its real thread and without ports of the kernel's.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::support::{self, World};
use plimsoll_daemon::reader::{Child, Ended, FileReader, Limits};
use plimsoll_daemon::{Asker, Audited, Command, Control, Habits, spawn};
use plimsoll_policy::Checked;
use plimsoll_units::{BitRate, Span};

const POLICY: &str = "
uplink: {port: memory, rate: 1Gbps}
tenants: {shop: {port: memory}, batch: {port: memory}}
policy: {root: {rate_share: {shop: 400Mbps, batch: 100Mbps}}}
";

#[test]
fn a_reload_says_that_it_takes_a_rate_back() {
    steered(POLICY, async |control| {
        let rated = control
            .set_rate(&Asker::default(), "shop".to_owned(), BitRate::mbps(300))
            .await
            .expect("it runs");
        assert_eq!(rated.expect("it has a rate").before, "400Mbps");
        let watched = async || control.handle().ask(Command::Watch).await.expect("it runs").rates;
        let rates: Vec<_> = watched().await.values().copied().collect();
        assert_eq!(rates, [BitRate::mbps(300)], "promises are judged by it");
        let reloaded = control.reload(&Asker::default(), false).await.expect("reloaded").changes;
        assert!(watched().await.is_empty());
        assert!(reloaded.contains("300Mbps") && reloaded.contains("400Mbps"), "{reloaded}");
        let again = control.reload(&Asker::default(), false).await.expect("reloaded").changes;
        assert!(!again.contains("Mbps"), "nothing is left to take back: {again}");
    });
}

#[test]
fn changes_are_kept_with_who_asked_and_what_came_of_it() {
    steered(POLICY, async |control| {
        let asker = Asker::Process { user: 7, id: Some(8) };
        let rate = async |class: &str| control.set_rate(&asker, class.to_owned(), BitRate::mbps(300)).await;
        rate("shop").await.expect("it runs").expect("it has a rate");
        rate("nobody").await.expect("it runs").expect_err("no class");
        control.reload(&Asker::Signal, false).await.expect("reloaded");
        std::fs::write(control.file(), "nonsense").expect("written");
        control.reload(&asker, true).await.expect_err("wrong");
        let entries = control.audit().report().entries;
        let told: Vec<(Audited, &str)> =
            entries.iter().map(|entry| (entry.what, entry.who.as_str())).collect();
        let user = "user 7, process 8";
        assert_eq!(
            told,
            [
                (Audited::RateChanged, user),
                (Audited::RateRefused, user),
                (Audited::Reloaded, "SIGHUP"),
                (Audited::ReloadRefused, user)
            ]
        );
        assert_eq!(entries[0].detail, "shop: 400Mbps -> 300Mbps");
        assert!(entries[1].detail.contains("nobody"), "{entries:?}");
        assert!(entries[2].detail.contains("rate 300Mbps -> 400Mbps"), "the difference: {entries:?}");
        assert!(entries[3].detail.contains("nothing was changed"), "{entries:?}");
    });
}

#[test]
fn a_reload_without_a_waiting_client_is_brought_to_its_end() {
    steered(&POLICY.replace("400Mbps", "300Mbps"), async |control| {
        // The caller gives up before the reload can have ended.
        {
            let asker = Asker::default();
            let mut begun = pin!(control.reload(&asker, false));
            let pending = poll_fn(|context| Poll::Ready(begun.as_mut().poll(context).is_pending()));
            assert!(pending.await, "it takes longer than one look");
        }
        let rate = |checked: Arc<Checked>| {
            checked.program.find("shop").and_then(|shop| checked.program.node(shop).rate)
        };
        let in_force = async {
            while rate(control.checked().await) != Some(BitRate::mbps(300)) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), in_force).await.expect("it is in force");
    });
}

/// A policy whose tenant has a file of its own.
const WITH_A_FILE: &str = "
uplink: {port: memory, rate: 1Gbps}
tenants: {shop: {port: memory, policy: shop.yaml}, batch: {port: memory}}
policy: {root: {rate_share: {shop: 400Mbps, batch: 100Mbps}}}
";

/// A reader of tenants' files that runs this in a shell; with `soon`, it waits only a moment.
fn by_shell(script: &str, soon: bool) -> (tempfile::TempDir, Arc<dyn FileReader>) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("child.sh");
    std::fs::write(&file, script).expect("written");
    let patience = if soon { Duration::from_millis(300) } else { Duration::from_secs(60) };
    let limits = Limits { patience, ..Limits::default() };
    (folder, Arc::new(Child { program: "/bin/sh".into(), command: file.into(), limits }))
}

#[test]
fn whatever_reads_a_tenants_file_the_daemon_keeps_its_policy_and_goes_on() {
    let cases = [
        ("kill -ABRT $$", false, "SIGABRT ended the process"),
        ("kill -SEGV $$", false, "SIGSEGV ended the process"),
        ("echo 'memory allocation of 9 bytes failed' >&2; kill -ABRT $$", false, "536 MB of memory"),
        ("kill -XCPU $$", false, "took more than 20 s of a core"),
        ("echo 'no, thanks' >&2; exit 7", false, "left with exit code 7 (\"no, thanks\")"),
        ("exec sleep 1000", true, "took longer than"),
        ("while :; do :; done", true, "took longer than"),
        ("exec >&- 2>&-; while :; do :; done", true, "took longer than"),
        ("while :; do echo complaints >&2; done", true, "took longer than"),
        ("exec cat /dev/zero", false, "answered more than 150 MB"),
        ("echo nonsense", false, "makes no sense"),
        ("exit 0", false, "makes no sense"),
    ];
    for (script, soon, says) in cases {
        let (_folder, reader) = by_shell(script, soon);
        steered_with(WITH_A_FILE, Some(reader), async |control| {
            let before = control.checked().await;
            let refused = control.reload(&Asker::default(), false).await.expect_err(script).to_string();
            let refused = refused.replace("\n  │ ", " "); // a long message is wrapped
            assert!(refused.contains(says) && refused.contains("shop.yaml"), "{script}: {refused}");
            assert!(Arc::ptr_eq(&before, &control.checked().await), "{script}: the policy is as it was");
            let rated = control
                .set_rate(&Asker::default(), "shop".to_owned(), BitRate::mbps(300))
                .await
                .expect("it runs");
            assert!(rated.is_ok(), "{script}: the engine answers");
        });
    }
}

/// A reader that reports when it is asked, and answers when it is told to.
#[derive(Debug)]
struct Slow {
    asked: std::sync::mpsc::Sender<()>,
    go: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl FileReader for Slow {
    fn read_file(&self, _: std::os::fd::OwnedFd) -> Result<Vec<u8>, Ended> {
        self.asked.send(()).expect("the test is there");
        let _ = self.go.lock().expect("no panic").recv();
        Err(Ended::Nonsense)
    }
}

/// Statistics and health need the policy in force also while a reload waits for a tenant's slow file.
#[test]
fn the_policy_in_force_is_told_while_another_is_read() {
    let ((asked, is_asked), (go, goes)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let reader: Arc<dyn FileReader> = Arc::new(Slow { asked, go: goes.into() });
    steered_with(WITH_A_FILE, Some(reader), async |control| {
        let reload = tokio::spawn({
            let control = Arc::clone(control);
            async move { control.reload(&Asker::default(), false).await }
        });
        tokio::task::spawn_blocking(move || is_asked.recv()).await.expect("no panic").expect("it is read");
        let told = tokio::time::timeout(Duration::from_secs(10), control.checked()).await;
        drop(go);
        assert!(told.is_ok(), "it waits for the reload");
        assert!(reload.await.expect("no panic").is_err());
    });
}

#[test]
fn a_child_is_gone_when_its_answer_is_given_up() {
    let (folder, reader) = by_shell("echo $$ >\"$0.pid\"; exec sleep 1000", true);
    let memory = std::fs::File::open("/dev/null").expect("there");
    let begun = std::time::Instant::now();
    assert_eq!(reader.read_file(memory.into()), Err(Ended::Patience(0)));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let pid = std::fs::read_to_string(folder.path().join("child.sh.pid")).expect("it ran");
    assert!(!std::path::Path::new("/proc").join(pid.trim()).exists(), "{pid} is there still");
}

/// The control of a daemon that runs by [`POLICY`], and whose policy file holds `file`.
fn steered(file: &str, act: impl AsyncFnOnce(&Arc<Control>)) {
    steered_with(file, None, act);
}

/// Like [`steered`], with `reader` for the file `shop.yaml` beside the policy.
fn steered_with(file: &str, reader: Option<Arc<dyn FileReader>>, act: impl AsyncFnOnce(&Arc<Control>)) {
    let checked = support::policy(POLICY);
    let World { engine, tenants: _tenants, wire: _wire, .. } = World::between(&checked, false, false);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plimsoll.yaml");
    std::fs::write(&path, file).expect("written");
    std::fs::write(folder.path().join("shop.yaml"), "policy: {root: {fifo: [a]}, a: {}}\n").expect("written");
    let (handle, thread) = spawn(engine, Habits::default(), |_| {}).expect("a thread");
    let control = Arc::new(Control::new(path, checked, handle).with_reader(reader));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(act(&control));
    control.handle().send(Command::Stop(Span::ZERO)).expect("it runs");
    thread.join().expect("it ended in peace");
}
