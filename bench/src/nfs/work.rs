//! Timed operations on a server, by our client and by clients in their own processes.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tombolo_sys::epoll::{Epoll, Interest};
use tombolo_wire_nfs3::args::StableHow;

use super::Wait;
use super::client::{
    Call, Connection, Handle, Mounted, Page, Records, Reply, commit, committed, create, created, getattr,
    offset_at, page, read, readdirplus, remove, removed, write, written,
};
use crate::drive::{Direction, Job, Kind, content};
use crate::error::{Doing, Error, Result, same};
use crate::files::{Tree, fill};
use crate::measure::{Clock, Work, spare_cores};
use crate::peer::{LIBNFS, Nfs, find, this_program};

/// Size of a GETATTR reply with its record mark (RFC 1813 §3.3.1), for bare exchanges of the same size.
pub const GETATTR_REPLY_BYTES: usize = 4 + 24 + 4 + 84;
/// Size of a READ reply with its record mark and attributes, without the data (§3.3.6).
pub const READ_REPLY_BYTES: usize = 4 + 24 + 4 + 88 + 12;
/// Size of a WRITE reply with its record mark and all attributes (§3.3.7).
pub const WRITE_REPLY_BYTES: usize = 4 + 24 + 4 + 28 + 88 + 16;
const MARK_BYTES: usize = 4;
/// Size of a listing page (`maxcount`), in bytes.
const PAGE_BYTES: u32 = 64 << 10;

/// Calls GETATTR for the file `path`, relative to the export, with this many outstanding on one connection;
/// returns the size of a call too.
pub fn getattrs(server: &Nfs, path: &str, wait: Wait, outstanding: u32) -> Result<(Work<'static>, usize)> {
    let mut mounted = Mounted::new(server, wait)?;
    let mut call = getattr(&mounted.walk(path)?);
    let (mut connection, call_bytes) = (mounted.connection, call.bytes());
    let work = Work::pipelined(outstanding, move |count, laps| {
        connection.repeat(&mut call, outstanding, count, |_, _| {}, || laps.lap())
    });
    Ok((work, call_bytes))
}

/// Transfers the file `path` of [`Tree::LARGE_BYTES`] bytes in pieces, repeatedly: READ from the server's
/// page cache, or unstable WRITE and one COMMIT at the end of each turn. Returns the size of a call too.
pub fn transfer(
    server: &Nfs,
    path: &str,
    wait: Wait,
    direction: Direction,
    piece_bytes: u32,
    outstanding: u32,
) -> Result<(Work<'static>, usize)> {
    let mut mounted = Mounted::new(server, wait)?;
    let file = mounted.walk(path)?;
    let (mut call, mut commit) = match direction {
        // No measured server omits the attributes, without which a reply would be shorter.
        Direction::Read => {
            let reply_bytes = READ_REPLY_BYTES - MARK_BYTES + piece_bytes as usize;
            (read(&file, piece_bytes).expect_reply_bytes(reply_bytes), None)
        }
        _ => (write(&file, &content(piece_bytes as usize), StableHow::Unstable), Some(commit(&file))),
    };
    let (offset_at, call_bytes, mut connection) = (offset_at(&file), call.bytes(), mounted.connection);
    let (piece_bytes, mut next) = (u64::from(piece_bytes), 0);
    let run = move |count, clock: &mut Clock| {
        let (pieces, first) = (Tree::LARGE_BYTES as u64 / piece_bytes, next);
        let patch =
            |call: &mut Call, number| call.patch_u64(offset_at, (first + number) % pieces * piece_bytes);
        clock.start();
        connection.repeat(&mut call, outstanding, count, patch, || {})?;
        if let Some(commit) = &mut commit {
            let mut reply = Reply::default();
            connection.call(commit, &mut reply)?;
            committed(&reply)?;
        }
        clock.lap_of(count);
        next = (first + count) % pieces;
        Ok(())
    };
    Ok((Work::new(run).bytes(piece_bytes), call_bytes))
}

/// Creates, writes (4 KiB with FILE_SYNC) and removes files in the folder `path`, one call outstanding;
/// `name` distinguishes contestants.
pub fn small_files(server: &Nfs, path: &str, wait: Wait, name: &str) -> Result<Work<'static>> {
    let mut mounted = Mounted::new(server, wait)?;
    let folder = mounted.walk(path)?;
    let (mut connection, mut reply) = (mounted.connection, Reply::default());
    let (content, name, mut number) = (vec![b'z'; Tree::SMALL_BYTES], name.to_owned(), 0);
    let once = move || {
        number += 1;
        let name = format!("{name}.{number}");
        connection.call(&mut create(&folder, name.as_bytes()), &mut reply)?;
        let file = created(&reply)?;
        connection.call(&mut write(&file, &content, StableHow::FileSync), &mut reply)?;
        written(&reply, content.len(), StableHow::FileSync)?;
        connection.call(&mut remove(&folder, name.as_bytes()), &mut reply)?;
        removed(&reply)
    };
    Ok(Work::repeat(1, once).per_second(true))
}

/// Reads a complete directory; before each call, `before` receives the page after which it reads. Returns the
/// number of entries without `.` and `..`.
fn list_all(
    connection: &mut Connection,
    directory: &Handle,
    reply: &mut Reply,
    mut before: impl FnMut(&Page),
) -> Result<usize> {
    let mut at = Page::default();
    let mut entries = 0;
    while !at.end {
        before(&at);
        connection.call(&mut readdirplus(directory, &at, PAGE_BYTES), reply)?;
        let next = page(reply)?;
        if next.entries == 0 && !next.end {
            let (what, answer) = ("READDIRPLUS".to_owned(), "no entries and no end".to_owned());
            return Err(Error::Wrong { what, answer });
        }
        entries += next.named;
        at = next;
    }
    Ok(entries)
}

/// Lists the directory `path`, with this many entries, repeatedly.
pub fn warm_list(server: &Nfs, path: &str, wait: Wait, entries: usize) -> Result<Work<'static>> {
    let mut mounted = Mounted::new(server, wait)?;
    let directory = mounted.walk(path)?;
    let (mut connection, mut reply) = (mounted.connection, Reply::default());
    Ok(Work::new(move |count, clock| {
        for _ in 0..count {
            let found = clock.time(|| list_all(&mut connection, &directory, &mut reply, |_| {}))?;
            same("READDIRPLUS", found, entries)?;
        }
        Ok(())
    }))
}

/// Lists directories unknown to the server, as are their files. The host has just created them, so that its
/// kernel caches everything. They are created in the folder `path`, with this many entries; `name`
/// distinguishes contestants.
pub fn cold_list(
    server: &Nfs,
    shared: &Path,
    path: &str,
    wait: Wait,
    name: &str,
    entries: usize,
) -> Result<Work<'static>> {
    let mut mounted = Mounted::new(server, wait)?;
    let parent = mounted.walk(path)?;
    let (name, on_host) = (name.to_owned(), shared.join(path));
    let (mut number, mut reply) = (0, Reply::default());
    let run = move |count, clock: &mut Clock| {
        for _ in 0..count {
            number += 1;
            let name = format!("{name}.{number}");
            let folder = on_host.join(&name);
            fill_folder(&folder, entries)?;
            let directory = mounted.lookup(&parent, &name)?;
            let found = clock.time(|| list_all(&mut mounted.connection, &directory, &mut reply, |_| {}))?;
            fs::remove_dir_all(&folder).doing_to("remove", &folder)?;
            same("READDIRPLUS", found, entries)?;
        }
        Ok(())
    };
    Ok(Work::new(run).count_max(1))
}

/// Creates a directory with this many empty files.
pub fn fill_folder(folder: &Path, entries: usize) -> Result<()> {
    fill(folder, (0..entries).map(|number| (format!("entry-{number:06}").into(), 0)))
}

/// Client that lists a directory repeatedly. Its calls replay a recorded listing, so that replies need no
/// parsing: the lister shares the caller's core, and must not occupy it.
pub struct Lister {
    connection: Connection,
    pages: Vec<Call>,
}

impl Lister {
    /// Creates a lister of the directory `path` with this many entries, by listing it once.
    pub fn new(server: &Nfs, path: &str, entries: usize) -> Result<Self> {
        let mut mounted = Mounted::new(server, Wait::Sleep)?;
        let directory = mounted.walk(path)?;
        let mut connection = mounted.connection;
        let mut pages = Vec::new();
        let found = list_all(&mut connection, &directory, &mut Reply::default(), |from| {
            pages.push(readdirplus(&directory, from, PAGE_BYTES));
        })?;
        same("READDIRPLUS", found, entries)?;
        Ok(Self { connection, pages })
    }

    /// Lists while `other` runs, which starts after the first page.
    fn during<T>(&mut self, other: impl FnOnce() -> T) -> Result<T> {
        let (stop, listed) = (AtomicBool::new(false), AtomicU64::new(0));
        let (stop, listed, Self { connection, pages }) = (&stop, &listed, self);
        thread::scope(|scope| {
            let lister = scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for call in &mut *pages {
                        connection.repeat(call, 1, 1, |_, _| {}, || {})?;
                        listed.fetch_add(1, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                }
                Ok::<(), Error>(())
            });
            while listed.load(Ordering::Relaxed) == 0 && !lister.is_finished() {
                thread::yield_now();
            }
            let done = other();
            stop.store(true, Ordering::Relaxed);
            let gone = || Err(Error::Absent("the listing thread ended".to_owned()));
            lister.join().unwrap_or_else(|_| gone()).map(|()| done)
        })
    }
}

/// Runs an operation while a directory is listed on another connection.
pub fn beside(mut other: Work<'static>, mut lister: Lister) -> Work<'static> {
    Work::new(move |count, clock| lister.during(|| other.run(count, clock))?)
}

/// Number of outstanding calls per client of a crowd.
const CROWD_OUTSTANDING: u32 = 4;
const LOOK: Duration = Duration::from_millis(100);
/// Number of bytes stored of a reply, enough to check it.
const HEAD_BYTES: usize = 64;

/// Clients with a connection each, all driven by one thread in the order of replies.
pub struct Crowd {
    clients: Vec<(Connection, Records)>,
    call: Call,
    epoll: Epoll,
}

impl Crowd {
    pub fn connect(server: &Nfs, path: &str, clients: usize) -> Result<Self> {
        tombolo_sys::process::raise_open_file_limit().doing(|| "open many files".to_owned())?;
        let call = getattr(&Mounted::new(server, Wait::Sleep)?.walk(path)?);
        let epoll = Epoll::new().doing(|| "poll sockets".to_owned())?;
        let mut connections = Vec::with_capacity(clients);
        for token in 0..clients {
            // `Spin` sockets never block: the thread sleeps in epoll, for all of them.
            let connection = Connection::connect(server.nfs, Wait::Spin)?;
            epoll.add(&connection, token as u64, Interest::Readable).doing(|| "poll sockets".to_owned())?;
            connections.push((connection, Records::new(HEAD_BYTES)));
        }
        Ok(Self { clients: connections, call, epoll })
    }

    /// Runs all clients for this time; returns the number of replies of each.
    pub fn run(&mut self, time: Duration) -> Result<Vec<u64>> {
        for (connection, _) in &mut self.clients {
            for place in 0..CROWD_OUTSTANDING {
                connection.send(&mut self.call, place)?;
            }
        }
        let mut answers = vec![0; self.clients.len()];
        let mut events = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.epoll.wait(&mut events, Some(LOOK)).doing(|| "poll sockets".to_owned())?;
            for event in &events {
                let at = event.token as usize;
                let client = self.clients.get_mut(at).zip(answers.get_mut(at));
                let Some(((connection, records), answers)) = client else {
                    return Err(Error::Wrong { what: "epoll".to_owned(), answer: format!("client {at}") });
                };
                let places = connection.receive(&self.call, records)?;
                *answers += places.len() as u64;
                for place in places {
                    connection.send(&mut self.call, place)?;
                }
            }
        }
        Ok(answers)
    }
}

/// A running client in its own process, connected to one server, on the caller's core, and controlled turn
/// by turn: libnfs (`bench/peers/libnfs-driver.c`), or one of those of [`drive`](crate::drive).
pub struct Driver {
    name: String,
    is_libnfs: bool,
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Driver {
    /// Starts a client. It writes the file `name` in the export's root; libnfs also reads that file.
    pub fn start(kind: Kind, server: &Nfs, name: &str) -> Result<Self> {
        let (nfs, mount, is_libnfs) = (server.nfs, server.mount, kind == Kind::Libnfs);
        let (mut command, client);
        if is_libnfs {
            (client, command) = ("libnfs-driver".to_owned(), Command::new(find(LIBNFS)?));
            command.args([nfs.ip().to_string(), nfs.port().to_string(), mount.port().to_string()]);
        } else {
            client = kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
            command = Command::new(this_program()?);
            command.args(["drive", &client, &nfs.to_string(), &mount.to_string()]);
        }
        command.args([&*server.export, name]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().doing(|| format!("start {client}"))?;
        let core = spare_cores().first().copied().unwrap_or_default();
        tombolo_sys::affinity::pin(Some(child.id()), &[core]).doing(|| format!("pin {client}"))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let closed = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let from = from.ok_or_else(closed).doing(|| format!("talk to {client}"))?;
        Ok(Self { name: client, is_libnfs, child, to, from: BufReader::new(from) })
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Executes `command`; returns the total time and those of its parts, if measured.
    pub fn run(&mut self, command: &str) -> Result<(Duration, Vec<Duration>)> {
        self.exchange(command).doing(|| format!("{}: {command}", self.name))
    }

    fn exchange(&mut self, command: &str) -> std::io::Result<(Duration, Vec<Duration>)> {
        if let Some(to) = &mut self.to {
            writeln!(to, "{command}")?;
            to.flush()?;
        }
        let mut took = [0; 8];
        self.from.read_exact(&mut took)?;
        let mut count = [0; 4];
        self.from.read_exact(&mut count)?;
        let mut laps = vec![0; 4 * u32::from_ne_bytes(count) as usize];
        self.from.read_exact(&mut laps)?;
        let lap = |bytes: &[u8; 4]| Duration::from_nanos(u64::from(u32::from_ne_bytes(*bytes)));
        Ok((Duration::from_nanos(u64::from_ne_bytes(took)), laps.as_chunks().0.iter().map(lap).collect()))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The process ends with its standard input.
        drop(self.to.take());
        let _ended = self.child.wait();
    }
}

/// Transfers files by a client in its own process, at most `count_max` in a turn.
pub fn moves(mut driver: Driver, job: Job, count_max: u64) -> Work<'static> {
    let Job { direction, limit, piece_bytes, file_bytes } = job;
    let word = if direction == Direction::Read { "fetch" } else { "store" };
    let command = match driver.is_libnfs {
        // libnfs's driver names these commands differently, as it also has some for data in memory.
        true => format!("{word} {limit} {} {piece_bytes} {file_bytes}", job.pieces()),
        false => job.to_string(),
    };
    let caller = driver.process();
    let run = move |count, clock: &mut Clock| {
        for _ in 0..count {
            let (took, _) = driver.run(&command)?;
            clock.record(took, 1);
        }
        Ok(())
    };
    Work::new(run).count_max(count_max).bytes(file_bytes as u64).caller(caller)
}

/// Returns an operation by libnfs with this many calls outstanding: GETATTR, or READ or unstable WRITE (with
/// one COMMIT) of the large file of the tree in pieces of `piece_bytes`.
pub fn driven(
    server: &Nfs,
    procedure: &'static str,
    piece_bytes: Option<u32>,
    outstanding: u32,
) -> Result<Work<'static>> {
    let mut driver = Driver::start(Kind::Libnfs, server, &Tree::large().to_string_lossy())?;
    let (caller, file) = (driver.process(), Tree::LARGE_BYTES);
    let pieces = piece_bytes.map_or_else(String::new, |bytes| format!(" {bytes} {file}"));
    let run = move |count, clock: &mut Clock| {
        let (took, laps) = driver.run(&format!("{procedure} {outstanding} {count}{pieces}"))?;
        if laps.is_empty() {
            clock.record(took, count);
        }
        laps.into_iter().for_each(|lap| clock.record(lap, 1));
        Ok(())
    };
    Ok(Work::new(run).bytes(piece_bytes.map(u64::from)).caller(caller).per_second(outstanding > 1))
}
