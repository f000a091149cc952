//! Refusals: the call by RPC, or NFS with JUKEBOX.

use std::time::Duration;

use tombolo_core::Error;
use tombolo_nfs_client_tests::server::{ReceivedCall, ScriptedReply};
use tombolo_wire_nfs3::Procedure;
use tombolo_wire_nfs3::results::GetattrReply;
use tombolo_wire_nfs3::{Status, WccData};
use tombolo_wire_rpc::{Accepted, AuthStat, Rejected, ReplyHeader};

use crate::hostile::operations::for_each;
use crate::hostile::stage::{Stage, assert_names, on_hard, raise_after};

const REFUSALS: &[Refusal] = &[
    Refusal::Accepted(Accepted::ProgUnavail),
    Refusal::Accepted(Accepted::ProgMismatch { low: 4, high: 4 }),
    Refusal::Accepted(Accepted::ProcUnavail),
    Refusal::Accepted(Accepted::GarbageArgs),
    Refusal::Accepted(Accepted::SystemErr),
    Refusal::Denied(Rejected::RpcMismatch { low: 3, high: 3 }),
    Refusal::Denied(Rejected::Auth(AuthStat::TooWeak)),
    Refusal::Denied(Rejected::Auth(AuthStat::BadCred)),
    Refusal::Denied(Rejected::Auth(AuthStat::RejectedCred)),
];

#[derive(Clone, Copy)]
enum Refusal {
    Accepted(Accepted),
    Denied(Rejected),
}

impl Refusal {
    fn say(self, asked: &ReceivedCall<'_>) -> ScriptedReply {
        asked.header(|xid| match self {
            Self::Accepted(status) => ReplyHeader::accept(xid, status),
            Self::Denied(why) => ReplyHeader::reject(xid, why),
        })
    }
}

#[test]
fn rpc_refusal_fails_with_host_and_operation() {
    for_each(|operation| {
        let stage = Stage::soft();
        let procedure = operation.procedure;
        for (index, &refusal) in REFUSALS.iter().enumerate() {
            let arm = || {
                stage.server.on(procedure, move |asked| refusal.say(asked));
            };
            let result = (operation.run)(&stage.world, &format!("refused-{index}"), &arm);
            assert_names(result, &format!("{procedure:?}"));
            stage.server.be_honest();
        }
    });
}

/// Returns a failure with zeroes behind the status, valid as results of any procedure.
pub fn failure(status: Status) -> ScriptedReply {
    let mut results = status.number().to_be_bytes().to_vec();
    results.extend([0; 16]);
    ScriptedReply::Results(results)
}

#[test]
fn jukebox_is_retried_until_it_succeeds() {
    for_each(|operation| {
        let stage = Stage::hard();
        let procedure = operation.procedure;
        let arm = || {
            stage.server.now(move |asked: &ReceivedCall<'_>| match asked.is(procedure) && asked.nth < 3 {
                true => failure(Status::Jukebox),
                false => ScriptedReply::Forward,
            });
        };
        (operation.run)(&stage.world, "later", &arm).expect("an answer in the end");
        assert!(stage.server.count_of(procedure) >= 3, "{procedure:?}");
    });
}

#[test]
fn an_interrupt_ends_jukebox_retries() {
    on_hard(|stage, _| {
        stage
            .server
            .on(Procedure::Getattr, |asked| asked.results(&GetattrReply::Failed(Status::Jukebox, ())));
        let (world, interrupt) = stage.world.interruptible();
        raise_after(&interrupt, Duration::from_millis(500));
        let result = world.fs.getattr(&world.cx, world.dir, None).wait();
        assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
        // The client must pause between retries: a busy server must not be loaded further.
        assert!(stage.server.count_of(Procedure::Getattr) < 50, "asked too often");
    });
}

#[test]
fn nfs_statuses_become_waist_errors() {
    let stage = Stage::soft();
    let node = stage.world.file_with("file", b"");
    for (status, expected) in [
        (Status::Perm, "operation not permitted"),
        (Status::Acces, "permission denied"),
        (Status::NoSpc, "no space left on device"),
        (Status::DQuot, "disk quota exceeded"),
        (Status::RoFs, "read-only file system"),
    ] {
        stage.server.on(Procedure::Setattr, move |asked| {
            asked.results(&tombolo_wire_nfs3::results::SetattrReply::Failed(status, WccData::NONE))
        });
        let error = stage.world.chmod(node, 0o600).expect_err("refused");
        assert_eq!(error.to_string(), expected);
    }
}
