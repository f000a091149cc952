//! Tests of the suite itself. Each bug is planted by a layer over the reference model, and a named case must
//! fail.

mod bug;
mod layer;

use std::sync::Arc;

use tombolo_conformance::waist::{cases, run_some};
use tombolo_core::fs::Export;
use tombolo_test_support::wrapped;

use crate::common::{SETUP, memory};
use bug::Bug;
use layer::Session;

/// Each bug with the case that must catch it.
const CAUGHT_BY: [(Bug, &str); 16] = [
    (Bug::AppendIgnored, "data::append_ignores_the_offset"),
    (Bug::ForgetDropsAll, "life::forget_takes_back_exactly_as_many"),
    (Bug::ForgetIgnored, "listing::a_listing_with_attributes_counts_look_ups"),
    (Bug::ExchangeOneWay, "rename::exchange_swaps_both_ways"),
    (Bug::NoReplaceIgnored, "rename::no_replace_refuses_what_exists"),
    (Bug::CookieByIndex, "listing::remaining_names_are_listed_once_under_change"),
    (Bug::UmaskIgnored, "create::the_umask_is_taken_off"),
    (Bug::EofTooEarly, "data::the_end_is_told"),
    (Bug::UnlinkLosesData, "life::an_open_file_survives_its_name"),
    (Bug::VerifierIgnored, "create::an_exclusive_create_may_be_retried_with_its_verifier"),
    (Bug::GuardIgnored, "attributes::a_guard_that_does_not_hold_changes_nothing"),
    (Bug::StaleAttributes, "life::sessions_see_writes_at_once"),
    (Bug::TornWrite, "data::big_transfers_at_odd_offsets_are_exact"),
    (Bug::ReleaseForgotten, "locks::a_release_gives_flock_back"),
    (Bug::OwnerForgotten, "owners::new_files_belong_to_their_creator"),
    (Bug::PrivilegesKept, "attributes::a_write_drops_privileges_when_asked"),
];

fn planted(bug: Option<Bug>) -> Arc<dyn Export> {
    wrapped(memory(), move |inner| Session::new(inner, bug))
}

#[test]
fn each_planted_bug_fails_its_named_case() {
    let mut missed = Vec::new();
    for (bug, name) in CAUGHT_BY {
        assert!(cases().any(|case| case.name == name), "there is no case {name}");
        let report = run_some(&planted(Some(bug)), SETUP, |case| case.name == name);
        match report.failed.first() {
            Some((_, what)) => eprintln!("{bug:?}: caught by {name}: {what}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[test]
fn without_a_bug_the_same_layer_passes() {
    let report = run_some(&planted(None), SETUP, |_| true);
    report.expect("the layer without a bug", &[]);
}
