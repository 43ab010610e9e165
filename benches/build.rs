//! Compiles the shim against libdpdk where the feature `dpdk` asks for it.

fn main() {
    println!("cargo:rerun-if-changed=shim");
    #[cfg(feature = "dpdk")]
    link_dpdk();
}

#[cfg(feature = "dpdk")]
fn link_dpdk() {
    let dpdk = pkg_config::Config::new()
        .cargo_metadata(false)
        .probe("libdpdk")
        .expect("libdpdk is missing: apt-get install libdpdk-dev, or build with --no-default-features");
    cc::Build::new()
        .file("shim/sched.c")
        .file("shim/member.c")
        // Debian's DPDK is built for this machine type, and its headers check for it.
        .flag("-march=corei7")
        .flag("-include")
        .flag("rte_config.h")
        // The sketch is experimental in this DPDK.
        .define("ALLOW_EXPERIMENTAL_API", None)
        .opt_level(3)
        .warnings(false)
        .includes(&dpdk.include_paths)
        .compile("plimsoll_sched_shim");
    for path in &dpdk.link_paths {
        println!("cargo:rustc-link-search={}", path.display());
    }
    for library in ["rte_sched", "rte_member", "rte_mbuf", "rte_mempool", "rte_ring", "rte_eal"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}
