//! The waist's cases under layers: everything answered later, and writes that are cut short.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_memory::Memory;
use tombolo_conformance::waist::{Needs, Setup, run};
use tombolo_core::fs::Op;
use tombolo_core::fs::{Export, PermissionCheck};
use tombolo_layer_basic::fault::{Plan, Rule, What, When};
use tombolo_layer_basic::stats::Counters;
use tombolo_layer_basic::{delay, fault, stats};
use tombolo_layer_handle_table as handle_table;
use tombolo_layer_idmap::{self as idmap, IdMap, Ids};

const SETUP: Setup = Setup { owners: true, checks: PermissionCheck::BackEnd, lacks: Needs::empty() };

fn memory() -> Arc<dyn Export> {
    Arc::new(Memory::default())
}

fn on_disk(scratch: &Path) -> Arc<dyn Export> {
    Arc::new(
        LocalDir::open(scratch, DirOptions { watch_host: true, ..DirOptions::default() })
            .expect("the export"),
    )
}

fn later(export: Arc<dyn Export>) -> Arc<dyn Export> {
    Arc::new(delay::over(export, Duration::from_micros(20)).expect("a timer"))
}

/// Adds short writes, with which every caller must cope.
fn cut_short(export: Arc<dyn Export>) -> Arc<dyn Export> {
    let rule = Rule { op: Some(Op::Write), when: When::Every(3), what: What::Short(1000) };
    Arc::new(fault::over(export, Plan { rules: vec![rule], seed: 1 }))
}

#[test]
fn memory_under_delay() {
    run(&later(memory()), SETUP).expect("memory under delay", &[]);
}

#[test]
fn memory_under_short_writes() {
    run(&cut_short(memory()), SETUP).expect("memory under short writes", &[]);
}

#[test]
fn memory_under_a_stack() {
    let counters = Counters::new();
    let export = cut_short(later(Arc::new(stats::over(memory(), counters.clone()))));
    run(&export, SETUP).expect("memory under a stack", &[]);
    assert!(counters.snapshot().operations.len() > 30, "the suite reaches nearly every operation");
}

#[test]
fn a_directory_under_delay() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    run(&later(on_disk(scratch.path())), SETUP).expect("local-dir under delay", &[]);
}

#[test]
fn a_directory_under_short_writes() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    run(&cut_short(on_disk(scratch.path())), SETUP).expect("local-dir under short writes", &[]);
}

/// Maps each id to itself by explicit ranges.
fn with_ids_mapped(export: Arc<dyn Export>) -> Arc<dyn Export> {
    let ranges = ["1:1:99", "100:100:4294967000"].map(|range| range.parse().expect("a range"));
    let ids = Ids::new(ranges.to_vec(), 65_534).expect("ranges apart");
    Arc::new(idmap::over(export, IdMap { users: ids.clone(), groups: ids }))
}

#[test]
fn a_directory_under_an_idmap_of_identity_ranges() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    run(&with_ids_mapped(on_disk(scratch.path())), SETUP).expect("local-dir under an idmap", &[]);
}

/// Handles resolve by name.
#[test]
fn a_directory_under_a_handle_table() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    std::fs::create_dir(scratch.path().join("tree")).expect("mkdir");
    let export = on_disk(&scratch.path().join("tree"));
    let export = handle_table::over(export, &scratch.path().join("table")).expect("the table");
    let export: Arc<dyn Export> = Arc::new(export);
    run(&export, SETUP).expect("local-dir under a handle table", &[]);
}

#[test]
fn memory_under_delay_and_a_handle_table() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let export = handle_table::over(later(memory()), &scratch.path().join("table")).expect("the table");
    let export: Arc<dyn Export> = Arc::new(export);
    run(&export, SETUP).expect("memory under delay and a handle table", &[]);
}
