//! File systems under test, and the waist's cases over them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_back_memory::Memory;
use tombolo_conformance::waist::{Needs, Setup, run};
use tombolo_core::fs::{Export, Op, PermissionCheck, Volume};
use tombolo_layer_basic::fault::{Plan, Rule, What, When};
use tombolo_layer_basic::{delay, fault};
use tombolo_layer_cache::store::{OpenError, OriginIdentity, Store, StoreOptions};
use tombolo_test_support::once_free;

pub const SETUP: Setup = Setup { owners: true, checks: PermissionCheck::BackEnd, lacks: Needs::empty() };

/// Creates a scratch directory that every user may enter.
pub fn scratch() -> tempfile::TempDir {
    let mode = std::fs::Permissions::from_mode(0o755);
    tempfile::Builder::new().permissions(mode).tempdir().expect("a scratch directory")
}

pub fn memory() -> Arc<dyn Export> {
    Arc::new(Memory::default())
}

/// Opens a directory, whose changes by the host are noticed if `watch_host`.
pub fn directory(path: &Path, watch_host: bool) -> Arc<dyn Export> {
    let options = Options { watch_host, ..Options::default() };
    Arc::new(LocalDir::open(path, options).expect("the export"))
}

/// Delays all answers.
pub fn later(export: Arc<dyn Export>) -> Arc<dyn Export> {
    Arc::new(delay::over(export, Duration::from_micros(20)).expect("a timer"))
}

/// Cuts short every third read or write, with which every caller must cope.
pub fn cut_short(export: Arc<dyn Export>, op: Op) -> Arc<dyn Export> {
    let rule = Rule { op: Some(op), when: When::Every(3), what: What::Short(1000) };
    Arc::new(fault::over(export, Plan { rules: vec![rule], seed: 1 }))
}

/// Opens the store of a cache. Its last owner may still be about to end.
pub fn opened_store(dir: &Path, options: StoreOptions) -> Arc<Store> {
    let identity = OriginIdentity { location: "memory:".into(), volume: Volume::default() };
    let is_in_use = |error: &_| matches!(error, OpenError::InUse { .. });
    once_free(|| Store::open(dir, &identity, options), is_in_use).expect("a store")
}

/// Runs the waist's cases. Those that need a feature of `lacks` are skipped, and others may be for a reason
/// in `may_skip`.
pub fn run_without(lacks: Needs, title: &str, export: &Arc<dyn Export>, may_skip: &[&str]) {
    let lacking: Vec<_> = lacks.iter_names().map(|(name, _)| format!("needs Needs({name})")).collect();
    let may_skip: Vec<_> = lacking.iter().map(String::as_str).chain(may_skip.iter().copied()).collect();
    run(export, Setup { lacks, ..SETUP }).expect(title, &may_skip);
}
