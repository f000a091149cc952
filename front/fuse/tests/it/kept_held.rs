//! Locks and unnamed files when the server is killed at each reply. The keeper here is a test double that
//! obeys each message (`host/vhost/src/fd_store.rs`).

use std::fs::OpenOptions;
use std::os::fd::AsFd;

use tombolo_sys::lock::{self, LockKind, LockRange};
use tombolo_wire_fuse::Opcode;
use tombolo_wire_fuse::layout::dir::RenameIn;
use tombolo_wire_fuse::layout::lock::{F_UNLCK, F_WRLCK, FileLock, LK_FLOCK, LkIn};
use tombolo_wire_fuse::layout::open::{CreateIn, FlushIn, OpenIn, OpenOut, ReleaseIn};
use zerocopy::{FromBytes, IntoBytes};

use crate::kept::{Guest, O_RDWR, STALE};

const WOULD_BLOCK: i32 = 11;
/// An owner number as chosen by a guest's kernel.
const OWNER: u64 = 0xfeed_0123_4567_89ab;

impl Guest {
    fn lock(&mut self, at: (u64, u64), owner: u64, kind: u32, lk_flags: u32) -> Result<(), i32> {
        self.ask(Opcode::Setlk, at.0, &[lock_of(at.1, owner, kind, lk_flags).as_bytes()]).map(drop)
    }

    fn open(&mut self, node: u64) -> (u64, u64) {
        let open = OpenIn { flags: O_RDWR, open_flags: 0 };
        let body = self.ask(Opcode::Open, node, &[open.as_bytes()]).expect("OPEN");
        (node, OpenOut::read_from_prefix(&body).expect("an opening").0.fh)
    }

    fn flush(&mut self, (node, fh): (u64, u64), lock_owner: u64) {
        let flush = FlushIn { fh, lock_owner, ..Default::default() };
        self.ask(Opcode::Flush, node, &[flush.as_bytes()]).expect("FLUSH");
    }

    fn release(&mut self, (node, fh): (u64, u64)) {
        let release = ReleaseIn { fh, ..Default::default() };
        self.ask(Opcode::Release, node, &[release.as_bytes()]).expect("RELEASE");
    }

    /// Returns whether a host process finds the file locked, by flock and by record locks.
    fn is_locked(&self, name: &str) -> (bool, bool) {
        let file = OpenOptions::new().read(true).write(true).open(self.tree.join(name)).expect("the file");
        let range = LockRange { start: 0, len: 1 };
        let record = lock::conflict(file.as_fd(), LockKind::Exclusive, range).expect("a look");
        (lock::try_flock(file.as_fd(), LockKind::Exclusive).is_err(), record.is_some())
    }
}

fn lock_of(fh: u64, owner: u64, kind: u32, lk_flags: u32) -> LkIn {
    let lk = FileLock { start: 0, end: 9, kind, pid: 1 };
    LkIn { fh, owner, lk, lk_flags, ..Default::default() }
}

#[test]
fn locks_survive_kills_and_end_with_the_guest() {
    let mut guest = Guest::new();
    let opening = guest.create(b"file\0");
    let other = guest.open(opening.0);
    guest.lock(opening, OWNER, F_WRLCK, LK_FLOCK).expect("flock");
    guest.lock(opening, OWNER, F_WRLCK, 0).expect("a record lock");
    assert_eq!(guest.is_locked("file"), (true, true));
    for _ in 0..2 {
        assert_eq!(guest.lock(other, OWNER + 1, F_WRLCK, 0), Err(WOULD_BLOCK));
        assert_eq!(guest.lock(other, OWNER + 1, F_WRLCK, LK_FLOCK), Err(WOULD_BLOCK));
        guest.lock(opening, OWNER, F_WRLCK, 0).expect("its own");
    }
    guest.lock(opening, OWNER, F_UNLCK, LK_FLOCK).expect("unlocked");
    assert_eq!(guest.is_locked("file"), (false, true));
    guest.lock(opening, OWNER, F_UNLCK, 0).expect("unlocked");
    assert_eq!(guest.is_locked("file"), (false, false));
    // A process releases its record locks by closing any descriptor of the file.
    guest.lock(opening, OWNER, F_WRLCK, 0).expect("a record lock");
    guest.flush(other, OWNER);
    assert_eq!(guest.is_locked("file"), (false, false));
    guest.lock(opening, OWNER, F_WRLCK, 0).expect("locked again, by another descriptor");
    assert_eq!(guest.is_locked("file"), (false, true));
    guest.lock(other, OWNER, F_WRLCK, LK_FLOCK).expect("flock");
    assert_eq!(guest.is_locked("file"), (true, true));
    guest.release(opening);
    guest.release(other);
    assert_eq!((guest.is_locked("file"), guest.held_elsewhere()), ((false, false), 0));
}

#[test]
fn open_unlinked_file_survives_kills() {
    let mut guest = Guest::new();
    let removed = guest.create(b"removed\0");
    let replaced = guest.create(b"replaced\0");
    let unnamed = CreateIn { flags: O_RDWR, mode: 0o100_600, ..Default::default() };
    let (node, rest) = guest.entry(Opcode::Tmpfile, 1, unnamed.as_bytes(), b"\0");
    let unnamed = (node, OpenOut::read_from_prefix(&rest).expect("an opening").0.fh);
    let openings = [removed, guest.open(removed.0), replaced, unnamed];
    for (number, (node, fh)) in openings.into_iter().enumerate() {
        guest.write(node, fh, format!("by {number}, ").as_bytes());
    }
    let new = guest.create(b"new\0");
    guest.release(new);
    guest.ask(Opcode::Unlink, 1, &[b"removed\0"]).expect("UNLINK");
    let rename = RenameIn { newdir: 1 };
    guest.ask(Opcode::Rename, 1, &[rename.as_bytes(), b"new\0replaced\0"]).expect("RENAME");
    assert_eq!(guest.held_elsewhere(), openings.len());
    // The second opening of the first process does not append.
    let data: [&[u8]; 4] = [b"by 1, ", b"by 1, ", b"by 2, ", b"by 3, "];
    for _ in 0..2 {
        for ((node, fh), data) in openings.into_iter().zip(data) {
            assert_eq!((guest.read(node, fh), guest.size(node)), (data.to_vec(), Ok(6)));
        }
    }
    guest.write(removed.0, removed.1, b"appended");
    assert_eq!(guest.read(removed.0, openings[1].1), b"by 1, appended");
    openings.into_iter().for_each(|opening| guest.release(opening));
    assert_eq!(guest.held_elsewhere(), 0);
}

#[test]
fn file_opened_after_unlink_survives_kills() {
    let mut guest = Guest::new();
    let first = guest.create(b"file\0");
    guest.ask(Opcode::Unlink, 1, &[b"file\0"]).expect("UNLINK");
    let second = guest.open(first.0);
    assert_eq!(guest.held_elsewhere(), 2);
    guest.release(first);
    guest.write(second.0, second.1, b"written");
    assert_eq!(guest.read(second.0, second.1), b"written");
    guest.release(second);
    assert_eq!(guest.held_elsewhere(), 0);
}

#[test]
fn file_losing_all_names_survives_kills() {
    let mut guest = Guest::new();
    let opening = guest.create(b"file\0");
    std::fs::hard_link(guest.tree.join("file"), guest.tree.join("other")).expect("a second name");
    guest.write(opening.0, opening.1, b"written");
    guest.ask(Opcode::Unlink, 1, &[b"file\0"]).expect("UNLINK");
    std::fs::remove_file(guest.tree.join("other")).expect("removed on the host");
    assert_eq!(guest.read(opening.0, opening.1), b"written");
    guest.release(opening);
    assert_eq!(guest.held_elsewhere(), 0);
}

#[test]
fn ended_session_leaves_no_descriptors_at_keeper() {
    let mut guest = Guest::new();
    let opening = guest.create(b"file\0");
    guest.lock(opening, OWNER, F_WRLCK, LK_FLOCK).expect("flock");
    assert_eq!(guest.held_elsewhere(), 1);
    guest.begin_anew();
    assert_eq!((guest.is_locked("file"), guest.held_elsewhere()), ((false, false), 0));
}

#[test]
fn late_lock_of_ended_session_is_stale() {
    for lk_flags in [0, LK_FLOCK] {
        let mut guest = Guest::new();
        let (node, fh) = guest.create(b"file\0");
        guest.end();
        let late = lock_of(fh, OWNER, F_WRLCK, lk_flags);
        assert_eq!(guest.ask_once(Opcode::Setlk, node, &[late.as_bytes()]), Err(STALE));
        assert_eq!((guest.is_locked("file"), guest.held_elsewhere()), ((false, false), 0));
    }
}
