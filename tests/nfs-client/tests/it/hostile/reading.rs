//! READ replies with more, less, or other data than requested.

use std::time::Duration;

use tombolo_back_nfs_client::Options;
use tombolo_core::Error;
use tombolo_core::fs::OpenFlags;
use tombolo_mem::Buffer;
use tombolo_nfs_client_tests::mount::hard;
use tombolo_nfs_client_tests::server::{ReceivedCall, ScriptedReply};
use tombolo_wire_nfs3::{Call, Procedure};
use tombolo_wire_xdr::Encoder;

use crate::hostile::stage::{Stage, in_time, on_soft, raise_after, told};

const CONTENTS: &[u8] = b"what the file holds, and nothing else";

/// Encodes results of READ with these counts and data.
fn read_results(count: u32, announced: u32, eof: bool, data: &[u8]) -> Vec<u8> {
    let mut results = Vec::new();
    // Status, no attributes, count, eof, length, data.
    Encoder::new(&mut results).u32(0).bool(false).u32(count).bool(eof).u32(announced).fixed(data);
    results
}

/// Reads a file whose READs get these replies; returns the bytes, or an error that names host and operation.
/// Asserts that no memory outside the reader's buffer is written.
fn read_of(reply: impl Fn(u64, u32) -> Vec<u8> + Send + 'static) -> Result<Vec<u8>, String> {
    const ROOM: usize = 16;
    on_soft(move |stage, world| {
        world.other_session().file_with("file", CONTENTS);
        let file = world.reader("file");
        stage.server.now(move |asked: &ReceivedCall<'_>| match asked.call() {
            Some(Call::Read(args)) => ScriptedReply::Results(reply(args.offset, args.count)),
            _ => ScriptedReply::Forward,
        });
        let mut buffer = Buffer::new(3 * ROOM);
        buffer.as_mut_slice().expect("not shared yet").fill(0xee);
        let done = world.fs.read(&world.cx, file, 0, buffer.sink(ROOM..2 * ROOM)).wait();
        let told = done.map_err(|error| told(&error)).map(|done| {
            assert!(done.count <= ROOM);
            buffer.as_slice().expect("the read is over")[ROOM..][..done.count].to_vec()
        });
        // Released only on the client: nothing may write to the buffer afterwards.
        world.release(file);
        let bytes = buffer.as_slice().expect("the buffer is free after the answer");
        assert!(bytes[..ROOM].iter().chain(&bytes[2 * ROOM..]).all(|&byte| byte == 0xee), "written beside");
        told
    })
}

/// Replies with excess data, data beyond their record, and wrong counts; also with no data in the middle of a
/// file, which is not its end (RFC 1813 §3.3.6): a program that took it for one would lose the remainder.
#[test]
fn read_replies_of_other_ranges_are_refused() {
    type Results = Box<dyn Fn(u64, u32) -> Vec<u8> + Send>;
    let mut cases: Vec<Results> = Vec::new();
    for (more, eof) in [(8, false), (1 << 20, true)] {
        cases.push(Box::new(move |_, count| {
            read_results(count + more, count + more, eof, &vec![b'x'; (count + more) as usize])
        }));
    }
    for announced in [17, 1 << 20, 0x7fff_ffff, u32::MAX] {
        cases.push(Box::new(move |_, _| read_results(announced, announced, true, &[b'x'; 12])));
    }
    for (count, eof) in [(16, false), (4, false), (u32::MAX, true)] {
        cases.push(Box::new(move |_, _| read_results(count, 8, eof, &[b'x'; 8])));
    }
    cases.push(Box::new(|_, _| read_results(0, 0, false, &[])));
    for case in cases {
        let error = read_of(case).expect_err("the reply was invalid");
        assert!(error.contains("127.0.0.1") && error.to_lowercase().contains("read"), "{error}");
    }
}

#[test]
fn small_received_pieces_are_reassembled() {
    let told = read_of(|offset, count| {
        let rest = CONTENTS.get(offset as usize..).unwrap_or_default();
        let piece = rest.get(..3.min(count as usize)).unwrap_or(rest);
        read_results(piece.len() as u32, piece.len() as u32, piece.len() == rest.len(), piece)
    });
    assert_eq!(told.expect("all of it"), &CONTENTS[..16]);
}

#[test]
fn data_without_its_padding_is_no_wrong_data() {
    let told = read_of(|_, _| {
        let mut results = read_results(5, 5, true, b"12345");
        results.truncate(results.len() - 3);
        results
    });
    if let Ok(bytes) = told {
        assert_eq!(bytes, b"12345");
    }
}

/// Abandons a call, which releases its buffer; the late reply must be dropped.
#[test]
fn late_reply_is_not_written_to_released_buffer() {
    in_time(|| {
        let options = Options { read_ahead_bytes: 0, ..hard() };
        let stage = Stage::with(options);
        stage.world.other_session().file_with("file", &[7; 4096]);
        let (world, interrupt) = stage.world.interruptible();
        let file = world.reader("file");
        // The reply takes four seconds; the reader is interrupted after half a second and may return once the
        // server has been silent for two.
        stage.server.on(Procedure::Read, |_| ScriptedReply::Forward.after(Duration::from_secs(4)));
        let mut buffer = Buffer::new(4096);
        let read = world.fs.read(&world.cx, file, 0, buffer.sink(0..4096));
        raise_after(&interrupt, Duration::from_millis(500));
        let read = read.wait();
        assert!(matches!(read, Err(Error::Interrupted)), "{read:?}");
        buffer.as_mut_slice().expect("it is ours again").fill(0xee);
        std::thread::sleep(Duration::from_secs(4));
        assert!(buffer.as_slice().expect("it is ours").iter().all(|&byte| byte == 0xee), "it was written to");
        world.release(file);
    });
}

/// Changes a file's size with each reply.
#[test]
fn ever_changing_file_sizes_do_no_harm() {
    on_soft(|stage, world| {
        let node = world.file_with("file", CONTENTS);
        stage.server.now(|asked: &ReceivedCall<'_>| match asked.is(Procedure::Getattr) {
            // The size is behind status, type, mode, nlink, uid and gid.
            true if asked.nth % 2 == 1 => ScriptedReply::patched(24, &u64::MAX.to_be_bytes()),
            true => ScriptedReply::patched(24, &3_u64.to_be_bytes()),
            false => ScriptedReply::Forward,
        });
        for _ in 0..6 {
            let _ = world.fs.getattr(&world.cx, node, None).wait();
            if let Ok(file) = world.open(node, OpenFlags::READ) {
                if let Ok(bytes) = world.read(file, 0, 100) {
                    assert!(CONTENTS.starts_with(&bytes), "{bytes:?}");
                }
                world.release(file);
            }
        }
        stage.server.be_honest();
        assert_eq!(world.contents(node), CONTENTS);
    });
}
