//! The waist's cases over client, link, server and each back end, without exceptions: a link supports all
//! features of the file system.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_conformance::waist::{Needs, Setup, run, run_some};
use tombolo_core::fs::{Export, PermissionCheck};
use tombolo_front_vrpc_server::Options;
use tombolo_layer_basic::delay;
use tombolo_shm::doorbell::Mode;
use tombolo_test_support::tests;
use tombolo_vrpc_tests::site::{Plan, Site};

use crate::local;

fn run_over(export: Arc<dyn Export>, plan: Plan, may_skip: &[&str]) {
    let host = Site::serving(export, plan);
    let export: Arc<dyn Export> = Arc::new(host.export());
    let setup = Setup { owners: true, checks: plan.options.checks, lacks: Needs::empty() };
    let report = match plan.writes_behind {
        false => run(&export, setup),
        // Other sessions may see a write after its caller has continued.
        true => run_some(&export, setup, |case| case.name != "life::sessions_see_writes_at_once"),
    };
    report.expect("over a link", may_skip);
}

fn memory() -> Arc<dyn Export> {
    Arc::new(Memory::default())
}

fn delayed_memory() -> Arc<dyn Export> {
    Arc::new(delay::over(memory(), Duration::from_micros(20)).expect("a timer"))
}

fn with_options(options: Options) -> Plan {
    Plan { options, ..Plan::default() }
}

fn over_a_directory(writes_behind: bool) {
    let dir = tempfile::tempdir_in(Path::new("/dev/shm")).expect("a scratch directory");
    let plan = Plan { writes_behind, ..Plan::default() };
    run_over(local(&dir), plan, &["the file system beneath does not support it"]);
}

tests! {
    over_memory: run_over(memory(), Plan::default(), &[]);
    over_memory_that_leaves_permissions_to_the_caller: {
        let plan = with_options(Options { checks: PermissionCheck::Caller, ..Options::default() });
        run_over(memory(), plan, &["needs Needs(CHECKS)"]);
    };
    over_memory_with_few_slots: run_over(memory(), Plan { slots: 8, ..Plan::default() }, &[]);
    over_memory_with_little_bulk_memory:
        run_over(memory(), Plan { bulk_bytes: 128 << 10, ..Plan::default() }, &[]);
    over_memory_with_transfers_of_six_thousand_bytes:
        run_over(memory(), with_options(Options { transfer_bytes_max: 6000, ..Options::default() }), &[]);
    over_memory_without_looking_for_answers:
        run_over(memory(), Plan { mode: Mode::Event, ..Plan::default() }, &[]);
    over_memory_with_two_numbers_for_callers:
        run_over(memory(), with_options(Options { callers_max: 2, ..Options::default() }), &[]);
    over_memory_with_writes_behind: for quiet in [true, false] {
        run_over(memory(), Plan { writes_behind: true, quiet, ..Plan::default() }, &[]);
    };
    over_memory_that_answers_later_with_writes_behind:
        run_over(delayed_memory(), Plan { writes_behind: true, ..Plan::default() }, &[]);
    over_memory_that_answers_later: run_over(delayed_memory(), Plan::default(), &[]);
    over_a_directory_on_tmpfs: [false, true].into_iter().for_each(over_a_directory);
}
