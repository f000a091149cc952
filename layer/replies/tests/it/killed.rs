//! Processes killed at random moments, and the replies of their successors.
//!
//! Each process is this program again. It serves a directory to several clients, each with a directory of its
//! own and one request at a time, and logs requests and replies. The next one first repeats the unanswered
//! requests of its predecessor. All requests succeed unless one was performed twice or never.

use std::collections::BTreeMap;
use std::fs::{File as LogFile, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tombolo_back_memory::Memory;
use tombolo_core::Answer;
use tombolo_core::fs::{Exclusive, FileType};
use tombolo_layer_basic::Layered;
use tombolo_layer_basic::around::{Around, Call, Payload};
use tombolo_layer_replies as replies;
use tombolo_layer_replies::Options;
use tombolo_test_support::Session;
use tombolo_test_support::history::{Action, Machine, Step, tree};

use crate::fixture::{Bottom, change, local_dir, rpc};

const CLIENTS: u64 = 3;
const FOLDER: &str = "TOMBOLO_KILLED_FOLDER";
/// Line printed by a process that serves.
const READY: &str = "ready to be killed";
const SEED: &str = "TOMBOLO_KILLED_SEED";

#[test]
fn kills_keep_exactly_once_on_tmpfs() {
    kill_again_and_again(Bottom::Tmpfs, 40);
}

#[test]
fn kills_keep_exactly_once_on_disk() {
    kill_again_and_again(Bottom::Disk, 40);
}

fn kill_again_and_again(bottom: Bottom, rounds: u64) {
    let folder = bottom.scratch().expect("a directory");
    let tree = folder.path().join("tree");
    for client in 0..CLIENTS {
        std::fs::create_dir_all(tree.join(client.to_string())).expect("a client's directory");
    }
    let mut random = Rng::with_seed(0x5eed ^ rounds ^ bottom as u64);
    for round in 0..rounds {
        let mut process = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "killed::the_process_that_is_killed", "--ignored", "--nocapture"])
            .env(FOLDER, folder.path())
            .env(SEED, round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut said = BufReader::new(process.stdout.take().expect("its output")).lines();
        // One in four is killed during its start, or before.
        let serves = round % 4 == 0 || said.any(|line| line.expect("its output").ends_with(READY));
        std::thread::sleep(Duration::from_micros(random.u64(..30_000)));
        // It runs forever unless something fails.
        let ended = process.try_wait().expect("its status");
        process.kill().expect("kill");
        process.wait().expect("its end");
        assert!(serves && ended.is_none(), "round {round}: {ended:?}");
    }
    let requests: usize = (0..CLIENTS).map(|client| check(folder.path(), &tree, client)).sum();
    // A disk that is busy with other work completes few requests before a kill.
    assert!(requests > rounds as usize / 4, "only {requests} requests in {rounds} rounds");
}

/// Compares the tree with the log.
fn check(folder: &Path, tree: &Path, client: u64) -> usize {
    let log = History::read(folder, client);
    let there = shapes(&Session::attach(&*local_dir(&tree.join(client.to_string()))));
    let mut model = log.replayed();
    let without = shapes(&model.session);
    let with = log.unanswered.map(|(_, seed)| {
        model.perform_now(&step(seed)).expect("a change that succeeds");
        shapes(&model.session)
    });
    assert!(
        there == without || Some(&there) == with.as_ref(),
        "client {client}: {there:?} is not {without:?}"
    );
    log.requests as usize
}

/// Type, size, data and first name.
type Shape = (FileType, u64, u64, String);

/// Returns the shape of all names.
fn shapes(session: &Session) -> BTreeMap<String, Shape> {
    let shown = tree(session, false, None).into_iter();
    shown.map(|(path, it)| (path, (it.file_type, it.size, it.content, it.same_as))).collect()
}

#[test]
#[ignore = "the others run it as a process, and kill it"]
fn the_process_that_is_killed() {
    let folder = std::env::var_os(FOLDER).expect("run by the others only");
    let seed: u64 = std::env::var(SEED).expect("a seed").parse().expect("a number");
    let folder = Path::new(&folder);
    let bottom = Arc::new(Layered::new(local_dir(&folder.join("tree")), Arc::new(Dawdle)));
    let export = replies::open(bottom, &Options::default(), &folder.join("replies")).expect("the state file");
    writeln!(std::io::stdout(), "{READY}").expect("output");
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let session = Session::attach(&export);
            scope.spawn(move || {
                // A panic of one client must end the process, which would run forever otherwise.
                let work = std::panic::AssertUnwindSafe(|| run(folder, session, client, seed));
                if std::panic::catch_unwind(work).is_err() {
                    std::process::exit(1);
                }
            });
        }
    });
}

/// Runs one client: the unanswered request first, then new ones endlessly.
fn run(folder: &Path, mut session: Session, client: u64, seed: u64) {
    let known = History::read(folder, client);
    let (mut model, mut requests) = (known.replayed(), known.requests);
    session.dir = session.node(&client.to_string()).expect("its directory");
    let mut real = Machine::of(session);
    real.is_guarded = true;
    real.find_nodes_of(&model);
    let mut log = Log::open(folder, client);
    let mut random = Rng::with_seed(seed << 8 | client);
    if let Some((xid, seed)) = known.unanswered {
        send(&mut real, client, xid, seed);
        log.answered(xid);
        model.perform_now(&step(seed)).expect("a change that succeeds");
        model.release_all();
        real.find_nodes_of(&model);
    }
    loop {
        requests += 1;
        let (xid, seed) = (requests, choose(&mut model, &mut random));
        log.sent(xid, seed);
        send(&mut real, client, xid, seed);
        log.answered(xid);
    }
}

/// Chooses a change that succeeds, and performs it on the model.
fn choose(model: &mut Machine, random: &mut Rng) -> u64 {
    loop {
        let seed = random.u64(..);
        if model.applies(&step(seed)) && model.perform_now(&step(seed)).is_ok() {
            model.release_all();
            return seed;
        }
    }
}

/// Sends a request, which must succeed.
fn send(real: &mut Machine, client: u64, xid: u32, seed: u64) {
    real.session.cx.key = Some(rpc(client, xid));
    let came = real.perform_now(&step(seed));
    came.unwrap_or_else(|error| panic!("client {client}, {xid}: {:?}: {error}", step(seed)));
    real.session.cx.key = None;
    real.release_all();
}

/// Returns the change of a seed. Repeated as a new request, it fails.
fn step(seed: u64) -> Step {
    let action = match change(&mut Rng::with_seed(seed)) {
        Action::Create(at, mode, flags, _) => Action::Create(at, mode, flags, Exclusive::Yes),
        other => other,
    };
    Step { user: 0, action }
}

/// Delays each change before and after, so that more kills hit it.
struct Dawdle;

impl Around for Dawdle {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        if !call.mutates {
            return inner();
        }
        let time = Duration::from_micros(fastrand::u64(..60));
        spin(time);
        let answer = inner();
        spin(time);
        answer
    }
}

fn spin(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// The parsed log of a client.
#[derive(Default)]
struct History {
    /// The seeds of answered changes.
    answered: Vec<u64>,
    requests: u32,
    unanswered: Option<(u32, u64)>,
}

impl History {
    fn read(folder: &Path, client: u64) -> Self {
        let mut history = Self::default();
        let text = std::fs::read_to_string(folder.join(format!("log{client}"))).unwrap_or_default();
        // An incomplete last line was not written whole: that request was not sent, or its reply not
        // received.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            match line.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["sent", xid, seed] => {
                    let (xid, seed) = (xid.parse().expect("a number"), seed.parse().expect("a number"));
                    assert!(history.unanswered.replace((xid, seed)).is_none(), "one at a time");
                    history.requests = xid;
                }
                ["answered", ..] => {
                    let (_, seed) = history.unanswered.take().expect("it was sent");
                    history.answered.push(seed);
                }
                _ => panic!("{line:?}"),
            }
        }
        history
    }

    /// Returns a model after all answered changes.
    fn replayed(&self) -> Machine {
        let mut session = Session::attach(&Memory::default());
        session.dir = session.dir("home");
        let mut model = Machine::of(session);
        for seed in &self.answered {
            model.perform_now(&step(*seed)).expect("a change that succeeds");
            model.release_all();
        }
        model
    }
}

struct Log(LogFile);

impl Log {
    fn open(folder: &Path, client: u64) -> Self {
        let path = folder.join(format!("log{client}"));
        let log = OpenOptions::new().create(true).append(true).open(path).expect("the log");
        Self(log)
    }

    /// Writes a line with one write, which a kill cannot split.
    fn write(&mut self, line: &str) {
        self.0.write_all(line.as_bytes()).expect("the log");
    }

    fn sent(&mut self, xid: u32, seed: u64) {
        self.write(&format!("sent {xid} {seed}\n"));
    }

    fn answered(&mut self, xid: u32) {
        self.write(&format!("answered {xid}\n"));
    }
}
