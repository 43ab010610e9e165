//! What operators change in a running daemon, with its real thread and without ports of the kernel's.

mod support;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use plimsoll_daemon::{Command, Control, Habits, spawn};
use plimsoll_policy::Checked;
use plimsoll_units::{BitRate, Span};
use support::World;

const POLICY: &str = "
uplink: {port: memory, rate: 1Gbps}
tenants: {shop: {port: memory}, batch: {port: memory}}
policy: {root: {rate_share: {shop: 400Mbps, batch: 100Mbps}}}
";

#[test]
fn a_reload_says_that_it_takes_a_rate_back() {
    steered(POLICY, async |control| {
        let rated = control.set_rate("shop".to_owned(), BitRate::mbps(300)).await.expect("it runs");
        assert_eq!(rated.expect("it has a rate").before, "400Mbps");
        let reloaded = control.reload().await.expect("reloaded").changes;
        assert!(reloaded.contains("300Mbps") && reloaded.contains("400Mbps"), "{reloaded}");
        let again = control.reload().await.expect("reloaded").changes;
        assert!(!again.contains("Mbps"), "nothing is left to take back: {again}");
    });
}

#[test]
fn a_reload_that_nobody_waits_for_is_brought_to_its_end() {
    steered(&POLICY.replace("400Mbps", "300Mbps"), async |control| {
        // Begun, and given up before anything can have come of it.
        {
            let mut begun = pin!(control.reload());
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

/// Lets operators act on a daemon that runs by [`POLICY`], and whose file says `file`.
fn steered(file: &str, act: impl AsyncFnOnce(&Arc<Control>)) {
    let checked = support::policy(POLICY);
    let World { engine, tenants: _tenants, wire: _wire, .. } = World::between(&checked, false, false);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plimsoll.yaml");
    std::fs::write(&path, file).expect("written");
    let (handle, thread) = spawn(engine, Habits::default(), |_| {}).expect("a thread");
    let control = Arc::new(Control::new(path, checked, handle));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(act(&control));
    control.handle().send(Command::Stop(Span::ZERO)).expect("it runs");
    thread.join().expect("it ended in peace");
}
