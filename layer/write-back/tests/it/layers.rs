//! Local data of a file that is written again and again while the origin refuses it: they stay bounded.

use std::sync::{Arc, Mutex, mpsc};

use tombolo_core::Error;
use tombolo_core::fs::{File, Op};
use tombolo_test_support::Session;

use crate::trouble::Trouble;
use crate::world::{Origin, Proxy};

/// A file, its expected bytes, and an origin that refuses its data on request.
struct Growing {
    origin: Origin,
    trouble: Arc<Trouble>,
    proxy: Proxy,
    file: File,
    expected: Arc<Mutex<Vec<u8>>>,
}

fn write(session: &Session, file: File, expected: &Mutex<Vec<u8>>, offset: u64) -> Result<(), Error> {
    let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(150).collect();
    expected.lock().expect("a lock")[offset as usize..][..150].copy_from_slice(&bytes);
    session.write(file, offset, &bytes).map(drop)
}

impl Growing {
    fn new() -> Self {
        let trouble = Trouble::new(0);
        let origin = Origin::with(|memory| trouble.over(memory));
        let bytes = vec![1; 10_000];
        origin.direct.put("file", &bytes);
        let proxy = origin.proxy();
        let file = proxy.writer("file");
        Self { origin, trouble, proxy, file, expected: Arc::new(Mutex::new(bytes)) }
    }

    /// Writes at an offset, and again while the origin receives that, if `meanwhile`.
    fn write(&self, offset: u64, meanwhile: bool, is_refused: bool) {
        let (session, file, expected) = (self.proxy.session.clone(), self.file, self.expected.clone());
        write(&session, file, &expected, offset).expect("answered");
        self.trouble.once(Op::Write, move || {
            let written = if meanwhile { write(&session, file, &expected, offset + 100) } else { Ok(()) };
            written.err().or(is_refused.then_some(Error::NotPermitted))
        });
        assert_eq!(self.proxy.write_back.flush().is_err(), is_refused);
        assert_eq!(self.proxy.read_all(file, 0, usize::MAX), *self.expected.lock().expect("a lock"));
    }

    /// Asserts that everything arrives.
    fn finish(self) {
        self.proxy.write_back.flush().expect("nothing is refused");
        let expected = self.expected.lock().expect("a lock").clone();
        assert_eq!(self.origin.direct.contents("file"), expected);
        assert_eq!(self.proxy.read_all(self.file, 0, usize::MAX), expected);
        let status = self.proxy.write_back.status();
        assert_eq!((status.is_clean, status.dirty_bytes, status.conflicts), (true, 0, 0));
        self.proxy.release(self.file);
    }
}

#[test]
fn oldest_change_has_an_age_while_it_is_sent() {
    let growing = Growing::new();
    growing.proxy.write(growing.file, 0, b"change").expect("written");
    let ((begun, is_begun), (go, wait)) = (mpsc::channel(), mpsc::channel::<()>());
    growing.trouble.once(Op::Write, move || {
        begun.send(()).expect("a receiver");
        wait.recv().expect("a sender");
        None
    });
    growing.proxy.write_back.start_flush();
    is_begun.recv().expect("it sends");
    assert!(growing.proxy.write_back.status().oldest.is_some());
    go.send(()).expect("a receiver");
    growing.proxy.write_back.flush().expect("sent");
    assert_eq!(growing.proxy.write_back.status().oldest, None);
}

#[test]
fn writes_between_refused_attempts_use_one_data_file() {
    let growing = Growing::new();
    (0..10).for_each(|round| growing.write(round * 200, false, true));
    assert_eq!(growing.origin.data_files(), 1);
    growing.finish();
}

#[test]
fn writes_during_refused_attempts_use_few_data_files() {
    let growing = Growing::new();
    (0..10).for_each(|round| growing.write(round * 200, true, true));
    assert!(growing.origin.data_files() <= 4, "{}", growing.origin.data_files());
    // A write to the last of them while it is sent leaves that file unsent.
    growing.write(5000, true, false);
    growing.finish();
}

#[test]
fn write_during_late_conflict_is_kept_in_copy() {
    let growing = Growing::new();
    (0..10).for_each(|round| growing.write(round * 200, true, true));
    let direct = &growing.origin.direct;
    direct.unlink("file").expect("removed by another");
    let (session, file, expected) = (growing.proxy.session.clone(), growing.file, growing.expected.clone());
    growing.trouble.once(Op::Getattr, move || write(&session, file, &expected, 7000).err());
    growing.proxy.write_back.flush().expect("ours is kept");
    let all = direct.names("");
    let copy = all.iter().find(|name| name.contains(".conflict-")).expect("a conflict copy");
    let (copied, expected) = (direct.contents(copy), growing.expected.lock().expect("a lock"));
    assert_eq!((&copied[..2000], &copied[7000..7150]), (&expected[..2000], &expected[7000..7150]));
}

#[test]
fn write_during_a_conflict_is_kept() {
    const LEN: usize = 64 << 20;
    let trouble = Trouble::new(0);
    let origin = Origin::with(|memory| trouble.over(memory));
    origin.direct.put("file", b"before");
    let proxy = origin.proxy();
    let file = proxy.writer("file");
    proxy.write(file, 0, b"ours").expect("written");
    origin.direct.put("file", b"theirs!");
    let (session, (ended, written)) = (proxy.session.clone(), std::sync::mpsc::channel());
    let files = origin.path("write-back/data");
    trouble.once(Op::Getattr, move || {
        let writer = std::thread::spawn(move || session.write(file, 100, &vec![7; LEN]));
        ended.send(writer).expect("received");
        // The conflict is found while the data are being written.
        let is_begun = |file: std::fs::DirEntry| file.metadata().is_ok_and(|told| told.len() > 1000);
        while !std::fs::read_dir(&files).expect("list").flatten().any(is_begun) {
            std::thread::yield_now();
        }
        None
    });
    proxy.write_back.flush().expect("both are kept");
    written.recv().expect("sent").join().expect("no panic").expect("written");
    assert_eq!(proxy.write_back.status().conflicts, 1);
    let is_there = |path: &str| proxy.contents(path).get(100..) == Some(&vec![7; LEN][..]);
    let all = proxy.names("");
    assert!(all.iter().any(|name| is_there(name)), "{all:?}");
    proxy.release(file);
}
