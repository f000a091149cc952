//! The waist's cases over the client, the wire, the server, and each back end. The only permitted differences
//! are those that NFS version 3 forces, listed with reasons in `docs/semantics/nfs-mount.md`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_memory::Memory;
use tombolo_back_nfs_client::{AttributeTimes, NfsExport, Options};
use tombolo_conformance::waist::{Needs, Setup, run};
use tombolo_core::fs::Op;
use tombolo_core::fs::{Export, PermissionCheck};
use tombolo_front_nfs_server::Durability;
use tombolo_host_rpc::client::{InFlight, Transport};
use tombolo_layer_basic::delay;
use tombolo_layer_basic::fault::{self, Rule, What, When};
use tombolo_layer_replies as replies;
use tombolo_nfs_client_tests::linked::{LinkPlan, LinkServer};
use tombolo_nfs_client_tests::mount::{hard, server};
use tombolo_nfs_tests::test_server::{PATH, Plan};
use tombolo_shm::doorbell::Mode;
use tombolo_test_support::tests;

/// Features that NFS version 3 lacks.
pub(crate) const LACKS: Needs =
    Needs::RIGHTS.union(Needs::APPENDS).union(Needs::KILLS).union(Needs::OLD_TIMES).union(Needs::AT_ONCE);

/// Skips that follow from [`LACKS`].
pub(crate) const MAY_SKIP: &[&str] = &[
    "needs Needs(RIGHTS)",
    "needs Needs(APPENDS)",
    "needs Needs(KILLS)",
    "needs Needs(OLD_TIMES)",
    "needs Needs(AT_ONCE)",
    "needs Needs(XATTRS)",
    "needs Needs(LOCKS)",
    "needs Needs(RANGES)",
    "needs Needs(CHANGES)",
    "needs Needs(VERSIONS)",
    // Renames with flags, unnamed files.
    "the file system beneath does not support it",
];

/// Serves an export without stability, which has tests of its own: ten thousand creates with an fsync each
/// would take too long.
fn relaxed(export: Arc<dyn Export>) -> Plan {
    Plan { durability: Durability::Relaxed, ..Plan::over(export) }
}

fn conforms(export: &Arc<dyn Export>) {
    let setup = Setup { owners: true, checks: PermissionCheck::BackEnd, lacks: LACKS };
    run(export, setup).expect("the client", MAY_SKIP);
}

fn run_over(export: Arc<dyn Export>) {
    run_with(export, Transport::Tcp, hard());
}

fn run_with(export: Arc<dyn Export>, transport: Transport, options: Options) {
    let started = relaxed(export).start();
    let mounted = NfsExport::mount(&server(started.address(), transport), PATH, options);
    let export: Arc<dyn Export> = Arc::new(mounted.expect("the server can be mounted"));
    conforms(&export);
}

fn run_over_a_link(export: Arc<dyn Export>, links: LinkPlan, options: Options) {
    let export: Arc<dyn Export> = LinkServer::new(relaxed(export), links).mounted(options);
    conforms(&export);
}

fn memory() -> Arc<dyn Export> {
    Arc::new(Memory::default())
}

fn delayed_memory() -> Arc<dyn Export> {
    Arc::new(delay::over(memory(), Duration::from_micros(20)).expect("a timer"))
}

fn one_call_at_a_time() -> Options {
    let mut options = hard();
    options.rpc.in_flight = InFlight::Fixed(1);
    options
}

fn four_connections() -> Options {
    let mut options = hard();
    options.rpc.connections = 4;
    options
}

/// Runs on a new directory of the host.
fn in_directory(parent: &Path, run: impl FnOnce(Arc<dyn Export>)) {
    let dir = tempfile::tempdir_in(parent).expect("a scratch directory");
    run(Arc::new(LocalDir::open(dir.path(), DirOptions::default()).expect("the export")));
}

fn on_tmpfs(run: impl FnOnce(Arc<dyn Export>)) {
    in_directory(Path::new("/dev/shm"), run);
}

tests! {
    the_client_over_memory: run_over(memory());
    the_client_over_memory_in_datagrams: run_with(memory(), Transport::Udp, hard());
    the_client_with_several_connections: run_with(memory(), Transport::Tcp, four_connections());
    the_client_with_one_call_at_a_time: run_with(memory(), Transport::Tcp, one_call_at_a_time());
    the_client_with_small_transfers: {
        let options = Options { read_size_max: 512, write_size_max: 700, read_ahead_bytes: 3000, ..hard() };
        run_with(memory(), Transport::Tcp, options);
    };
    the_client_with_a_small_dirty_limit: {
        let options = Options { dirty_bytes_max: 4096, read_ahead_bytes: 0, ..hard() };
        run_with(memory(), Transport::Tcp, options);
    };
    the_client_over_memory_that_answers_later: run_over(delayed_memory());
    the_client_over_memory_whose_writes_are_cut_short: {
        let rule = Rule { op: Some(Op::Write), when: When::Every(3), what: What::Short(1000) };
        run_over(Arc::new(fault::over(memory(), fault::Plan { rules: vec![rule], seed: 1 })));
    };
    the_client_over_a_directory_on_tmpfs: on_tmpfs(run_over);
    the_client_over_a_directory_on_disk: in_directory(&std::env::temp_dir(), run_over);
    /// Tests the stack of `tombolo serve`.
    the_client_over_a_directory_with_a_reply_cache: on_tmpfs(|export| {
        run_over(Arc::new(replies::over(export, &replies::Options::default())));
    });
    /// Tests a client whose operations all reach the server.
    the_client_without_caches: on_tmpfs(|export| {
        let options = Options { attributes: AttributeTimes::NONE, read_ahead_bytes: 0, ..hard() };
        run_with(export, Transport::Tcp, options);
    });
    the_client_over_a_link: run_over_a_link(memory(), LinkPlan::default(), hard());
    client_over_link_with_few_slots_and_little_memory: {
        let links = LinkPlan { slots: 8, bulk_bytes: 64 << 10, ..LinkPlan::default() };
        run_over_a_link(memory(), links, hard());
    };
    client_over_link_with_one_page:
        run_over_a_link(memory(), LinkPlan { bulk_bytes: 4096, ..LinkPlan::default() }, hard());
    client_over_link_with_one_call_at_a_time:
        run_over_a_link(memory(), LinkPlan::default(), one_call_at_a_time());
    the_client_over_a_link_without_polling:
        run_over_a_link(memory(), LinkPlan { mode: Mode::Event, ..LinkPlan::default() }, hard());
    client_over_link_to_delayed_memory: run_over_a_link(delayed_memory(), LinkPlan::default(), hard());
    client_over_link_to_tmpfs_directory:
        on_tmpfs(|export| run_over_a_link(export, LinkPlan::default(), hard()));
}
