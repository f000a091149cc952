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

use tombolo_core::fs::{Device, FileSystem, FileType, Mode, NewMode, NodeId, RenameFlags, SetAttr};
use tombolo_core::{Answer, Ctx};
use tombolo_layer_basic::Layered;
use tombolo_layer_basic::around::{Around, Call, Payload};
use tombolo_layer_replies as replies;
use tombolo_layer_replies::Options;
use tombolo_test_support::name;

use crate::fixture::{Bottom, attach, keyed, local_dir, plain, rpc};

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
    let mut random = Random(0x5eed ^ rounds ^ bottom as u64);
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
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        // It runs forever unless something fails.
        let ended = process.try_wait().expect("its status");
        process.kill().expect("kill");
        process.wait().expect("its end");
        assert!(serves && ended.is_none(), "round {round}: {ended:?}");
    }
    let requests: usize = (0..CLIENTS).map(|client| check(folder.path(), &tree, client)).sum();
    assert!(requests > 2 * rounds as usize, "only {requests} requests in {rounds} rounds");
}

/// Compares the tree with the log.
fn check(folder: &Path, tree: &Path, client: u64) -> usize {
    let mut history = History::read(folder, client);
    let in_doubt = history.unanswered.take();
    let there = look(&tree.join(client.to_string()));
    let without = history.names();
    let with = in_doubt.map(|(_, action)| {
        history.model.apply(action);
        history.names()
    });
    assert!(
        there == without || Some(&there) == with.as_ref(),
        "client {client}: {there:?} is not {without:?}"
    );
    history.requests as usize
}

fn look(directory: &Path) -> BTreeMap<String, Kind> {
    let entries = std::fs::read_dir(directory).expect("a listing").map(|entry| entry.expect("an entry"));
    let kind = |entry: &std::fs::DirEntry| {
        let metadata = entry.metadata().expect("attributes");
        match metadata.file_type() {
            found if found.is_dir() => Kind::Directory,
            found if found.is_symlink() => Kind::Symlink,
            found if found.is_file() => Kind::File(metadata.len()),
            _ => Kind::Fifo,
        }
    };
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), kind(&entry))).collect()
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
            let (fs, cx) = attach(&export);
            scope.spawn(move || {
                // A panic of one client must end the process, which would run forever otherwise.
                let work = std::panic::AssertUnwindSafe(|| run(folder, &*fs, &cx, client, seed));
                if std::panic::catch_unwind(work).is_err() {
                    std::process::exit(1);
                }
            });
        }
    });
}

/// Runs one client: the unanswered request first, then new ones endlessly.
fn run(folder: &Path, fs: &dyn FileSystem, cx: &Ctx, client: u64, seed: u64) {
    let History { mut model, mut requests, unanswered, .. } = History::read(folder, client);
    let home = fs.lookup(cx, NodeId::ROOT, name(&client.to_string())).wait().expect("its directory").node;
    let mut log = Log::open(folder, client);
    let mut random = Random(seed << 8 | client);
    if let Some((xid, action)) = unanswered {
        let came = send(fs, &keyed(cx, rpc(client, xid)), home, action);
        came.unwrap_or_else(|error| panic!("client {client}, {xid}: {action:?}, sent again: {error}"));
        log.answered(xid);
        model.apply(action);
    }
    loop {
        requests += 1;
        let (xid, action) = (requests, model.choose(&mut random));
        log.sent(xid, action);
        let came = send(fs, &keyed(cx, rpc(client, xid)), home, action);
        came.unwrap_or_else(|error| panic!("client {client}, {xid}: {action:?}: {error}"));
        log.answered(xid);
        model.apply(action);
    }
}

/// Delays each change before and after, so that more kills hit it.
struct Dawdle;

impl Around for Dawdle {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        if !call.mutates {
            return inner();
        }
        let nanos = Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id());
        let time = Duration::from_micros(Random(nanos).below(60));
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

/// Pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.below(from.len() as u64) as usize).copied()
    }
}

/// A change; names are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Mkdir(u8),
    Create(u8),
    Symlink(u8),
    Fifo(u8),
    Link(u8, u8),
    Unlink(u8),
    Rmdir(u8),
    Rename(u8, u8),
    Cut(u8, u8),
}

impl Action {
    fn line(self) -> String {
        let (word, one, other) = match self {
            Self::Mkdir(at) => ("mkdir", at, 0),
            Self::Create(at) => ("create", at, 0),
            Self::Symlink(at) => ("symlink", at, 0),
            Self::Fifo(at) => ("fifo", at, 0),
            Self::Link(from, to) => ("link", from, to),
            Self::Unlink(at) => ("unlink", at, 0),
            Self::Rmdir(at) => ("rmdir", at, 0),
            Self::Rename(from, to) => ("rename", from, to),
            Self::Cut(at, size) => ("cut", at, size),
        };
        format!("{word} {one} {other}")
    }

    fn of_line(words: &[&str]) -> Option<Self> {
        let [word, one, other] = words else { return None };
        let (one, other) = (one.parse().ok()?, other.parse().ok()?);
        Some(match *word {
            "mkdir" => Self::Mkdir(one),
            "create" => Self::Create(one),
            "symlink" => Self::Symlink(one),
            "fifo" => Self::Fifo(one),
            "link" => Self::Link(one, other),
            "unlink" => Self::Unlink(one),
            "rmdir" => Self::Rmdir(one),
            "rename" => Self::Rename(one, other),
            "cut" => Self::Cut(one, other),
            _ => return None,
        })
    }
}

fn send(fs: &dyn FileSystem, cx: &Ctx, home: NodeId, action: Action) -> tombolo_core::Result<()> {
    let text = |at: u8| format!("n{at}");
    let mode = NewMode::settled(Mode::new(0o755));
    let plain_cx = keyed(cx, None);
    let node = |at: u8| fs.lookup(&plain_cx, home, name(&text(at))).wait().map(|entry| entry.node);
    match action {
        Action::Mkdir(at) => fs.mkdir(cx, home, name(&text(at)), mode).map(drop),
        Action::Create(at) => {
            let created = fs.create(cx, home, name(&text(at)), &plain()).wait()?;
            let file = tombolo_core::fs::File { node: created.entry.node, open: created.open };
            fs.release(cx, file);
            Answer::ok(())
        }
        Action::Symlink(at) => fs.symlink(cx, home, name(&text(at)), b"target").map(drop),
        Action::Fifo(at) => {
            fs.mknod(cx, home, name(&text(at)), FileType::Fifo, mode, Device::default()).map(drop)
        }
        Action::Link(from, to) => fs.link(cx, node(from)?, home, name(&text(to))).map(drop),
        Action::Unlink(at) => fs.unlink(cx, home, name(&text(at))).map(drop),
        Action::Rmdir(at) => fs.rmdir(cx, home, name(&text(at))).map(drop),
        Action::Rename(from, to) => {
            fs.rename(cx, home, name(&text(from)), home, name(&text(to)), RenameFlags::empty()).map(drop)
        }
        Action::Cut(at, size) => {
            let node = node(at)?;
            let guard = fs.getattr(&plain_cx, node, None).wait()?.ctime;
            let set = SetAttr { size: Some(u64::from(size)), guard_ctime: Some(guard), ..SetAttr::default() };
            fs.setattr(cx, node, None, &set).map(drop)
        }
    }
    .wait()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    Symlink,
    Fifo,
    /// A file of this size.
    File(u64),
}

/// Contents of a client's directory: the node of each name, and all nodes.
#[derive(Default)]
struct Model {
    names: BTreeMap<u8, usize>,
    nodes: Vec<Kind>,
}

const NAMES: u8 = 12;

impl Model {
    /// Chooses a change that succeeds.
    fn choose(&self, random: &mut Random) -> Action {
        let absent: Vec<u8> = (0..NAMES).filter(|at| !self.names.contains_key(at)).collect();
        let of = |wanted: fn(Kind) -> bool| -> Vec<u8> {
            self.names.iter().filter(|(_, node)| wanted(self.nodes[**node])).map(|(at, _)| *at).collect()
        };
        let files = of(|kind| matches!(kind, Kind::File(_)));
        let directories = of(|kind| kind == Kind::Directory);
        let others = of(|kind| kind != Kind::Directory);
        loop {
            let (new, file, other) = (random.pick(&absent), random.pick(&files), random.pick(&others));
            let chosen = match random.below(10) {
                0 => new.map(Action::Mkdir),
                1 | 2 => new.map(Action::Create),
                3 => new.map(Action::Symlink),
                4 => new.map(Action::Fifo),
                5 => file.zip(new).map(|(from, to)| Action::Link(from, to)),
                6 => other.map(Action::Unlink),
                7 => random.pick(&directories).map(Action::Rmdir),
                8 => other
                    .zip(if random.below(2) == 0 { new } else { random.pick(&others) })
                    .map(|(from, to)| Action::Rename(from, to)),
                _ => file.map(|at| Action::Cut(at, random.below(200) as u8)),
            };
            if let Some(action) = chosen {
                return action;
            }
        }
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Mkdir(at) => self.make(at, Kind::Directory),
            Action::Create(at) => self.make(at, Kind::File(0)),
            Action::Symlink(at) => self.make(at, Kind::Symlink),
            Action::Fifo(at) => self.make(at, Kind::Fifo),
            Action::Link(from, to) => {
                self.names.insert(to, self.names[&from]);
            }
            Action::Unlink(at) | Action::Rmdir(at) => {
                self.names.remove(&at);
            }
            Action::Rename(from, to) => {
                // A rename between two names of one node has no effect (rename(2)).
                if self.names.get(&from) != self.names.get(&to) {
                    let node = self.names.remove(&from).expect("it is there");
                    self.names.insert(to, node);
                }
            }
            Action::Cut(at, size) => self.nodes[self.names[&at]] = Kind::File(u64::from(size)),
        }
    }

    fn make(&mut self, at: u8, kind: Kind) {
        self.nodes.push(kind);
        self.names.insert(at, self.nodes.len() - 1);
    }
}

/// The parsed log of a client.
#[derive(Default)]
struct History {
    model: Model,
    requests: u32,
    unanswered: Option<(u32, Action)>,
}

impl History {
    fn read(folder: &Path, client: u64) -> Self {
        let mut history = Self::default();
        let text = std::fs::read_to_string(folder.join(format!("log{client}"))).unwrap_or_default();
        // An incomplete last line was not written whole: that request was not sent, or its reply not
        // received.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["sent", xid, action @ ..] => {
                    let xid = xid.parse().expect("a number");
                    assert!(history.unanswered.is_none(), "one at a time");
                    history.unanswered = Some((xid, Action::of_line(action).expect("an action")));
                    history.requests = xid;
                }
                ["answered", ..] => {
                    let (_, action) = history.unanswered.take().expect("it was sent");
                    history.model.apply(action);
                }
                _ => panic!("{line:?}"),
            }
        }
        history
    }

    fn names(&self) -> BTreeMap<String, Kind> {
        self.model.names.iter().map(|(at, node)| (format!("n{at}"), self.model.nodes[*node])).collect()
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

    fn sent(&mut self, xid: u32, action: Action) {
        self.write(&format!("sent {xid} {}\n", action.line()));
    }

    fn answered(&mut self, xid: u32) {
        self.write(&format!("answered {xid}\n"));
    }
}
