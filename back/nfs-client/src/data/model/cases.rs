//! Tests of individual orders of requests and replies.

use std::sync::Arc;

use tombolo_core::fs::{ReadDone, Write, Written};
use tombolo_core::{Answer, Error, Identity, Interrupt, Result, Stability};
use tombolo_mem::{Buffer, Source};

use super::super::{ReadAhead, commit, pause, read, write};
use super::{Asked, File, Model, Quirk, SIZES};
use crate::caller::Caller;

const MANY: usize = 1 << 20;

struct Mount {
    server: Arc<Model>,
    file: Arc<File>,
    caller: Caller,
}

impl Mount {
    fn new(dirty_bytes_max: usize, in_flight_max: usize) -> Self {
        let server = Model::new(SIZES, dirty_bytes_max, in_flight_max);
        Self { server, file: Arc::default(), caller: Caller::default() }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Answer<Written> {
        let how = Write { offset, retainable: true, ..Write::default() };
        write(&self.server, &self.file, &self.caller, how, Source::from(bytes.to_vec()), false)
    }

    fn commit(&self) -> Answer<()> {
        commit(&self.server, &self.file, &self.caller)
    }

    /// Returns the unanswered requests of the server.
    fn asked(&self) -> Vec<String> {
        let state = self.server.state();
        let name = |asked: &Asked| match asked {
            Asked::Read { offset, into } => format!("READ {} at {offset}", into.len()),
            Asked::Write { offset, bytes, stability } => {
                format!("WRITE {} at {offset} {stability:?}", bytes.len())
            }
            Asked::Commit => "COMMIT".to_owned(),
            Asked::Cut(size) => format!("SETATTR {size}"),
        };
        state.calls.iter().map(|call| name(&call.asked)).collect()
    }

    /// Executes and answers the first request.
    fn step(&self, quirk: Quirk) {
        self.server.work(0, quirk);
        self.server.tell(0);
    }

    /// Executes and answers all requests.
    fn serve(&self) {
        while !self.server.state().calls.is_empty() {
            self.step(Quirk::default());
        }
    }

    /// Executes requests until the answer is complete.
    fn served<T: Send + 'static>(&self, answer: Answer<T>) -> Result<T> {
        let slot = waited_for(answer);
        for _ in 0..1000 {
            if let Some(result) = slot.lock().expect("not poisoned").take() {
                return result;
            }
            self.step(Quirk::default());
        }
        panic!("there is no answer, and nothing to do: {:?}", self.asked());
    }

    fn read(&self, ahead: &ReadAhead, offset: u64, len: usize) -> (Result<ReadDone>, Vec<u8>) {
        let mut buffer = Buffer::new(len);
        let into = buffer.sink(0..len);
        let done = self.served(read(&self.server, &self.file, &self.caller, ahead, offset, into));
        let bytes = buffer.as_slice().expect("it is not written to after the answer").to_vec();
        (done, bytes)
    }

    fn on_disk(&self) -> Vec<u8> {
        self.server.state().stable.clone()
    }
}

pub(super) type Slot<T> = Arc<std::sync::Mutex<Option<Result<T>>>>;

pub(super) fn waited_for<T: Send + 'static>(answer: Answer<T>) -> Slot<T> {
    let slot: Slot<T> = Arc::default();
    let to = slot.clone();
    tombolo_host_runtime::task::spawn(async move {
        let result = answer.resolve().await;
        *to.lock().expect("not poisoned") = Some(result);
    });
    slot
}

pub(super) fn said<T>(slot: &Slot<T>) -> Option<Result<T>> {
    slot.lock().expect("not poisoned").take()
}

fn text(error: &Error) -> String {
    let Error::Io { source: Some(source) } = error else { panic!("{error:?}") };
    source.to_string()
}

#[test]
fn answered_write_has_been_sent() {
    let mount = Mount::new(MANY, 8);
    assert!(mount.write(0, &[1; 20]).is_done());
    assert_eq!(mount.asked(), ["WRITE 16 at 0 Unstable", "WRITE 4 at 16 Unstable"]);
    mount.served(mount.commit()).unwrap();
    assert_eq!(mount.on_disk(), [1; 20]);
    assert_eq!(mount.server.state().commits, 1);
}

#[test]
fn retainable_data_are_not_copied_and_others_copied_once() {
    let mount = Mount::new(MANY, 1);
    assert!(mount.write(0, &[1; 16]).is_done());
    assert_eq!(mount.server.budget.copied_bytes(), 0);
    for at in 0..3 {
        let how = Write { offset: 16 + at * 4, ..Write::default() };
        let bytes = Source::from(vec![2; 4]);
        write(&mount.server, &mount.file, &mount.caller, how, bytes, false).wait().unwrap();
    }
    assert_eq!(mount.server.budget.copied_bytes(), 12);
    mount.served(mount.commit()).unwrap();
    assert_eq!(mount.on_disk(), [[1; 16].as_slice(), &[2; 12]].concat());
}

#[test]
fn queued_small_writes_merge_within_a_bound() {
    // Sixteen WRITEs of 16 bytes, and the pending one.
    const FIT: u64 = 16 * 16 / 8 + 1;
    for retainable in [true, false] {
        let mount = Mount::new(16 * MANY, 1);
        let small = |at: u64| {
            let how = Write { offset: at * 8, retainable, ..Write::default() };
            write(&mount.server, &mount.file, &mount.caller, how, Source::from(vec![at as u8 + 1; 8]), false)
        };
        for at in 0..FIT {
            assert!(small(at).is_done(), "{at}");
        }
        let last = waited_for(small(FIT));
        assert!(said(&last).is_none(), "the queue is full");
        mount.step(Quirk::default());
        assert_eq!(mount.asked(), ["WRITE 16 at 8 Unstable"], "retainable: {retainable}");
        assert!(said(&last).is_none(), "no waiter is woken for one WRITE");
        (0..12).for_each(|_| mount.step(Quirk::default()));
        assert!(said(&last).is_some_and(|written| written.is_ok()));
        mount.served(mount.commit()).unwrap();
        assert_eq!(mount.on_disk(), (0..=FIT).flat_map(|at| [at as u8 + 1; 8]).collect::<Vec<u8>>());
    }
}

#[test]
fn unsent_small_file_needs_no_commit() {
    let mount = Mount::new(MANY, 1);
    let other = Mount { file: Arc::default(), server: mount.server.clone(), caller: Caller::default() };
    other.write(50, b"busy").wait().unwrap();
    mount.write(0, b"small").wait().unwrap();
    mount.served(mount.commit()).unwrap();
    assert_eq!(mount.server.state().commits, 0);
    assert_eq!(mount.on_disk(), b"small");
}

#[test]
fn short_write_is_continued_and_empty_write_fails() {
    let mount = Mount::new(MANY, 1);
    mount.write(0, b"0123456789").wait().unwrap();
    mount.step(Quirk { bytes_max: Some(3), ..Quirk::default() });
    assert_eq!(mount.asked(), ["WRITE 7 at 3 Unstable"]);
    mount.step(Quirk { falls_short: true, ..Quirk::default() });
    let error = mount.served(mount.commit()).unwrap_err();
    assert_eq!(text(&error), "model: Write: nothing written and no error");
}

#[test]
fn ever_changing_verifier_leads_to_stable_writes() {
    let mount = Mount::new(MANY, 4);
    mount.server.state().is_fickle = true;
    mount.write(0, &[1; 40]).wait().unwrap();
    mount.served(mount.commit()).unwrap();
    assert_eq!(mount.on_disk(), [1; 40]);
    assert!(mount.server.state().commits <= 3, "{} commits", mount.server.state().commits);
    assert_eq!(mount.server.budget.held_bytes(), 0);
}

#[test]
fn a_write_less_stable_than_requested_is_an_error() {
    let mount = Mount::new(MANY, 4);
    let how = Write { stability: Stability::FileSync, ..Write::default() };
    let bytes = Source::from(b"abc".to_vec());
    let written = waited_for(write(&mount.server, &mount.file, &mount.caller, how, bytes, false));
    assert!(said(&written).is_none(), "it waits for the server");
    mount.step(Quirk { falls_short: true, ..Quirk::default() });
    let error = said(&written).expect("an answer").unwrap_err();
    assert_eq!(text(&error), "model: Write: less stable than requested");
}

#[test]
fn lost_write_is_reported_to_waiters_and_once_later() {
    let mount = Mount::new(MANY, 4);
    mount.write(0, b"lost").wait().unwrap();
    let waiting = [waited_for(mount.commit()), waited_for(mount.commit())];
    mount.step(Quirk { fails: true, ..Quirk::default() });
    for flush in &waiting {
        assert!(matches!(said(flush), Some(Err(Error::NoSpace))));
    }
    mount.commit().wait().expect("it was told, and is over");

    mount.write(0, b"lost").wait().unwrap();
    mount.step(Quirk { fails: true, ..Quirk::default() });
    assert!(matches!(mount.write(0, b"next").wait(), Err(Error::NoSpace)));
    mount.write(0, b"next").wait().unwrap();
    mount.served(mount.commit()).unwrap();
    assert_eq!(mount.on_disk(), b"next");
}

#[test]
fn an_interrupted_writer_returns_and_its_data_arrive() {
    let mut mount = Mount::new(MANY, 4);
    let interrupt = Interrupt::new();
    mount.caller.interrupt = interrupt.clone();
    mount.write(0, b"abc").wait().unwrap();
    let flush = waited_for(mount.commit());
    assert!(said(&flush).is_none());
    interrupt.raise();
    assert!(matches!(said(&flush), Some(Err(Error::Interrupted))));
    mount.caller = Caller::default();
    mount.served(mount.commit()).unwrap();
    assert_eq!(mount.on_disk(), b"abc");
}

#[test]
fn interrupted_stable_write_does_not_claim_stability() {
    let mut mount = Mount::new(MANY, 1);
    let interrupt = Interrupt::new();
    mount.caller.interrupt = interrupt.clone();
    let how = Write { stability: Stability::FileSync, retainable: true, ..Write::default() };
    let bytes = Source::from(vec![1; 20 * SIZES.write_max]);
    let written = waited_for(write(&mount.server, &mount.file, &mount.caller, how, bytes, false));
    assert!(said(&written).is_none(), "the queue is full");
    interrupt.raise();
    assert!(matches!(said(&written), Some(Err(Error::Interrupted))), "no WRITE was answered");
}

#[test]
fn memory_is_freed_from_an_unflushed_file() {
    let mount = Mount::new(1500, 8);
    let idle = Mount { file: Arc::default(), server: mount.server.clone(), caller: Caller::default() };
    for at in [0, 20] {
        idle.write(at, b"i").wait().unwrap();
        mount.step(Quirk::default());
    }
    let written = waited_for(mount.write(40, b"needs memory"));
    assert!(said(&written).is_none());
    assert_eq!(mount.asked(), ["COMMIT"]);
    mount.step(Quirk::default());
    assert!(said(&written).is_some_and(|written| written.is_ok()));
}

#[test]
fn resent_writes_do_not_restore_truncated_bytes() {
    let mount = Mount::new(MANY, 4);
    mount.write(0, &[7; 12]).wait().unwrap();
    let paused = mount.served(pause(&mount.server, &mount.file, &mount.caller)).unwrap();
    {
        let mut state = mount.server.state();
        state.cache.truncate(4);
        state.stable.resize(4, 0);
    }
    paused.truncated(4);
    drop(paused);
    mount.server.restart(false);
    mount.served(mount.commit()).unwrap();
    assert_eq!(mount.on_disk(), [7; 4]);
}

/// The server executes a write after a truncation that was sent while the write was under way.
#[test]
fn write_under_way_at_pause_is_committed() {
    let mount = Mount::new(MANY, 8);
    mount.write(0, &[7; 12]).wait().unwrap();
    let pausing = waited_for(pause(&mount.server, &mount.file, &mount.caller));
    mount.write(20, &[8; 4]).wait().unwrap();
    assert_eq!(mount.asked(), ["WRITE 12 at 0 Unstable", "WRITE 4 at 20 Unstable"]);
    mount.step(Quirk::default());
    let paused = said(&pausing).expect("paused").unwrap();
    mount.server.state().cache.clear();
    mount.step(Quirk::default());
    paused.truncated(0);
    drop(paused);
    mount.served(mount.commit()).unwrap();
    mount.server.restart(false);
    assert_eq!(mount.on_disk().get(20..), Some(&[8; 4][..]));
}

#[test]
fn concurrent_appends_do_not_overlap() {
    let mount = Mount::new(MANY, 1);
    let how = Write { retainable: true, ..Write::default() };
    let all: Vec<_> = (0..9)
        .map(|at| {
            let bytes = Source::from(vec![at + 1; 5]);
            waited_for(write(&mount.server, &mount.file, &mount.caller, how, bytes, true))
        })
        .collect();
    for _ in 0..20 {
        mount.step(Quirk::default());
    }
    mount.served(mount.commit()).unwrap();
    assert!(all.iter().all(|written| said(written).is_some_and(|written| written.is_ok())));
    assert_eq!(mount.on_disk(), (0..9).flat_map(|at| [at + 1; 5]).collect::<Vec<u8>>());
}

#[test]
fn a_reader_sees_uncommitted_writes_that_the_server_lost() {
    let mount = Mount::new(MANY, 4);
    mount.write(10, b"abc").wait().unwrap();
    mount.step(Quirk::default());
    mount.server.restart(false);
    let (done, bytes) = mount.read(&ReadAhead::default(), 8, 16);
    assert_eq!(done.unwrap(), ReadDone { count: 5, eof: true });
    assert_eq!(&bytes[..5], b"\0\0abc");
}

#[test]
fn empty_read_before_end_of_file_fails() {
    let mount = Mount::new(MANY, 4);
    mount.server.state().cache = vec![1; 20];
    let mut buffer = Buffer::new(8);
    let ahead = ReadAhead::default();
    let done = waited_for(read(&mount.server, &mount.file, &mount.caller, &ahead, 0, buffer.sink(0..8)));
    mount.step(Quirk { falls_short: true, ..Quirk::default() });
    let error = said(&done).expect("an answer").unwrap_err();
    assert_eq!(text(&error), "model: Read: no data and no end of file");
    assert!(buffer.as_mut_slice().is_some());
}

#[test]
fn a_sequential_reader_finds_the_next_bytes_read_ahead() {
    let mount = Mount::new(MANY, 8);
    mount.server.state().cache = (0..100).collect();
    let ahead = ReadAhead::default();
    let mut buffer = Buffer::new(16);
    let sink = buffer.sink(0..16);
    let first = waited_for(read(&mount.server, &mount.file, &mount.caller, &ahead, 0, sink));
    let asked = mount.asked();
    assert_eq!(asked, ["READ 16 at 0", "READ 16 at 16", "READ 16 at 32", "READ 16 at 48"], "48 bytes ahead");
    for _ in 0..4 {
        mount.step(Quirk::default());
    }
    assert_eq!(said(&first).expect("an answer").unwrap().count, 16);
    let sink = buffer.sink(0..16);
    let second = read(&mount.server, &mount.file, &mount.caller, &ahead, 16, sink);
    assert!(second.is_done(), "it was at hand");
    assert_eq!(buffer.as_slice().expect("lent no more"), (16..32).collect::<Vec<u8>>());
    assert_eq!(mount.asked(), ["READ 16 at 64"], "what is used up is read further ahead");

    mount.write(32, b"new").wait().unwrap();
    let (done, bytes) = mount.read(&ahead, 32, 8);
    assert_eq!(done.unwrap().count, 8);
    assert_eq!(bytes, b"new\x23\x24\x25\x26\x27");
}

#[test]
fn read_continues_after_short_replies_until_end_of_file() {
    let mount = Mount::new(MANY, 8);
    mount.server.state().cache = (0..40).collect();
    let mut buffer = Buffer::new(64);
    let ahead = ReadAhead::default();
    let done = waited_for(read(&mount.server, &mount.file, &mount.caller, &ahead, 0, buffer.sink(0..64)));
    for _ in 0..20 {
        mount.step(Quirk { bytes_max: Some(5), ..Quirk::default() });
    }
    assert_eq!(said(&done).expect("an answer").unwrap(), ReadDone { count: 40, eof: true });
    assert_eq!(buffer.as_slice().expect("lent no more")[..40], (0..40).collect::<Vec<u8>>());
}

#[test]
fn write_does_not_overtake_an_older_queued_write() {
    let first = Mount::new(MANY, 8);
    let identity = Identity { uid: 7, ..Identity::default() };
    let second = Mount {
        server: first.server.clone(),
        file: first.file.clone(),
        caller: Caller { identity, ..Caller::default() },
    };
    let written = [first.write(0, &[1; 8]), second.write(4, &[2; 8]), first.write(8, &[3; 8])];
    assert!(written.into_iter().all(|written| written.is_done() && written.wait().is_ok()));
    assert_eq!(first.server.state().in_flight(), 1, "each waits for the one before it");
    first.serve();
    assert_eq!(first.server.state().cache, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
}

#[test]
fn truncation_waits_for_a_pending_commit() {
    let mount = Mount::new(MANY, 8);
    mount.write(0, &[1; 8]).wait().unwrap();
    mount.serve();
    let flush = waited_for(mount.commit());
    assert_eq!(mount.asked(), ["COMMIT"]);
    let paused = waited_for(pause(&mount.server, &mount.file, &mount.caller));
    assert!(said(&paused).is_none(), "a COMMIT is under way");
    mount.step(Quirk::default());
    assert!(said(&paused).is_some_and(|paused| paused.is_ok()));
    assert!(said(&flush).is_some_and(|flushed| flushed.is_ok()));
}

#[test]
fn commit_waits_for_truncation_and_then_frees_memory() {
    let cut = Mount::new(1500, 8);
    let other = Mount { file: Arc::default(), server: cut.server.clone(), caller: Caller::default() };
    for at in [0, 20] {
        cut.write(at, &[1]).wait().unwrap();
        cut.serve();
    }
    let paused = pause(&cut.server, &cut.file, &cut.caller);
    assert!(paused.is_done(), "nothing is under way");
    let stuck = waited_for(other.write(40, b"needs memory"));
    assert!(said(&stuck).is_none());
    assert!(cut.asked().is_empty(), "what is lost would be sent again");
    drop(paused);
    cut.serve();
    assert!(said(&stuck).is_some_and(|count| count.is_ok()));
}

#[test]
fn resending_a_write_drops_its_read_ahead() {
    let mount = Mount::new(MANY, 8);
    {
        let mut state = mount.server.state();
        state.stable = vec![9; 32];
        state.cache = vec![9; 32];
    }
    mount.write(16, &[1; 16]).wait().unwrap();
    mount.serve();
    mount.server.restart(false);
    let ahead = ReadAhead::default();
    assert_eq!(mount.read(&ahead, 0, 16).1, [9; 16]);
    mount.serve();
    mount.served(mount.commit()).unwrap();
    assert_eq!(mount.read(&ahead, 16, 16).1, [1; 16]);
}

#[test]
fn read_ahead_does_not_truncate_a_grown_file() {
    let mount = Mount::new(MANY, 8);
    mount.server.state().cache = vec![9; 20];
    let ahead = ReadAhead::default();
    assert_eq!(mount.read(&ahead, 0, 16).1, [9; 16]);
    mount.serve();
    mount.write(20, &[1; 10]).wait().unwrap();
    mount.served(mount.commit()).unwrap();
    let (done, bytes) = mount.read(&ahead, 16, 16);
    assert_eq!(bytes[..done.unwrap().count], [[9; 4].as_slice(), &[1; 10]].concat());
}
