//! Calls that are malformed, for unknown programs, or with bad credentials.

use std::time::Duration;

use tombolo_nfs_tests::client::{Answer, Auth, Datagrams, Message, Verdict, encoded, fresh_xid};
use tombolo_nfs_tests::fixture::{Fixture, on_each};
use tombolo_wire_nfs3::Call;
use tombolo_wire_rpc::{Accepted, AuthStat, Rejected};

use crate::bad_input::assert_well;

/// A call that would succeed.
fn good(fixture: &Fixture) -> Message {
    fixture.nfs.message(&Call::Getattr(fixture.root.as_handle()), b"")
}

#[track_caller]
fn assert_verdict(fixture: &Fixture, message: &Message, expected: Verdict) {
    assert_eq!(fixture.nfs.send(message).verdict, expected, "{message:?}");
    assert_eq!(fixture.nfs.send(&good(fixture)).verdict, Verdict::Accepted(Accepted::Success));
}

fn denied(why: AuthStat) -> Verdict {
    Verdict::Denied(Rejected::Auth(why))
}

#[test]
fn an_unknown_program_is_unavailable() {
    on_each(|fixture| {
        for program in [0, 1, 100_000, 100_021, 100_227, u32::MAX] {
            let message = Message { program, ..good(fixture) };
            assert_verdict(fixture, &message, Verdict::Accepted(Accepted::ProgUnavail));
        }
    });
}

#[test]
fn an_unknown_version_gets_the_supported_range() {
    on_each(|fixture| {
        for program in [100_003, 100_005] {
            for version in [0, 1, 2, 4, u32::MAX] {
                let message = Message { program, version, ..good(fixture) };
                let expected = Accepted::ProgMismatch { low: 3, high: 3 };
                assert_verdict(fixture, &message, Verdict::Accepted(expected));
            }
        }
    });
}

#[test]
fn an_unknown_procedure_is_unavailable() {
    on_each(|fixture| {
        for (program, procedure) in
            [(100_003, 22), (100_003, 100), (100_003, u32::MAX), (100_005, 6), (100_005, u32::MAX)]
        {
            let message = Message { program, procedure, ..good(fixture) };
            assert_verdict(fixture, &message, Verdict::Accepted(Accepted::ProcUnavail));
        }
    });
}

#[test]
fn another_version_of_rpc_is_a_mismatch() {
    on_each(|fixture| {
        for rpc_version in [0, 1, 3, u32::MAX] {
            let message = Message { rpc_version, ..good(fixture) };
            assert_verdict(fixture, &message, Verdict::Denied(Rejected::RpcMismatch { low: 2, high: 2 }));
        }
    });
}

#[test]
fn an_unknown_flavor_is_rejected() {
    on_each(|fixture| {
        for flavor in [2, 3, 6, 7, 1000, u32::MAX] {
            let credential = Auth { flavor, body: vec![0; 20] };
            let message = Message { credential, ..good(fixture) };
            assert_verdict(fixture, &message, denied(AuthStat::RejectedCred));
        }
    });
}

/// An AUTH_SYS credential of these groups.
fn sys(machine_len: usize, groups: usize) -> Auth {
    let mut body = Vec::new();
    let mut xdr = tombolo_wire_xdr::Encoder::new(&mut body);
    xdr.u32(0).opaque(&vec![b'm'; machine_len]).u32(0).u32(0).u32(groups as u32);
    for group in 0..groups {
        xdr.u32(group as u32);
    }
    Auth { flavor: 1, body }
}

#[test]
fn seventeen_groups_are_too_many_and_sixteen_are_not() {
    on_each(|fixture| {
        for (groups, expected) in [
            (16, Verdict::Accepted(Accepted::Success)),
            (17, denied(AuthStat::BadCred)),
            (80, denied(AuthStat::BadCred)),
        ] {
            let message = Message { credential: sys(4, groups), ..good(fixture) };
            assert_verdict(fixture, &message, expected);
        }
    });
}

#[test]
fn a_malformed_credential_is_bad() {
    on_each(|fixture| {
        let whole = sys(4, 2).body;
        let mut bad: Vec<Auth> =
            (0..whole.len()).map(|len| Auth { flavor: 1, body: whole[..len].to_vec() }).collect();
        // A machine name of 256 bytes, a body of more than 400, bytes behind the end, and counts that are not there.
        bad.push(sys(256, 0));
        bad.push(sys(255, 60));
        bad.push(Auth { flavor: 1, body: [whole.as_slice(), &[0; 4]].concat() });
        bad.push(Auth { flavor: 1, body: encoded(&(u32::MAX)).repeat(10) });
        for credential in bad {
            let message = Message { credential, ..good(fixture) };
            assert_verdict(fixture, &message, denied(AuthStat::BadCred));
        }
    });
}

#[test]
fn a_verifier_with_a_body_is_bad() {
    on_each(|fixture| {
        for verifier in [Auth { flavor: 1, body: vec![0; 4] }, Auth { flavor: 6, body: Vec::new() }] {
            let message = Message { verifier, ..good(fixture) };
            assert_verdict(fixture, &message, denied(AuthStat::BadVerf));
        }
    });
}

/// Truncated anywhere: answered, or the connection closed; other clients are not affected.
#[test]
fn a_call_that_is_cut_off_anywhere_does_no_harm() {
    on_each(|fixture| {
        let bytes = good(fixture).to_bytes();
        for len in 0..bytes.len() {
            let mut stream = fixture.server.stream();
            stream.send(&bytes[..len]).expect("sent");
            if let Some(reply) = stream.receive().expect("a reply or the end") {
                let verdict = Answer::new(reply).verdict;
                let success = Verdict::Accepted(Accepted::Success);
                assert_ne!(verdict, success, "cut at {len}");
            }
        }
        assert_well(fixture);
    });
}

#[test]
fn non_call_messages_are_not_answered() {
    on_each(|fixture| {
        for message_type in [1, 2, u32::MAX] {
            let message = Message { message_type, ..good(fixture) };
            let mut stream = fixture.server.stream();
            stream.send(&message.to_bytes()).expect("sent");
            stream.finish().expect("nothing follows");
            assert_eq!(stream.receive().expect("the end"), None);
            // Two servers that answered each other's replies would never end.
            let datagrams = Datagrams::connect(fixture.server.address()).expect("a socket");
            datagrams.send(&message.to_bytes()).expect("sent");
            assert!(datagrams.is_quiet_for(Duration::from_millis(50)));
        }
        assert_well(fixture);
    });
}

#[test]
fn datagrams_of_garbage_are_not_answered() {
    on_each(|fixture| {
        let datagrams = Datagrams::connect(fixture.server.address()).expect("a socket");
        for garbage in [&b""[..], b"x", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 1000], &[0x55; 60_000]] {
            datagrams.send(garbage).expect("sent");
        }
        assert!(datagrams.is_quiet_for(Duration::from_millis(50)));
        datagrams.send(&good(fixture).to_bytes()).expect("sent");
        let answer = Answer::new(datagrams.receive().expect("a reply"));
        assert_eq!(answer.verdict, Verdict::Accepted(Accepted::Success));
    });
}

#[test]
fn the_same_xid_may_name_any_number_of_calls() {
    on_each(|fixture| {
        let xid = fresh_xid();
        for _ in 0..3 {
            let message = Message { xid, ..good(fixture) };
            assert_eq!(fixture.nfs.send(&message).status(), Ok(()));
        }
    });
}
