//! Headers of calls and replies, byte by byte as in RFC 5531, and invalid ones.

use proptest::prelude::*;
use tombolo_wire_rpc::{
    Accepted, AuthFlavor, AuthStat, AuthSys, CallFault, CallHeader, Credential, Gids, Rejected, ReplyBody,
    ReplyHeader, SUCCESS_BYTES, Verifier, Xid,
};
use tombolo_wire_xdr::{Decode, Decoder, encoded};

const XID: Xid = Xid(0x0102_0304);

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Returns a call of NFS's GETATTR up to the credential.
fn call_head() -> Vec<u8> {
    words(&[XID.0, 0, 2, 100_003, 3, 1])
}

fn auth_sys(gids: u32) -> Vec<u8> {
    let mut body = words(&[0xaabb_ccdd, 5]);
    body.extend(b"islet\0\0\0");
    body.extend(words(&[1000, 100, gids]));
    body.extend((0..gids).flat_map(u32::to_be_bytes));
    body
}

fn credential(flavor: u32, body: &[u8]) -> Vec<u8> {
    let padding = vec![0; body.len().wrapping_neg() % 4];
    [words(&[flavor, body.len() as u32]), body.to_vec(), padding].concat()
}

fn call(flavor: u32, body: &[u8]) -> Vec<u8> {
    [call_head(), credential(flavor, body), credential(0, &[])].concat()
}

fn received(bytes: &[u8]) -> Result<CallHeader<'_>, CallFault> {
    CallHeader::receive(&mut Decoder::new(bytes))
}

fn refused(why: Rejected) -> Result<CallHeader<'static>, CallFault> {
    Err(CallFault::Refused { xid: XID, why })
}

fn unbelieved(stat: AuthStat) -> Result<CallHeader<'static>, CallFault> {
    refused(Rejected::Auth(stat))
}

#[test]
fn a_call_names_program_procedure_and_credential() {
    let bytes = [call(1, &auth_sys(2)), vec![9; 8]].concat();
    let mut xdr = Decoder::new(&bytes);
    let header = CallHeader::receive(&mut xdr).unwrap();
    let sys = AuthSys {
        stamp: 0xaabb_ccdd,
        machine: b"islet",
        uid: 1000,
        gid: 100,
        gids: Gids::new(&[0, 1]).unwrap(),
    };
    assert_eq!(header, CallHeader::new(XID, 100_003, 3, 1, Credential::Sys(sys)));
    assert_eq!(xdr.rest(), [9; 8]);
    assert_eq!(encoded(&header), bytes[..bytes.len() - 8]);

    let anonymous = call(0, &[]);
    let header = received(&anonymous).unwrap();
    assert_eq!(header.credential, Credential::None);
    assert_eq!(encoded(&header), anonymous);
}

#[test]
fn sixteen_groups_are_accepted_and_seventeen_refused() {
    let bytes = call(1, &auth_sys(16));
    let Credential::Sys(sys) = received(&bytes).unwrap().credential else { panic!() };
    assert_eq!(sys.gids.to_vec(), (0..16).collect::<Vec<_>>());
    assert_eq!(received(&call(1, &auth_sys(17))), unbelieved(AuthStat::BadCred));
    assert_eq!(Gids::new(&[0; 17]), None);
}

#[test]
fn credentials_that_break_their_type_are_bad() {
    let sys = auth_sys(2);
    let mut machine_of_256 = words(&[0, 256]);
    machine_of_256.extend([b'x'; 256]);
    machine_of_256.extend(words(&[0, 0, 0]));
    let cases: [&[u8]; 5] =
        [&[], &sys[..sys.len() - 4], &[&sys[..], &[0; 4]].concat(), &machine_of_256, &[0xff; 12]];
    for body in cases {
        assert_eq!(received(&call(1, body)), unbelieved(AuthStat::BadCred), "{body:?}");
    }
    assert_eq!(received(&call(0, &[0; 401])), unbelieved(AuthStat::BadCred));
    assert!(received(&call(0, &[7; 400])).is_ok(), "what AUTH_NONE carries is undefined, not forbidden");
}

#[test]
fn flavors_that_are_not_taken_are_rejected() {
    for flavor in [AuthFlavor::SHORT, AuthFlavor::GSS, AuthFlavor::TLS, AuthFlavor(3), AuthFlavor(u32::MAX)] {
        assert_eq!(received(&call(flavor.0, &[1, 2, 3])), unbelieved(AuthStat::RejectedCred), "{flavor:?}");
    }
}

#[test]
fn call_verifier_must_be_auth_none() {
    for verifier in [credential(1, &[]), credential(6, &[0; 8]), words(&[0, 401]), words(&[0])] {
        let bytes = [call_head(), credential(0, &[]), verifier].concat();
        assert_eq!(received(&bytes), unbelieved(AuthStat::BadVerf));
    }
}

#[test]
fn other_rpc_versions_get_the_supported_range() {
    for version in [0, 1, 3, u32::MAX] {
        let bytes = words(&[XID.0, 0, version]);
        assert_eq!(received(&bytes), refused(Rejected::RpcMismatch { low: 2, high: 2 }));
    }
}

#[test]
fn a_non_call_message_gets_no_reply() {
    let reply = words(&[XID.0, 1, 0, 0, 0, 0]);
    for bytes in [&b""[..], &[1, 2, 3], &words(&[XID.0]), &words(&[XID.0, 2]), &reply] {
        let fault = received(bytes).unwrap_err();
        assert_eq!((fault, fault.reply()), (CallFault::NotCall, None));
    }
}

#[test]
fn a_truncated_call_is_answered_by_its_complete_part() {
    let whole = call(1, &auth_sys(3));
    let verifier_at = whole.len() - 8;
    for len in 0..whole.len() {
        let fault = received(&whole[..len]).unwrap_err();
        let expected = match len {
            0..8 => CallFault::NotCall,
            8..24 => CallFault::Short { xid: XID },
            _ if len < verifier_at => unbelieved(AuthStat::BadCred).unwrap_err(),
            _ => unbelieved(AuthStat::BadVerf).unwrap_err(),
        };
        assert_eq!(fault, expected, "{len} bytes");
    }
}

#[test]
fn replies_match_the_rfc_layout() {
    let accepted =
        |status, tail: &[u32]| (ReplyHeader::accept(XID, status), [&[XID.0, 1, 0, 0, 0][..], tail].concat());
    let denied = |why, tail: &[u32]| (ReplyHeader::reject(XID, why), [&[XID.0, 1, 1][..], tail].concat());
    let table = [
        accepted(Accepted::Success, &[0]),
        accepted(Accepted::ProgUnavail, &[1]),
        accepted(Accepted::ProgMismatch { low: 3, high: 3 }, &[2, 3, 3]),
        accepted(Accepted::ProcUnavail, &[3]),
        accepted(Accepted::GarbageArgs, &[4]),
        accepted(Accepted::SystemErr, &[5]),
        denied(Rejected::RpcMismatch { low: 2, high: 2 }, &[0, 2, 2]),
        denied(Rejected::Auth(AuthStat::BadCred), &[1, 1]),
        denied(Rejected::Auth(AuthStat::RejectedCred), &[1, 2]),
        denied(Rejected::Auth(AuthStat::BadVerf), &[1, 3]),
        denied(Rejected::Auth(AuthStat::TooWeak), &[1, 5]),
    ];
    for (header, layout) in table {
        let bytes = words(&layout);
        assert_eq!(encoded(&header), bytes);
        assert_eq!(ReplyHeader::decode(&mut Decoder::new(&bytes)), Ok(header));
        for len in 0..bytes.len() {
            assert!(ReplyHeader::decode(&mut Decoder::new(&bytes[..len])).is_err());
        }
    }
    assert_eq!(encoded(&ReplyHeader::success(XID)).len(), SUCCESS_BYTES);
}

#[test]
fn a_client_refuses_invalid_replies() {
    for layout in [[0, 0, 0, 0, 0, 0], [0, 1, 2, 0, 0, 0], [0, 1, 0, 0, 0, 6], [0, 1, 1, 2, 0, 0]] {
        assert!(ReplyHeader::decode(&mut Decoder::new(&words(&layout))).is_err(), "{layout:?}");
    }
    let long_verifier = words(&[0, 1, 0, 0, u32::MAX, 0]);
    assert!(ReplyHeader::decode(&mut Decoder::new(&long_verifier)).is_err());
}

proptest! {
    #[test]
    fn headers_survive_the_wire(
        xid: u32,
        numbers: [u32; 6],
        machine in proptest::collection::vec(any::<u8>(), 0..=255),
        gids in proptest::collection::vec(any::<u32>(), 0..=16),
        verifier in proptest::collection::vec(any::<u8>(), 0..=400),
    ) {
        let [program, version, procedure, stamp, uid, gid] = numbers;
        let sys = AuthSys { stamp, machine: &machine, uid, gid, gids: Gids::new(&gids).unwrap() };
        for credential in [Credential::None, Credential::Sys(sys)] {
            let header = CallHeader::new(Xid(xid), program, version, procedure, credential);
            let bytes = encoded(&header);
            prop_assert_eq!(CallHeader::receive(&mut Decoder::new(&bytes)), Ok(header));
        }
        let verifier = Verifier { flavor: AuthFlavor(stamp), body: &verifier };
        let body = ReplyBody::Accepted { verifier, status: Accepted::Success };
        let header = ReplyHeader { xid: Xid(xid), body };
        let bytes = encoded(&header);
        prop_assert_eq!(ReplyHeader::decode(&mut Decoder::new(&bytes)), Ok(header));
    }

    #[test]
    fn arbitrary_rpc_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        match received(&bytes) {
            Ok(_) => {}
            Err(fault) => prop_assert_eq!(fault.reply().is_none(), fault == CallFault::NotCall),
        }
        let _ = ReplyHeader::decode(&mut Decoder::new(&bytes));
    }
}
