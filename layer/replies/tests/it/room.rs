//! Operations without space in the state file, permanently or for a while.

use std::sync::{Arc, mpsc};

use tombolo_core::fs::{Create, Exclusive, OpenFlags};
use tombolo_core::{Answer, Ctx, Error, Interrupt};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_replies::{self as replies, Limits, Options};
use tombolo_test_support::{Act, Scripted, Session, until, wrapped};

use crate::crash::{Mood, Server};
use crate::fixture::{Bottom, attach, plain, request, start_mkdir};
use crate::impatient::Impatient;

/// Number of intents in a state file (docs/formats/replies.md).
const ROOM: usize = 1024;

fn interruptible(at: &Session, interrupt: Interrupt) -> Session {
    at.with(Ctx { interrupt, ..at.cx.clone() })
}

/// Starts an operation that may pend, and returns where its outcome arrives.
fn started(answer: Answer<()>) -> mpsc::Receiver<tombolo_core::Result<()>> {
    let (outcome, arrived) = mpsc::channel();
    tombolo_host_runtime::task::spawn(async move {
        let _ = outcome.send(answer.resolve().await);
    });
    arrived
}

#[test]
fn change_waits_for_a_free_intent_slot() {
    let tree = Bottom::Tmpfs.scratch().expect("a directory");
    let folder = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let gate = Arc::<Promise<()>>::default();
    let held = gate.clone();
    let bottom = Scripted::over(crate::fixture::local_dir(tree.path()), move |call| match call.mutates {
        true => Act::Withhold(held.clone()),
        false => Act::Pass,
    });
    let export = replies::open(bottom, &Options::default(), &folder.path().join("replies")).expect("opened");
    let session = attach(&export);
    let mkdir = |number: usize, interrupt: Interrupt| {
        start_mkdir(&interruptible(&request(&session), interrupt), &number.to_string()).map(drop)
    };
    let answers: Vec<_> = (0..ROOM).map(|number| started(mkdir(number, Interrupt::default()))).collect();
    let is_there = |number: usize| tree.path().join(number.to_string()).exists();
    until("all directories are made", || (0..ROOM).all(is_there));
    // An interrupted one takes no slot.
    let interrupt = Interrupt::new();
    let given_up = started(mkdir(ROOM, interrupt.clone()));
    assert!(!is_there(ROOM));
    interrupt.raise();
    let given_up = given_up.recv_timeout(std::time::Duration::from_secs(60)).expect("an answer");
    assert!(matches!(given_up, Err(Error::Interrupted)));
    let last = mkdir(ROOM + 1, Interrupt::default());
    let last = std::thread::spawn(move || last.wait());
    assert!(!is_there(ROOM) && !is_there(ROOM + 1));
    gate.keep(());
    answers.into_iter().for_each(|answer| answer.recv().expect("an answer").expect("mkdir"));
    last.join().expect("a thread").expect("mkdir");
    assert!(!is_there(ROOM) && is_there(ROOM + 1));
    assert_eq!(export.counters().read().unprotected, 0);
}

#[test]
fn unwritable_outcome_retains_its_intent() {
    let server = Server::with(
        Bottom::Memory,
        &Options { durable: Limits { entries: 1, ..Limits::default() }, ..Options::default() },
    );
    let (lost, other) = (request(&server), request(&server));
    server.silence.set(Mood::LosesHandles);
    lost.dir("dir");
    assert_eq!((server.intents(), server.first.counters().read().unprotected), (1, 1));
    let next = server.next();
    next.again(&lost).mkdir("dir").expect("the answer");
    server.silence.set(Mood::Answers);
    other.dir("other");
    assert_eq!(server.intents(), 0, "the other has pushed it out");
}

#[test]
fn outcome_of_interrupted_request_is_recorded() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let bottom = wrapped(Bottom::Memory.export().0, Impatient);
    let export = replies::open(bottom, &Options::default(), &folder.path().join("replies")).expect("opened");
    let interrupt = Interrupt::new();
    interrupt.raise();
    interruptible(&request(&attach(&export)), interrupt).dir("dir");
    let counts = export.counters().read();
    assert_eq!((counts.recorded, counts.unprotected), (1, 0));
}

#[test]
fn answered_requests_leave_room_for_those_that_come() {
    let server = Server::new(Bottom::Memory);
    for number in 0..300 {
        server.silence.set(Mood::LosesHandles);
        request(&server).dir(&number.to_string());
    }
    assert_eq!(server.intents(), 256, "the oldest have gone");
}

#[test]
fn a_panic_gives_its_room_in_the_file_back() {
    let server = Server::new(Bottom::Memory);
    server.silence.set(Mood::Panics);
    let answer = start_mkdir(&request(&server), "dir");
    assert_eq!(server.intents(), 1, "under way");
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| answer.wait().is_ok()));
    assert!(ended.is_err());
    assert_eq!(server.intents(), 0);
}

#[test]
fn operation_too_long_for_state_file_still_runs() {
    let server = Server::new(Bottom::Tmpfs);
    let tree = server.tree.as_ref().expect("a directory").path().to_owned();
    std::fs::OpenOptions::new().write(true).open(&server.state).unwrap().set_len(0).unwrap();
    for _ in 0..2 {
        let at = request(&server);
        for _ in 0..2 {
            let how = Create { flags: OpenFlags::READ, exclusive: Exclusive::No, ..plain() };
            at.create("file", &how).expect("create");
        }
    }
    assert!(tree.join("file").exists());
    assert!(server.first.counters().read().unprotected >= 1, "it is known that the file was cut");
}
