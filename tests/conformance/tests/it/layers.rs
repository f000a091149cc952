//! The waist's cases under layers: everything answered later, and writes that are cut short.

use std::path::Path;
use std::sync::Arc;

use tombolo_conformance::waist::run;
use tombolo_core::fs::{Export, Op};
use tombolo_layer_basic::stats::{self, Counters};
use tombolo_layer_handle_table as handle_table;
use tombolo_layer_idmap::{self as idmap, IdMap, Ids};

use crate::common::{SETUP, cut_short, directory, later, memory};

fn check(title: &str, export: &Arc<dyn Export>) {
    run(export, SETUP).expect(title, &[]);
}

#[test]
fn memory_under_delay() {
    check("memory under delay", &later(memory()));
}

#[test]
fn memory_under_short_writes() {
    check("memory under short writes", &cut_short(memory(), Op::Write));
}

#[test]
fn memory_under_a_stack() {
    let counters = Counters::new();
    let export = cut_short(later(Arc::new(stats::over(memory(), counters.clone()))), Op::Write);
    check("memory under a stack", &export);
    assert!(counters.snapshot().operations.len() > 30, "the suite reaches nearly every operation");
}

#[test]
fn a_directory_under_delay() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    check("local-dir under delay", &later(directory(scratch.path(), true)));
}

#[test]
fn a_directory_under_short_writes() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    check("local-dir under short writes", &cut_short(directory(scratch.path(), true), Op::Write));
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
    check("local-dir under an idmap", &with_ids_mapped(directory(scratch.path(), true)));
}

/// Resolves handles by name.
fn with_table(export: Arc<dyn Export>, dir: &Path) -> Arc<dyn Export> {
    Arc::new(handle_table::over(export, &dir.join("table")).expect("the table"))
}

#[test]
fn a_directory_under_a_handle_table() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    std::fs::create_dir(scratch.path().join("tree")).expect("mkdir");
    let export = directory(&scratch.path().join("tree"), true);
    check("local-dir under a handle table", &with_table(export, scratch.path()));
}

#[test]
fn memory_under_delay_and_a_handle_table() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    check("memory under delay and a handle table", &with_table(later(memory()), scratch.path()));
}
