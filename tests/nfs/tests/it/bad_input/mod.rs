//! Replies to bad input: the status that RFC 1813 and RFC 5531 name, or a closed connection where they name
//! none. The server keeps serving, and other clients are unaffected.

mod arguments;
mod handles;
mod headers;
mod listings;
mod names;
mod numbers;

use tombolo_nfs_tests::client::{Answer, DATA, Nfs, Verdict};
use tombolo_nfs_tests::fixture::Fixture;
use tombolo_wire_nfs3::Call;
use tombolo_wire_rpc::Accepted;

/// Sends a call and returns its reply.
fn send(nfs: &Nfs, call: &Call<'_>) -> Answer {
    nfs.send(&nfs.message(call, DATA))
}

/// Asserts that an existing and a new client are served.
#[track_caller]
fn assert_well(fixture: &Fixture) {
    fixture.attr(&fixture.root);
    fixture.server.nfs().null();
}

#[track_caller]
fn assert_garbage(answer: &Answer) {
    assert_eq!(answer.verdict, Verdict::Accepted(Accepted::GarbageArgs));
}
