//! DIGESTS of the side program.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo_core::fs::Op;
use tombolo_nfs_tests::client::{Expect, Message, Nfs};
use tombolo_nfs_tests::fixture::{Fixture, local_dir, on_each, scratch, weak};
use tombolo_nfs_tests::test_server::Plan;
use tombolo_test_support::{Act, Scripted};
use tombolo_wire_nfs3::side::{self, CHUNK_BYTES, DIGESTED_BYTES_MAX, DigestsArgs, DigestsReply};
use tombolo_wire_nfs3::{Fattr3, FileHandleBuf, Reply, Sattr3, Status};
use tombolo_wire_xdr::Encoder;

const CHUNK: usize = CHUNK_BYTES as usize;

fn ask(nfs: &Nfs, file: &FileHandleBuf, offset: u64, count: u32) -> Result<(Fattr3, Vec<u8>), Status> {
    let procedure = side::Procedure::Digests.number();
    let mut message = Message::new(7, side::PROGRAM, side::VERSION, procedure, nfs.caller());
    Encoder::new(&mut message.arguments).value(&DigestsArgs { file: file.as_handle(), offset, count });
    match nfs.send(&message).results::<DigestsReply<'_>>() {
        Reply::Ok(ok) => Ok((ok.attributes, ok.digests.to_vec())),
        Reply::Failed(status, _) => Err(status),
    }
}

fn of(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(CHUNK).flat_map(|chunk| *blake3::hash(chunk).as_bytes()).collect()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at) as u8).collect()
}

on_each!(each_chunk_of_range_has_digest_up_to_eof, |fixture| {
    let bytes = bytes(5 * CHUNK + 100);
    let file = fixture.file("file", &bytes);
    let all = of(&bytes);
    let (attributes, digests) = ask(&fixture.nfs, &file, 0, DIGESTED_BYTES_MAX).expect("digests");
    assert_eq!((weak(&attributes), &digests), (weak(&fixture.attr(&file)), &all));
    let (_, some) = ask(&fixture.nfs, &file, 2 * CHUNK_BYTES, CHUNK as u32 + 1).expect("digests");
    assert_eq!(some, all[64..128], "of each that is touched");
    let (_, last) = ask(&fixture.nfs, &file, 5 * CHUNK_BYTES, 1).expect("digests");
    assert_eq!(last, all[160..]);
    let (_, none) = ask(&fixture.nfs, &file, 6 * CHUNK_BYTES, 1).expect("digests");
    assert!(none.is_empty());
});

on_each!(malformed_call_gets_its_error, |fixture| {
    let file = fixture.file("file", b"secret");
    fixture.nfs.setattr(&file, Sattr3 { mode: Some(0o600), ..Sattr3::default() }, None).done();
    assert_eq!(ask(&fixture.as_user(1000), &file, 0, 10), Err(Status::Acces));
    assert_eq!(ask(&fixture.nfs, &file, 1, 10), Err(Status::Inval));
    assert_eq!(ask(&fixture.nfs, &file, 0, DIGESTED_BYTES_MAX + 1), Err(Status::Inval));
    assert_eq!(ask(&fixture.nfs, &fixture.root, 0, 10), Err(Status::IsDir));
});

/// Writes to a host file at each of the first reads.
struct Meddler {
    path: PathBuf,
    times: AtomicU64,
    reads: AtomicU64,
}

impl Meddler {
    fn before_read(&self) {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let left = self.times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if let Ok(left) = left {
            let file = OpenOptions::new().write(true).open(&self.path).expect("the file");
            // At a new offset each time, so that the size shows the change even within one clock tick.
            file.write_all_at(&[left as u8], 1000 - left).expect("a write");
        }
    }
}

fn meddled(test: impl Fn(&Fixture, &Meddler, &FileHandleBuf)) {
    let tree = scratch();
    let path = tree.path().join("file");
    let meddler = Arc::new(Meddler { path, times: AtomicU64::new(0), reads: AtomicU64::new(0) });
    let meddling = meddler.clone();
    let export = Scripted::over(local_dir(tree.path()), move |call| {
        if call.op == Op::Read {
            meddling.before_read();
        }
        Act::Pass
    });
    let fixture = Fixture::new(Plan::over(export), None);
    let file = fixture.file("file", b"data");
    test(&fixture, &meddler, &file);
}

#[test]
fn digests_match_the_version_returned_with_them() {
    meddled(|fixture, meddler, file| {
        meddler.times.store(1, Ordering::SeqCst);
        let (attributes, digests) = ask(&fixture.nfs, file, 0, 1 << 20).expect("digests");
        assert_eq!(weak(&attributes), weak(&fixture.attr(file)), "the version after the change");
        assert_eq!(digests, of(&fixture.contents(file)));
        meddler.times.store(900, Ordering::SeqCst);
        assert_eq!(ask(&fixture.nfs, file, 0, 1 << 20), Err(Status::Jukebox), "it changes all the time");
    });
}

#[test]
fn settled_version_is_read_once() {
    meddled(|fixture, meddler, file| {
        let reads = || {
            let before = meddler.reads.load(Ordering::SeqCst);
            let (_, digests) = ask(&fixture.nfs, file, 0, 1 << 20).expect("digests");
            (meddler.reads.load(Ordering::SeqCst) - before, digests)
        };
        assert_eq!((reads().0, reads().0), (1, 1), "it may change again, and not show it");
        std::thread::sleep(Duration::from_millis(2100));
        assert_eq!((reads().0, reads()), (1, (0, of(b"data"))));
        let on_disk = OpenOptions::new().write(true).open(&meddler.path).expect("the file");
        on_disk.write_all_at(b"D", 0).expect("a write");
        assert_eq!(reads(), (1, of(b"Data")), "another version");
    });
}
