//! Malformed results: truncated, with any word changed, or with an unknown status.

use std::sync::{Arc, Mutex};

use tombolo_core::Result;
use tombolo_nfs_client_tests::server::{ReceivedCall, ScriptedReply};
use tombolo_wire_nfs3::Procedure;

use crate::hostile::operations::{Operation, for_each};
use crate::hostile::stage::{Stage, assert_names};

/// Returns a procedure's results from a correct server.
fn truth_of(stage: &Stage, operation: &Operation) -> Vec<u8> {
    let procedure = operation.procedure;
    let truth: Arc<Mutex<Vec<u8>>> = Arc::default();
    let arm = || {
        let truth = truth.clone();
        stage.server.now(move |asked: &ReceivedCall<'_>| {
            let truth = truth.clone();
            if !asked.is(procedure) {
                return ScriptedReply::Forward;
            }
            ScriptedReply::edited(move |results| truth.lock().expect("no panic").clone_from(results))
        });
    };
    (operation.run)(&stage.world, "truth", &arm).expect("the server is honest");
    let truth = truth.lock().expect("no panic").clone();
    assert!(!truth.is_empty(), "{procedure:?} was not called");
    truth
}

/// Runs an operation whose procedure always gets these results.
fn with_results(stage: &Stage, operation: &Operation, text: &str, results: &[u8]) -> Result<()> {
    let procedure = operation.procedure;
    let arm = || {
        let results = results.to_vec();
        stage.server.on(procedure, move |_| ScriptedReply::Results(results.clone()));
    };
    let result = (operation.run)(&stage.world, text, &arm);
    stage.server.be_honest();
    result
}

#[test]
fn truncated_results_fail_with_host_and_operation() {
    for_each(|operation| {
        let stage = Stage::soft();
        let truth = truth_of(&stage, operation);
        for cut in (0..truth.len()).step_by(4) {
            let result = with_results(&stage, operation, &format!("cut-{cut}"), &truth[..cut]);
            assert_names(result, &format!("{:?}", operation.procedure));
        }
    });
}

#[test]
fn results_with_any_word_changed_do_no_harm() {
    for_each(|operation| {
        let stage = Stage::soft();
        let truth = truth_of(&stage, operation);
        for word in 0..truth.len() / 4 {
            for value in [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
                let mut results = truth.clone();
                results[word * 4..][..4].copy_from_slice(&value.to_be_bytes());
                let text = format!("word-{word}-{value:x}");
                // Many of these changes cannot be detected. The operation itself verifies what it reads,
                // except for the data.
                let is_data = operation.procedure == Procedure::Read && word >= truth.len() / 4 - 3;
                if !is_data {
                    let _ = with_results(&stage, operation, &text, &results);
                }
            }
        }
        let honest = (operation.run)(&stage.world, "in-the-end", &|| ());
        honest.expect("an honest server is understood afterwards");
    });
}

#[test]
fn unknown_status_fails_with_host_and_operation() {
    for_each(|operation| {
        let stage = Stage::soft();
        for status in [3_u32, 12_345, 10_009, u32::MAX] {
            let mut results = status.to_be_bytes().to_vec();
            // No attributes after the failure.
            results.extend([0; 32]);
            let result = with_results(&stage, operation, &format!("status-{status}"), &results);
            assert_names(result, &format!("{:?}", operation.procedure));
        }
    });
}
