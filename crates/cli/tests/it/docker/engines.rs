//! Docker itself, with the plugin as the driver of a network (`make containers`).

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use super::Plugin;
use crate::attach::engines::Engine;
use crate::attach::said;
use crate::cni::engines::{RATE, two_containers};
use crate::cni::{FAR, lay_out, tenants};
use crate::support::Daemon;

#[test]
fn containers_of_a_docker_network_are_tenants() {
    let Some(mut engine) = Engine::new("docker", &["dockerd", "tar"], "dkn") else { return };
    engine.stage.add_netns("far");
    lay_out(&engine.stage);
    let host = engine.stage.netns("host");
    let policy = engine.stage.file("policy.yaml");
    let _daemon = Daemon::start(Some(&host), &policy, &[], &engine.stage.file("log"));
    engine.stage.until_it_answers();
    // Docker looks for it there; the driver has the name of the test's stage.
    let driver = engine.stage.tag.clone();
    let socket = PathBuf::from(format!("/run/docker/plugins/{driver}.sock"));
    let plugin = Plugin::start(&engine.stage, &socket);
    let imported = engine.start_docker(&["--bridge=none"]);
    assert!(imported.status.success(), "{}{}", said(&imported), engine.stage.read("docker.log"));

    let create = |options: &[&str]| {
        let subnet = ["--subnet", "10.9.0.0/24", "--ip-range", "10.9.0.64/26", "--gateway", "10.9.0.1"];
        engine.run(&[&["network", "create", "-d", &driver], &subnet[..], options, &["lan"]].concat())
    };
    let slip = create(&["-o", "plimsoll.max=fast"]);
    assert!(!slip.status.success() && said(&slip).contains("`fast`, not a rate"), "{}", said(&slip));
    let made = create(&["-o", &format!("plimsoll.max={RATE}")]);
    assert!(made.status.success(), "{}", said(&made));
    let start = |name: &str, options: &str| {
        let network = format!("name=lan{options}");
        engine.run(&["run", "-d", "--name", name, "--network", &network, "busybox", "/bin/sleep", "600"])
    };
    let dear = start("batch", ",driver-opt=plimsoll.min=2Gbps,driver-opt=plimsoll.max=3Gbps");
    assert!(!dear.status.success() && said(&dear).contains("the daemon refused"), "{}", said(&dear));
    assert!(engine.run(&["rm", "-f", "batch"]).status.success());

    let run = |name: &str, words: &[&str]| engine.run(&[&["exec", name], words].concat());
    let restart = |name: &str| engine.run(&["restart", "-t", "0", name]);
    let remove = |name: &str| engine.run(&["rm", "-f", name]);
    let named = |name: &str| start(name, &format!(",driver-opt=plimsoll.name={name}"));
    two_containers(&engine.stage, named, run, restart, remove);

    // The plugin is killed and started again: containers go on, and go.
    let started = start("shop", "");
    assert!(started.status.success(), "{}", said(&started));
    let reaches = || run("shop", &["ping", "-c", "1", "-W", "1", &FAR.to_string()]).status.success();
    engine.stage.eventually("it reaches what is behind the uplink", reaches);
    drop(plugin);
    assert!(reaches(), "the plugin carries no packets");
    let _plugin = Plugin::start(&engine.stage, &socket);
    let restarted: Output = restart("shop");
    assert!(restarted.status.success(), "{}", said(&restarted));
    engine.stage.eventually("it is there again", reaches);
    assert_eq!(tenants(&engine.stage).len(), 1);

    // Docker is killed with a container running, and started again: it takes away what it had.
    let mut docker = engine.daemon.take().expect("it runs");
    docker.kill().expect("killed");
    docker.wait().expect("it ends");
    // Its containerd has ended with it; where nothing waits for that process, Docker would take it for alive.
    let _ = fs::remove_file(engine.stage.file("exec/containerd/containerd.pid"));
    let imported = engine.start_docker(&["--bridge=none"]);
    assert!(imported.status.success(), "{}{}", said(&imported), engine.stage.read("docker.log"));
    let run = |words: &[&str]| engine.run(words);
    let started = run(&["restart", "-t", "0", "shop"]);
    assert!(started.status.success(), "{}", said(&started));
    assert_eq!(tenants(&engine.stage).len(), 1, "{}", engine.stage.read("plugin.log"));
    assert!(run(&["rm", "-f", "shop"]).status.success() && tenants(&engine.stage).is_empty());
    let gone = run(&["network", "rm", "lan"]);
    assert!(gone.status.success(), "{}", said(&gone));
    let left = fs::read_dir(engine.stage.file("docker-state")).expect("the folder").count();
    assert_eq!(left, 0, "no record is left");
}
