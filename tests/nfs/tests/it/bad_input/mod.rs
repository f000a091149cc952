//! What bad input gets: the status that RFC 1813 and RFC 5531 name, or a closed connection where they leave
//! no other. The server stays up, and others do not notice.

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

/// The reply to a call, whatever it is.
fn send(nfs: &Nfs, call: &Call<'_>) -> Answer {
    nfs.send(&nfs.message(call, DATA))
}

/// Another client, and a new one, are served as ever.
#[track_caller]
fn assert_well(fixture: &Fixture) {
    fixture.attr(&fixture.root);
    fixture.server.nfs().null();
}

#[track_caller]
fn assert_garbage(answer: &Answer) {
    assert_eq!(answer.verdict, Verdict::Accepted(Accepted::GarbageArgs));
}
