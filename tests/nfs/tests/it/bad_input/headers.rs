//! Calls that are malformed, for unknown programs, or with bad credentials.

use std::time::Duration;

use tombolo_nfs_tests::client::{Answer, Auth, Caller, Datagrams, Message, Verdict, encoded, fresh_xid};
use tombolo_nfs_tests::fixture::{Fixture, on_each};
use tombolo_wire_nfs3::Call;
use tombolo_wire_rpc::{Accepted, AuthStat, Rejected};

use crate::bad_input::assert_well;

/// Returns a call that would succeed.
fn good(fixture: &Fixture) -> Message {
    fixture.nfs.message(&Call::Getattr(fixture.root.as_handle()), b"")
}

/// Sends headers that violate RFC 5531 §9, §10 and appendix A; connection and server must continue.
#[test]
fn malformed_headers_get_the_answer_of_their_fault() {
    let mut cases: Vec<(Message, Verdict)> = Vec::new();
    let good = || Message::new(fresh_xid(), 100_003, 3, 0, &Caller::ROOT);
    let mut case = |message, verdict| cases.push((message, verdict));
    let accepted = Verdict::Accepted;
    for program in [0, 1, 100_000, 100_021, 100_227, u32::MAX] {
        case(Message { program, ..good() }, accepted(Accepted::ProgUnavail));
    }
    for (program, version) in [100_003, 100_005]
        .into_iter()
        .flat_map(|program| [0, 1, 2, 4, u32::MAX].map(|version| (program, version)))
    {
        case(Message { program, version, ..good() }, accepted(Accepted::ProgMismatch { low: 3, high: 3 }));
    }
    for (program, procedure) in
        [(100_003, 22), (100_003, 100), (100_003, u32::MAX), (100_005, 6), (100_005, u32::MAX)]
    {
        case(Message { program, procedure, ..good() }, accepted(Accepted::ProcUnavail));
    }
    for rpc_version in [0, 1, 3, u32::MAX] {
        let mismatch = Rejected::RpcMismatch { low: 2, high: 2 };
        case(Message { rpc_version, ..good() }, Verdict::Denied(mismatch));
    }
    let denied = |why| Verdict::Denied(Rejected::Auth(why));
    for flavor in [2, 3, 6, 7, 1000, u32::MAX] {
        let credential = Auth { flavor, body: vec![0; 20] };
        case(Message { credential, ..good() }, denied(AuthStat::RejectedCred));
    }
    case(Message { credential: sys(4, 16), ..good() }, accepted(Accepted::Success));
    let whole = sys(4, 2).body;
    let mut bad: Vec<Auth> =
        (0..whole.len()).map(|len| Auth { flavor: 1, body: whole[..len].to_vec() }).collect();
    // Too many groups, a machine name of 256 bytes, a body of more than 400 bytes, trailing bytes, and counts
    // beyond the body.
    bad.extend([sys(4, 17), sys(4, 80), sys(256, 0), sys(255, 60)]);
    bad.push(Auth { flavor: 1, body: [whole.as_slice(), &[0; 4]].concat() });
    bad.push(Auth { flavor: 1, body: encoded(&(u32::MAX)).repeat(10) });
    for credential in bad {
        case(Message { credential, ..good() }, denied(AuthStat::BadCred));
    }
    for verifier in [Auth { flavor: 1, body: vec![0; 4] }, Auth { flavor: 6, body: Vec::new() }] {
        case(Message { verifier, ..good() }, denied(AuthStat::BadVerf));
    }
    let fixture = Fixture::in_memory();
    for (message, expected) in cases {
        assert_eq!(fixture.nfs.send(&message).verdict, expected, "{message:?}");
        assert_eq!(fixture.nfs.send(&good()).verdict, accepted(Accepted::Success));
    }
}

/// Returns an AUTH_SYS credential with this many groups.
fn sys(machine_len: usize, groups: usize) -> Auth {
    let mut body = Vec::new();
    let mut xdr = tombolo_wire_xdr::Encoder::new(&mut body);
    xdr.u32(0).opaque(&vec![b'm'; machine_len]).u32(0).u32(0).u32(groups as u32);
    for group in 0..groups {
        xdr.u32(group as u32);
    }
    Auth { flavor: 1, body }
}

// Truncates a call at each byte: the server answers or closes the connection; other clients are unaffected.
on_each!(truncated_call_does_no_harm, |fixture| {
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

on_each!(non_call_messages_are_not_answered, |fixture| {
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

on_each!(datagrams_of_garbage_are_not_answered, |fixture| {
    let datagrams = Datagrams::connect(fixture.server.address()).expect("a socket");
    for garbage in [&b""[..], b"x", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 1000], &[0x55; 60_000]] {
        datagrams.send(garbage).expect("sent");
    }
    assert!(datagrams.is_quiet_for(Duration::from_millis(50)));
    datagrams.send(&good(fixture).to_bytes()).expect("sent");
    let answer = Answer::new(datagrams.receive().expect("a reply"));
    assert_eq!(answer.verdict, Verdict::Accepted(Accepted::Success));
});

on_each!(the_same_xid_may_name_any_number_of_calls, |fixture| {
    let xid = fresh_xid();
    for _ in 0..3 {
        let message = Message { xid, ..good(fixture) };
        assert_eq!(fixture.nfs.send(&message).status(), Ok(()));
    }
});
