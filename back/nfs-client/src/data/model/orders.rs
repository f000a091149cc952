//! Ordering constraints of calls.

use std::sync::Arc;

use tombolo_core::Identity;
use tombolo_core::fs::Write;
use tombolo_mem::{Buffer, Source};

use super::super::{ReadAhead, commit, pause, read, write};
use super::cases::{Slot, said, waited_for};
use super::{Asked, File, Model, Quirk, SIZES};
use crate::caller::Caller;

/// A client with a server and a file.
struct User {
    server: Arc<Model>,
    file: Arc<File>,
    caller: Caller,
}

impl User {
    fn new(dirty_bytes_max: usize) -> Self {
        let server = Model::new(SIZES, dirty_bytes_max, 8);
        Self { server, file: Arc::default(), caller: Caller::default() }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Slot<usize> {
        let how = Write { offset, retainable: true, ..Write::default() };
        let answer = write(&self.server, &self.file, &self.caller, &how, Source::from(bytes.to_vec()));
        waited_for(answer.map(|written| written.count))
    }

    fn commit(&self) -> Slot<()> {
        waited_for(commit(&self.server, &self.file, &self.caller))
    }

    /// Reads while the server executes all requests.
    fn read(&self, ahead: &ReadAhead, offset: u64, len: usize) -> Vec<u8> {
        let mut buffer = Buffer::new(len);
        let into = buffer.sink(0..len);
        let done = waited_for(read(&self.server, &self.file, &self.caller, ahead, offset, into));
        self.serve();
        let count = said(&done).expect("an answer").expect("no READ fails").count;
        buffer.as_slice().expect("it is not written to after the answer")[..count].to_vec()
    }

    fn serve(&self) {
        while !self.server.state().calls.is_empty() {
            self.serve_one();
        }
    }

    fn serve_one(&self) {
        self.server.work(0, Quirk::default());
        self.server.tell(0);
    }

    fn commits_under_way(&self) -> usize {
        let state = self.server.state();
        state.calls.iter().filter(|call| matches!(call.asked, Asked::Commit)).count()
    }
}

#[test]
fn write_does_not_overtake_an_older_queued_write() {
    let first = User::new(1 << 20);
    let identity = Identity { uid: 7, ..Identity::default() };
    let second = User {
        server: first.server.clone(),
        file: first.file.clone(),
        caller: Caller { identity, ..Caller::default() },
    };
    let written = [first.write(0, &[1; 8]), second.write(4, &[2; 8]), first.write(8, &[3; 8])];
    assert!(written.iter().all(|written| said(written).is_some_and(|count| count.is_ok())));
    assert_eq!(first.server.state().in_flight(), 1, "each waits for the one before it");
    first.serve();
    assert_eq!(first.server.state().cache, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
}

#[test]
fn truncation_waits_for_a_pending_commit() {
    let user = User::new(1 << 20);
    user.write(0, &[1; 8]);
    user.serve();
    let flush = user.commit();
    assert_eq!(user.commits_under_way(), 1);
    let paused = waited_for(pause(&user.server, &user.file, &user.caller));
    assert!(said(&paused).is_none(), "a COMMIT is under way");
    user.serve_one();
    assert!(said(&paused).is_some_and(|paused| paused.is_ok()));
    assert!(said(&flush).is_some_and(|flushed| flushed.is_ok()));
}

#[test]
fn commit_waits_for_truncation_and_then_frees_memory() {
    let cut = User::new(1500);
    let other = User { server: cut.server.clone(), file: Arc::default(), caller: Caller::default() };
    for at in [0, 20] {
        cut.write(at, &[1]);
        cut.serve();
    }
    let paused = waited_for(pause(&cut.server, &cut.file, &cut.caller));
    let paused = said(&paused).expect("an answer").expect("nothing is under way");
    let stuck = other.write(40, b"needs memory");
    assert!(said(&stuck).is_none());
    assert_eq!(cut.commits_under_way(), 0, "what is lost would be sent again");
    drop(paused);
    cut.serve();
    assert!(said(&stuck).is_some_and(|count| count.is_ok()));
}

#[test]
fn resending_a_write_drops_its_read_ahead() {
    let user = User::new(1 << 20);
    {
        let mut state = user.server.state();
        state.stable = vec![9; 32];
        state.cache = vec![9; 32];
    }
    user.write(16, &[1; 16]);
    user.serve();
    user.server.restart(false);
    let ahead = ReadAhead::default();
    assert_eq!(user.read(&ahead, 0, 16), [9; 16]);
    let flush = user.commit();
    user.serve();
    assert!(said(&flush).is_some_and(|flushed| flushed.is_ok()));
    assert_eq!(user.read(&ahead, 16, 16), [1; 16]);
}

#[test]
fn read_ahead_does_not_truncate_a_grown_file() {
    let user = User::new(1 << 20);
    user.server.state().cache = vec![9; 20];
    let ahead = ReadAhead::default();
    assert_eq!(user.read(&ahead, 0, 16), [9; 16]);
    user.write(20, &[1; 10]);
    let flush = user.commit();
    user.serve();
    assert!(said(&flush).is_some_and(|flushed| flushed.is_ok()));
    assert_eq!(user.read(&ahead, 16, 16), [[9; 4].as_slice(), &[1; 10]].concat());
}
