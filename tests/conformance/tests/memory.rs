//! The waist's cases over the reference model.

use std::sync::Arc;

use tombolo_back_memory::{Memory, Options};
use tombolo_conformance::waist::{Setup, run};
use tombolo_core::fs::{Export, PermissionCheck};

fn memory(permission_check: PermissionCheck) -> Arc<dyn Export> {
    Arc::new(Memory::new(Options { permission_check, ..Options::default() }))
}

#[test]
fn memory_that_checks_permissions_passes_every_case() {
    run(&memory(PermissionCheck::BackEnd), Setup { owners: true }).expect("memory, checking", &[]);
}

#[test]
fn memory_that_trusts_its_caller_skips_only_the_checks() {
    let report = run(&memory(PermissionCheck::Caller), Setup { owners: true });
    report.expect("memory, trusting", &["needs Needs(CHECKS)"]);
}
