//! The waist's cases over the reference model.

use tombolo_conformance::waist::{Setup, run};
use tombolo_core::fs::PermissionCheck;

use crate::common::{SETUP, memory};

#[test]
fn memory_that_checks_permissions_passes_every_case() {
    run(&memory(), SETUP).expect("memory, checking", &[]);
}

#[test]
fn memory_that_trusts_its_caller_skips_only_the_checks() {
    let setup = Setup { checks: PermissionCheck::Caller, ..SETUP };
    run(&memory(), setup).expect("memory, trusting", &["needs Needs(CHECKS)"]);
}
