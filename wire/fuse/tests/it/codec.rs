//! Decoding of requests, valid and invalid.

use proptest::prelude::*;
use tombolo_wire_fuse::init::Capabilities;
use tombolo_wire_fuse::layout::header::{InHeader, UNIQUE_RESEND};
use tombolo_wire_fuse::layout::{dir, lock, open, rw, xattr};
use tombolo_wire_fuse::{DecodeError, Errno, Extent, NodeId, Opcode, Request};
use zerocopy::{FromBytes, IntoBytes};

/// Returns a request with these argument parts and the right length.
fn request(opcode: Opcode, parts: &[&[u8]]) -> Vec<u8> {
    let args = parts.concat();
    let header = InHeader {
        len: u32::try_from(size_of::<InHeader>() + args.len()).unwrap(),
        opcode: opcode as u32,
        unique: 42,
        nodeid: 7,
        uid: 1000,
        gid: 1001,
        pid: 99,
        ..Default::default()
    };
    [header.as_bytes(), &args].concat()
}

fn decode(bytes: &[u8]) -> Result<Request<'_>, DecodeError> {
    Request::decode(bytes, Capabilities::SETXATTR_EXT).map(|decoded| decoded.request)
}

#[test]
fn a_create_carries_its_name_mode_and_umask() {
    let how = open::CreateIn { flags: 0o102, mode: 0o100_644, umask: 0o22, open_flags: 1 };
    let bytes = request(Opcode::Create, &[how.as_bytes(), b"new file\0"]);
    let decoded = Request::decode(&bytes, Capabilities::empty()).unwrap();
    assert_eq!((decoded.header.node, decoded.header.uid, decoded.header.pid), (NodeId(7), Some(1000), 99));
    let Request::Create { name, how } = decoded.request else { panic!("{decoded:?}") };
    assert_eq!(name.as_bytes(), b"new file");
    assert_eq!((how.mode, how.umask), (0o100_644, 0o22));
}

#[test]
fn escaping_names_are_refused_by_decoding() {
    let attacks: [&[u8]; 6] = [b"\0", b".\0", b"..\0", b"a/b\0", b"../../etc/passwd\0", b"/\0"];
    for name in attacks {
        for (opcode, args) in [
            (Opcode::Lookup, vec![]),
            (Opcode::Unlink, vec![]),
            (Opcode::Rmdir, vec![]),
            (Opcode::Mkdir, dir::MkdirIn::default().as_bytes().to_vec()),
            (Opcode::Mknod, dir::MknodIn::default().as_bytes().to_vec()),
            (Opcode::Create, open::CreateIn::default().as_bytes().to_vec()),
            (Opcode::Link, dir::LinkIn::default().as_bytes().to_vec()),
        ] {
            let bytes = request(opcode, &[&args, name]);
            let error = decode(&bytes).unwrap_err();
            assert!(matches!(error, DecodeError::Name { .. }), "{opcode:?} {name:?}: {error}");
            assert!(error.is_violation());
        }
        for names in [[name, b"ok\0"], [b"ok\0", name]] {
            let bytes = request(Opcode::Rename, &[&[0; 8], names[0], names[1]]);
            assert!(decode(&bytes).is_err(), "{names:?}");
        }
    }
}

#[test]
fn overlong_name_is_enametoolong_and_no_violation() {
    let bytes = request(Opcode::Lookup, &[&[b'x'; 256], b"\0"]);
    let error = decode(&bytes).unwrap_err();
    assert_eq!((error.errno(), error.is_violation()), (Errno::ENAMETOOLONG, false));
    assert!(decode(&request(Opcode::Lookup, &[&[b'x'; 255], b"\0"])).is_ok());
}

#[test]
fn names_need_one_nul_and_no_trailing_bytes() {
    assert!(decode(&request(Opcode::Lookup, &[b"abc"])).is_err());
    assert!(decode(&request(Opcode::Lookup, &[b"abc\0x"])).is_err());
    assert!(decode(&request(Opcode::Lookup, &[b"abc\0x\0"])).is_err());
}

#[test]
fn a_write_keeps_its_data_outside() {
    let args = rw::WriteIn { fh: 3, offset: 4096, size: 10, ..Default::default() };
    let bytes = request(Opcode::Write, &[args.as_bytes(), b"0123456789"]);
    let header = InHeader::read_from_prefix(&bytes).unwrap().0;
    let extent = Extent::of(&header).unwrap();
    assert_eq!(extent, Extent { private_bytes: 80, payload_bytes: 10 });
    assert!(matches!(decode(&bytes[..80]), Ok(Request::Write(write)) if write.size_bytes == 10));
    for wrong in [0u32, 9, 11, u32::MAX] {
        let args = rw::WriteIn { size: wrong, ..args };
        let bytes = request(Opcode::Write, &[args.as_bytes(), b"0123456789"]);
        assert!(decode(&bytes[..80]).is_err(), "size {wrong}");
    }
}

#[test]
fn xattr_values_match_their_size_in_both_forms() {
    let long = xattr::SetxattrIn { size: 3, flags: 1, setxattr_flags: 1, padding: 0 };
    let bytes = request(Opcode::Setxattr, &[long.as_bytes(), b"user.k\0", b"v\0v"]);
    let Ok(Request::Setxattr { value, kill_set_gid, .. }) = decode(&bytes) else { panic!() };
    assert_eq!((value, kill_set_gid), (&b"v\0v"[..], true));
    let short = request(Opcode::Setxattr, &[&long.as_bytes()[..8], b"user.k\0", b"v\0v"]);
    let decoded = Request::decode(&short, Capabilities::empty()).unwrap();
    assert!(matches!(decoded.request, Request::Setxattr { value: b"v\0v", kill_set_gid: false, .. }));
    let bytes = request(Opcode::Setxattr, &[long.as_bytes(), b"user.k\0", b"too long"]);
    assert!(decode(&bytes).is_err());
}

#[test]
fn forgets_are_counted_by_their_bytes() {
    let one = dir::ForgetOne { nodeid: 5, nlookup: 2 };
    let head = dir::BatchForgetIn { count: 2, dummy: 0 };
    let bytes = request(Opcode::BatchForget, &[head.as_bytes(), one.as_bytes(), one.as_bytes()]);
    let Ok(Request::BatchForget(forgets)) = decode(&bytes) else { panic!() };
    assert_eq!(forgets.iter().collect::<Vec<_>>(), [(NodeId(5), 2), (NodeId(5), 2)]);
    for wrong in [0, 1, 3, u32::MAX] {
        let head = dir::BatchForgetIn { count: wrong, dummy: 0 };
        let bytes = request(Opcode::BatchForget, &[head.as_bytes(), one.as_bytes(), one.as_bytes()]);
        assert!(decode(&bytes).is_err(), "count {wrong}");
    }
}

#[test]
fn locks_with_impossible_ranges_are_refused() {
    let good = lock::LkIn {
        lk: lock::FileLock { start: 0, end: lock::OFFSET_MAX, kind: lock::F_WRLCK, pid: 1 },
        ..Default::default()
    };
    assert!(decode(&request(Opcode::Setlkw, &[good.as_bytes()])).is_ok());
    for (start, end, kind) in [(5, 4, 1), (0, u64::MAX, 1), (0, 1, 3)] {
        let lk = lock::FileLock { start, end, kind, pid: 1 };
        let bytes = request(Opcode::Setlk, &[lock::LkIn { lk, ..good }.as_bytes()]);
        assert!(decode(&bytes).is_err(), "{lk:?}");
    }
}

#[test]
fn tmpfile_accepts_the_kernel_generated_name() {
    let bytes = request(Opcode::Tmpfile, &[open::CreateIn::default().as_bytes(), b"/\0"]);
    assert!(matches!(decode(&bytes), Ok(Request::Tmpfile { .. })));
}

#[test]
fn unknown_operations_are_not_implemented() {
    let mut bytes = request(Opcode::Lookup, &[b"x\0"]);
    for number in [0u32, 7, 19, 54, 4096, 436_207_616, u32::MAX] {
        bytes[4..8].copy_from_slice(number.as_bytes());
        let error = decode(&bytes).unwrap_err();
        assert_eq!((error.errno(), error.is_violation()), (Errno::ENOSYS, false), "{number}");
    }
}

#[test]
fn a_request_sent_again_keeps_its_whole_number() {
    let mut bytes = request(Opcode::Readlink, &[]);
    bytes[8..16].copy_from_slice((42 | UNIQUE_RESEND).as_bytes());
    let unique = Request::decode(&bytes, Capabilities::empty()).unwrap().header.unique;
    assert_eq!(unique.0, 42 | UNIQUE_RESEND, "the reply must carry the number as it came");
}

#[test]
fn a_length_that_does_not_match_is_a_violation() {
    for wrong in [0u32, 39, 40, 55, 57, u32::MAX] {
        let mut bytes = request(Opcode::Getattr, &[&[0; 16]]);
        bytes[..4].copy_from_slice(wrong.as_bytes());
        assert!(decode(&bytes).is_err_and(|error| error.is_violation()), "length {wrong}");
    }
    for end in 0..40 {
        let bytes = request(Opcode::Getattr, &[&[0; 16]]);
        assert!(matches!(decode(&bytes[..end]), Err(DecodeError::NoHeader { .. })));
    }
}

#[test]
fn every_operation_refuses_to_be_shorter_than_its_arguments() {
    for &opcode in Opcode::ALL {
        let fixed = opcode.fixed_bytes();
        for short in 0..fixed {
            let bytes = request(opcode, &[&vec![0; short]]);
            let header = InHeader::read_from_prefix(&bytes).unwrap().0;
            assert!(Extent::of(&header).is_err(), "{opcode:?} with {short} of {fixed}");
            assert!(decode(&bytes).is_err(), "{opcode:?} with {short} of {fixed}");
        }
    }
}

fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![4 => 0u32..60, 1 => any::<u32>()];
    let extlen = prop_oneof![8 => Just(0u16), 1 => 0u16..16, 1 => any::<u16>()];
    let args = prop::collection::vec(prop_oneof![3 => any::<u8>(), 2 => Just(0), 1 => Just(b'/')], 0..300);
    (opcode, extlen, args, prop_oneof![9 => Just(None), 1 => any::<u32>().prop_map(Some)]).prop_map(
        |(opcode, total_extlen, args, wrong)| {
            let real = u32::try_from(size_of::<InHeader>() + args.len()).unwrap();
            let header = InHeader { len: wrong.unwrap_or(real), opcode, total_extlen, ..Default::default() };
            [header.as_bytes(), &args].concat()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Request::decode(&bytes, Capabilities::all());
    }

    #[test]
    fn arbitrary_requests_never_panic_and_never_name_another_place(bytes in any_request()) {
        let header = InHeader::read_from_prefix(&bytes).unwrap().0;
        let Ok(extent) = Extent::of(&header) else { return Ok(()) };
        let private = bytes.get(..extent.private_bytes).unwrap_or(&bytes);
        let Ok(decoded) = Request::decode(private, Capabilities::all()) else { return Ok(()) };
        let name = match decoded.request {
            Request::Lookup { name } | Request::Unlink { name } | Request::Rmdir { name }
            | Request::Create { name, .. } | Request::Mkdir { name, .. } | Request::Mknod { name, .. }
            | Request::Symlink { name, .. } => Some(name),
            _ => None,
        };
        if let Some(name) = name {
            prop_assert!(!name.as_bytes().iter().any(|byte| matches!(byte, 0 | b'/')));
            prop_assert!(!matches!(name.as_bytes(), b"" | b"." | b".."));
        }
        prop_assert!(decoded.extensions.groups().count() <= bytes.len() / 4);
    }
}
