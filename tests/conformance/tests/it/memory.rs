//! The waist's cases over the reference model.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_conformance::waist::{self, Needs, Report, Setup};
use tombolo_core::fs::{Export, PermissionCheck};

fn run(checks: PermissionCheck) -> Report {
    let memory: Arc<dyn Export> = Arc::new(Memory::default());
    waist::run(&memory, Setup { owners: true, checks, lacks: Needs::empty() })
}

#[test]
fn memory_that_checks_permissions_passes_every_case() {
    run(PermissionCheck::BackEnd).expect("memory, checking", &[]);
}

#[test]
fn memory_that_trusts_its_caller_skips_only_the_checks() {
    let report = run(PermissionCheck::Caller);
    report.expect("memory, trusting", &["needs Needs(CHECKS)"]);
}
