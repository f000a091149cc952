//! Virtio-fs guests that change files continuously while their server is killed repeatedly; each reply is
//! compared with a model of the guest's operations.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tombolo_sys::lock::{self, LockKind, LockRange};
use tombolo_vhost_driver::{Driver, DriverQueue, DriverSettings, GuestBuffer};
use tombolo_wire_fuse::layout::attr::{AttrOut, EntryOut, GetattrIn, SetattrIn, SetattrValid};
use tombolo_wire_fuse::layout::dir::{DirentPlus, ForgetIn, LinkIn, MkdirIn, RenameIn};
use tombolo_wire_fuse::layout::header::{InHeader, OutHeader};
use tombolo_wire_fuse::layout::init::InitIn;
use tombolo_wire_fuse::layout::lock::{F_UNLCK, F_WRLCK, FileLock, LK_FLOCK, LkIn};
use tombolo_wire_fuse::layout::open::{CreateIn, OpenIn, OpenOut, ReleaseIn};
use tombolo_wire_fuse::layout::rw::{ReadIn, WriteIn, WriteOut};
use tombolo_wire_fuse::{Errno, Opcode};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::{PATIENCE, Scratch, Server, signal};
use crate::disk::next_child;

const ROOT: u64 = 1;
const GUESTS: u64 = 4;
const NAMES: u64 = 12;
const OPENINGS_MAX: usize = 3;

const O_RDWR: u32 = 2;
const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;

/// A guest kernel with one outstanding request.
struct Guest {
    queues: Vec<DriverQueue>,
    request: GuestBuffer,
    reply: GuestBuffer,
    forget: GuestBuffer,
    unique: u64,
    _driver: Driver,
}

impl Guest {
    fn mount(socket: &Path) -> Guest {
        let settings = DriverSettings { queues: 2, ..DriverSettings::default() };
        let (driver, mut queues) = Driver::connect(socket, settings).expect("connect");
        let [request, reply] = [256 << 10, 128 << 10].map(|len| queues[1].alloc(len).expect("memory"));
        let forget = queues[0].alloc(64).expect("memory");
        let mut guest = Guest { queues, request, reply, forget, unique: 2, _driver: driver };
        let flags = u32::MAX;
        let init = InitIn { major: 7, minor: 36, flags, ..Default::default() };
        guest.ask(Opcode::Init, 0, &[init.as_bytes()]).expect("INIT");
        guest
    }

    fn encode(&mut self, opcode: Opcode, node: u64, parts: &[&[u8]]) -> Vec<u8> {
        let args = parts.concat();
        self.unique += 2;
        let len = u32::try_from(size_of::<InHeader>() + args.len()).expect("short");
        let (opcode, unique) = (opcode as u32, self.unique);
        let header = InHeader { len, opcode, unique, nodeid: node, ..Default::default() };
        [header.as_bytes(), &args].concat()
    }

    /// Sends a request. Returns the reply's body or the errno.
    fn ask(&mut self, opcode: Opcode, node: u64, parts: &[&[u8]]) -> Result<Vec<u8>, Errno> {
        let bytes = self.encode(opcode, node, parts);
        let queue = &mut self.queues[1];
        queue.write(self.request, &bytes);
        let parts = [self.request.first(bytes.len() as u32).readable(), self.reply.writable()];
        let head = queue.submit(&parts).expect("room");
        let used = queue.wait_used(PATIENCE).unwrap_or_else(|error| panic!("{opcode:?}: {error}"));
        assert_eq!(used.head, head);
        let mut reply = vec![0; used.written as usize];
        queue.read(self.reply, &mut reply);
        let (head, body) = OutHeader::read_from_prefix(&reply).expect("a reply");
        assert_eq!((head.len as usize, head.unique), (reply.len(), self.unique), "{opcode:?}");
        if head.error == 0 {
            Ok(body.to_vec())
        } else {
            Err(Errno::from_wire(-head.error as u16).expect("an errno"))
        }
    }

    fn lock(&mut self, node: u64, fh: u64, kind: u32, lk_flags: u32) -> Result<(), Errno> {
        let lk = FileLock { start: 0, end: 9, kind, pid: 1 };
        let lk = LkIn { fh, owner: 7, lk, lk_flags, ..Default::default() };
        self.ask(Opcode::Setlk, node, &[lk.as_bytes()]).map(drop)
    }

    fn forget(&mut self, node: u64, count: u64) {
        let bytes = self.encode(Opcode::Forget, node, &[ForgetIn { nlookup: count }.as_bytes()]);
        let queue = &mut self.queues[0];
        queue.write(self.forget, &bytes);
        queue.submit(&[self.forget.first(bytes.len() as u32).readable()]).expect("room");
        queue.wait_used(PATIENCE).expect("taken");
    }
}

fn entry(body: &[u8]) -> (EntryOut, &[u8]) {
    let (entry, rest) = EntryOut::read_from_prefix(body).expect("an entry");
    (entry, rest)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    Symlink,
}

/// The guest's state of an inode.
#[derive(Debug)]
struct Inode {
    kind: Kind,
    data: Vec<u8>,
    names: u32,
    node: u64,
    look_ups: u64,
}

/// Workload of a guest in its own directory.
struct Work {
    guest: Guest,
    home: u64,
    random: fastrand::Rng,
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    /// Handles opened for appending, and their inodes.
    openings: Vec<(u64, usize)>,
    done: u64,
}

impl Work {
    fn new(socket: &Path, number: u64, seed: u64) -> Work {
        let mut guest = Guest::mount(socket);
        let name = format!("guest{number}\0");
        let how = MkdirIn { mode: 0o755, umask: 0 };
        let body = guest.ask(Opcode::Mkdir, ROOT, &[how.as_bytes(), name.as_bytes()]).expect("a directory");
        let home = entry(&body).0.nodeid;
        let random = fastrand::Rng::with_seed(seed ^ number);
        let (inodes, names, openings) = (Vec::new(), BTreeMap::new(), Vec::new());
        Work { guest, home, random, inodes, names, openings, done: 0 }
    }

    fn any_name(&mut self) -> String {
        format!("n{}", self.random.u64(..NAMES))
    }

    fn any_inode(&mut self) -> Option<(String, usize)> {
        let all: Vec<_> = self.names.iter().map(|(name, index)| (name.clone(), *index)).collect();
        (!all.is_empty()).then(|| all[self.random.usize(..all.len())].clone())
    }

    fn any_file(&mut self) -> Option<(String, usize)> {
        self.any_inode().filter(|(_, index)| self.inodes[*index].kind == Kind::File)
    }

    fn at_home(&mut self, opcode: Opcode, how: &[u8], name: &str) -> Result<Vec<u8>, Errno> {
        self.guest.ask(opcode, self.home, &[how, name.as_bytes(), b"\0"])
    }

    /// Returns the body of a reply about a new name; `None` if the name was rightly refused as existing.
    #[track_caller]
    fn unless_named(&self, name: &str, answer: Result<Vec<u8>, Errno>) -> Option<Vec<u8>> {
        if self.names.contains_key(name) {
            assert_eq!(answer.expect_err("it is there"), Errno::EEXIST);
            return None;
        }
        Some(answer.unwrap_or_else(|errno| panic!("{name}: {errno:?}")))
    }

    /// Counts a look-up of an inode, with the guest's number for it.
    fn looked_up(&mut self, index: usize, found: &EntryOut) {
        let inode = &mut self.inodes[index];
        if inode.look_ups > 0 {
            assert_eq!(inode.node, found.nodeid, "the node has another number now");
        }
        inode.node = found.nodeid;
        inode.look_ups += 1;
        assert_eq!((found.attr.size, found.attr.nlink.min(1)), (inode.size(found), 1));
    }

    /// Returns the node of a named inode, looking it up if it was forgotten.
    fn node(&mut self, name: &str, index: usize) -> u64 {
        if self.inodes[index].look_ups == 0 {
            let body = self.at_home(Opcode::Lookup, &[], name).expect("a node");
            self.looked_up(index, &entry(&body).0);
        }
        self.inodes[index].node
    }

    fn made(&mut self, kind: Kind, data: Vec<u8>, name: String, found: &EntryOut) -> usize {
        self.inodes.push(Inode { kind, data, names: 1, node: 0, look_ups: 0 });
        let index = self.inodes.len() - 1;
        self.names.insert(name, index);
        self.looked_up(index, found);
        index
    }

    fn unnamed(&mut self, name: &str) {
        let index = self.names.remove(name).expect("a name");
        self.inodes[index].names -= 1;
    }

    /// Closes the inode's handles.
    fn close(&mut self, index: usize) {
        let (close, keep) = self.openings.drain(..).partition(|(_, open)| *open == index);
        self.openings = keep;
        for (handle, index) in close {
            let release = ReleaseIn { fh: handle, ..Default::default() };
            let node = self.inodes[index].node;
            self.guest.ask(Opcode::Release, node, &[release.as_bytes()]).expect("RELEASE");
        }
    }

    fn step(&mut self) {
        self.done += 1;
        let name = self.any_name();
        match self.random.u32(..14) {
            0 | 1 => self.create(name),
            2 => self.make(Kind::Directory, name),
            3 => self.make(Kind::Symlink, name),
            4 => self.link(name),
            5 | 6 => self.remove(&name),
            7 => self.rename(name),
            8 | 9 => self.append(),
            10 => self.cut(),
            11 => self.forget(),
            12 => self.list(),
            _ => self.look(&name),
        }
    }

    fn create(&mut self, name: String) {
        let how = CreateIn { flags: O_RDWR | O_EXCL | O_APPEND, mode: 0o100_444, ..Default::default() };
        let answer = self.at_home(Opcode::Create, how.as_bytes(), &name);
        let Some(body) = self.unless_named(&name, answer) else { return };
        let (found, rest) = entry(&body);
        let (open, _) = OpenOut::read_from_prefix(rest).expect("an opening");
        let index = self.made(Kind::File, Vec::new(), name, &found);
        // While it is open, with or without a name.
        self.lock(index, open.fh, F_WRLCK).expect("a lock");
        self.openings.push((open.fh, index));
        if self.openings.len() > OPENINGS_MAX {
            let (_, oldest) = self.openings[0];
            self.close(oldest);
        }
    }

    fn lock(&mut self, index: usize, fh: u64, kind: u32) -> Result<(), Errno> {
        let node = self.inodes[index].node;
        self.guest.lock(node, fh, kind, LK_FLOCK)
    }

    fn make(&mut self, kind: Kind, name: String) {
        let how = MkdirIn { mode: 0o755, umask: 0 };
        let (answer, data) = match kind {
            Kind::Directory => (self.at_home(Opcode::Mkdir, how.as_bytes(), &name), Vec::new()),
            _ => {
                let parts: [&[u8]; 3] = [name.as_bytes(), b"\0", b"target\0"];
                (self.guest.ask(Opcode::Symlink, self.home, &parts), b"target".to_vec())
            }
        };
        if let Some(body) = self.unless_named(&name, answer) {
            self.made(kind, data, name, &entry(&body).0);
        }
    }

    fn link(&mut self, name: String) {
        let Some((old, index)) = self.any_file() else { return };
        let oldnodeid = self.node(&old, index);
        let answer = self.at_home(Opcode::Link, LinkIn { oldnodeid }.as_bytes(), &name);
        let Some(body) = self.unless_named(&name, answer) else { return };
        self.names.insert(name, index);
        self.inodes[index].names += 1;
        self.looked_up(index, &entry(&body).0);
    }

    fn remove(&mut self, name: &str) {
        let index = self.names.get(name).copied();
        let is_dir = index.is_some_and(|index| self.inodes[index].kind == Kind::Directory);
        let closes = self.random.bool();
        if let Some(index) = index.filter(|index| closes && self.inodes[*index].names == 1) {
            self.close(index);
        }
        let answer = self.at_home(if is_dir { Opcode::Rmdir } else { Opcode::Unlink }, &[], name);
        if index.is_some() {
            answer.unwrap_or_else(|errno| panic!("removing {name}: {errno:?}"));
            self.unnamed(name);
        } else {
            assert_eq!(answer.expect_err("it is not there"), Errno::ENOENT);
        }
    }

    fn rename(&mut self, to: String) {
        let Some((from, index)) = self.any_file() else { return };
        let over = self.names.get(&to).copied();
        if over.is_some_and(|over| self.inodes[over].kind == Kind::Directory) {
            return;
        }
        let closes = self.random.bool();
        if let Some(over) = over.filter(|over| closes && *over != index && self.inodes[*over].names == 1) {
            self.close(over);
        }
        let newdir = RenameIn { newdir: self.home };
        let names = format!("{from}\0{to}\0");
        let answer = self.guest.ask(Opcode::Rename, self.home, &[newdir.as_bytes(), names.as_bytes()]);
        answer.unwrap_or_else(|errno| panic!("RENAME {from} {to}: {errno:?}"));
        // Both may name the same inode; rename(2) then does nothing.
        if over != Some(index) {
            if over.is_some() {
                self.unnamed(&to);
            }
            self.names.remove(&from);
            self.names.insert(to, index);
        }
    }

    fn append(&mut self) {
        if self.openings.is_empty() {
            return;
        }
        let (handle, index) = self.openings[self.random.usize(..self.openings.len())];
        let data = vec![self.random.u8(..); self.random.usize(1..3000)];
        let write = WriteIn { fh: handle, offset: 0, size: data.len() as u32, ..Default::default() };
        let node = self.inodes[index].node;
        let body = self.guest.ask(Opcode::Write, node, &[write.as_bytes(), &data]).expect("WRITE");
        let (out, _) = WriteOut::read_from_prefix(&body).expect("a count");
        self.inodes[index].data.extend(&data[..out.size as usize]);
        let read = ReadIn { fh: handle, offset: 0, size: 100 << 10, ..Default::default() };
        let found = self.guest.ask(Opcode::Read, node, &[read.as_bytes()]).expect("READ");
        let end = self.inodes[index].data.len().min(100 << 10);
        assert!(found == self.inodes[index].data[..end], "{} bytes, not {end}", found.len());
    }

    fn cut(&mut self) {
        let Some((name, index)) = self.any_file() else { return };
        let node = self.node(&name, index);
        if self.random.bool() {
            // Truncated at open.
            let open = OpenIn { flags: O_RDWR | O_TRUNC, open_flags: 0 };
            let body = self.guest.ask(Opcode::Open, node, &[open.as_bytes()]).expect("OPEN");
            let (open, _) = OpenOut::read_from_prefix(&body).expect("an opening");
            let is_locked = self.openings.iter().any(|(_, locked)| *locked == index);
            let taken = self.lock(index, open.fh, F_WRLCK);
            assert_eq!(taken, if is_locked { Err(Errno::EAGAIN) } else { Ok(()) }, "{name}");
            let release = ReleaseIn { fh: open.fh, ..Default::default() };
            self.guest.ask(Opcode::Release, node, &[release.as_bytes()]).expect("RELEASE");
            self.inodes[index].data.clear();
        } else {
            let size = self.random.u64(..5000);
            let set = SetattrIn { valid: SetattrValid::SIZE.bits(), size, ..Default::default() };
            let body = self.guest.ask(Opcode::Setattr, node, &[set.as_bytes()]).expect("SETATTR");
            assert_eq!(AttrOut::read_from_prefix(&body).expect("attributes").0.attr.size, size);
            self.inodes[index].data.resize(size as usize, 0);
        }
    }

    /// Returns look-ups: sometimes all but one, sometimes all.
    fn forget(&mut self) {
        let Some((_, index)) = self.any_inode() else { return };
        let is_open = self.openings.iter().any(|(_, open)| *open == index);
        let Inode { node, look_ups, .. } = self.inodes[index];
        let keep = u64::from(is_open || self.random.bool());
        if look_ups > keep {
            self.guest.forget(node, look_ups - keep);
            self.inodes[index].look_ups = keep;
        }
        if keep == 1 && look_ups > 0 {
            let attr = self.guest.ask(Opcode::Getattr, node, &[GetattrIn::default().as_bytes()]);
            attr.unwrap_or_else(|errno| panic!("a node with a look-up: {errno:?}"));
        }
    }

    fn list(&mut self) {
        let body =
            self.guest.ask(Opcode::Opendir, self.home, &[OpenIn::default().as_bytes()]).expect("OPENDIR");
        let (open, _) = OpenOut::read_from_prefix(&body).expect("an opening");
        let read = ReadIn { fh: open.fh, size: 64 << 10, ..Default::default() };
        let page = self.guest.ask(Opcode::Readdirplus, self.home, &[read.as_bytes()]).expect("READDIRPLUS");
        let (mut rest, mut seen) = (&page[..], Vec::new());
        while let Ok((line, behind)) = DirentPlus::read_from_prefix(rest) {
            let len = line.dirent.namelen as usize;
            let name = String::from_utf8(behind[..len].to_vec()).expect("UTF-8");
            rest = &rest[(size_of::<DirentPlus>() + len).next_multiple_of(8)..];
            if name == "." || name == ".." {
                continue;
            }
            let index = *self.names.get(&name).unwrap_or_else(|| panic!("{name} was removed"));
            if line.entry.nodeid != 0 {
                self.looked_up(index, &line.entry);
            }
            seen.push(name);
        }
        seen.sort();
        assert!(seen.iter().eq(self.names.keys()), "{seen:?} is not {:?}", self.names.keys());
        let release = ReleaseIn { fh: open.fh, ..Default::default() };
        self.guest.ask(Opcode::Releasedir, self.home, &[release.as_bytes()]).expect("RELEASEDIR");
    }

    fn look(&mut self, name: &str) {
        let answer = self.at_home(Opcode::Lookup, &[], name);
        match self.names.get(name).copied() {
            Some(index) => self.looked_up(index, &entry(&answer.expect("a node")).0),
            // A negative entry.
            None => {
                assert!(answer.map_or_else(|errno| errno == Errno::ENOENT, |body| entry(&body).0.nodeid == 0))
            }
        }
    }

    /// Compares with the files in the server's directory.
    fn check(&self, home: &Path) {
        let there: BTreeMap<String, Vec<u8>> = fs::read_dir(home)
            .expect("a listing")
            .map(|entry| {
                let path = entry.expect("an entry").path();
                let data = match fs::symlink_metadata(&path).expect("attributes").file_type() {
                    kind if kind.is_file() => fs::read(&path).expect("data"),
                    kind if kind.is_symlink() => b"target".to_vec(),
                    _ => Vec::new(),
                };
                (path.file_name().expect("a name").to_string_lossy().into_owned(), data)
            })
            .collect();
        let known: BTreeMap<_, _> =
            self.names.iter().map(|(name, index)| (name.clone(), self.inodes[*index].data.clone())).collect();
        assert!(there == known, "{:?} is not {:?}", there.keys(), known.keys());
    }
}

impl Inode {
    /// Returns the expected size; directory sizes depend on the file system.
    fn size(&self, found: &EntryOut) -> u64 {
        if self.kind == Kind::Directory { found.attr.size } else { self.data.len() as u64 }
    }
}

fn kill_again_and_again(server: &Server, wanted: u32, done: &AtomicU64, is_over: &AtomicBool) {
    let mut last = 0;
    for _ in 0..wanted {
        let (before, since) = (done.load(Ordering::Relaxed), std::time::Instant::now());
        // The new server has processed requests.
        while done.load(Ordering::Relaxed) < before + 40 && !is_over.load(Ordering::Relaxed) {
            assert!(since.elapsed() < PATIENCE, "no answers");
            thread::sleep(Duration::from_micros(fastrand::u64(..2000)));
        }
        last = next_child(server.pid(), &[last]);
        signal(last, "KILL");
    }
    is_over.store(true, Ordering::Relaxed);
}

#[test]
fn kept_share_loses_nothing_across_kills() {
    let kills = if std::env::var_os("TOMBOLO_LONG").is_some() { 100 } else { 6 };
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let scratch = Scratch::new();
    let server = scratch.serve("serve tree --keep --virtiofs vm.sock -qq");
    let socket = scratch.path("vm.sock");
    let (done, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let workers = (0..GUESTS).map(|number| {
            let (socket, done, is_over) = (&socket, &done, &is_over);
            let home = scratch.path("tree").join(format!("guest{number}"));
            scope.spawn(move || {
                let mut work = Work::new(socket, number, seed);
                while !is_over.load(Ordering::Relaxed) {
                    work.step();
                    done.fetch_add(1, Ordering::Relaxed);
                }
                (0..100).for_each(|_| work.step());
                work.check(&home);
                work.done
            })
        });
        let workers: Vec<_> = workers.collect();
        kill_again_and_again(&server, kills, &done, &is_over);
        let steps: Vec<u64> =
            workers.into_iter().map(|worker| worker.join().expect("no difference")).collect();
        eprintln!("{kills} kills, {steps:?} steps");
    });
    server.stop();
}

#[test]
fn keep_refuses_unsupported_front_ends() {
    Scratch::new().all_fail(&[
        ("serve tree --keep --nfs 0", 2, &["--keep requires virtio-fs guests", "add --virtiofs SOCKET"]),
        ("serve tree --keep --virtiofs vm.sock --nfs 0", 2, &["--keep requires --virtiofs"]),
        ("serve nfs://far.example/tree --keep --virtiofs vm.sock", 2, &["nfs://far.example/tree is not"]),
        ("serve tree --keep --stdio", 2, &["not to --stdio"]),
        ("serve tree --keep --fd 7", 2, &["--keep does not keep descriptor 7"]),
    ]);
}

#[test]
fn killed_servers_helpers_end_before_next_server() {
    let scratch = Scratch::new();
    let server = scratch.serve("serve tree --keep --sandbox strict --virtiofs vm.sock -qq");
    let mut guest = Guest::mount(&scratch.path("vm.sock"));
    let victim = next_child(server.pid(), &[]);
    let broker = next_child(victim, &[]);
    // Stands for a broker blocked on a disk, which does not notice its server's death.
    signal(broker, "STOP");
    signal(victim, "KILL");
    guest.ask(Opcode::Getattr, ROOT, &[GetattrIn::default().as_bytes()]).expect("the next server's answer");
    assert!(!Path::new(&format!("/proc/{broker}")).exists());
    drop(guest);
    server.stop();
}

#[test]
fn keeper_retains_locks_and_unlinked_files() {
    let scratch = Scratch::new();
    let server = scratch.serve("serve tree --keep --sandbox strict --virtiofs vm.sock -qq");
    let mut guest = Guest::mount(&scratch.path("vm.sock"));
    let mut create = |name: &str| {
        let how = CreateIn { flags: O_RDWR | O_APPEND, mode: 0o100_600, ..Default::default() };
        let name = format!("{name}\0");
        let body = guest.ask(Opcode::Create, ROOT, &[how.as_bytes(), name.as_bytes()]).expect("a file");
        let (found, rest) = entry(&body);
        (found.nodeid, OpenOut::read_from_prefix(rest).expect("an opening").0.fh)
    };
    let (locked, gone) = (create("locked"), create("gone"));
    guest.lock(locked.0, locked.1, F_WRLCK, LK_FLOCK).expect("flock");
    guest.lock(locked.0, locked.1, F_WRLCK, 0).expect("a record lock");
    guest.ask(Opcode::Unlink, ROOT, &[b"gone\0"]).expect("UNLINK");
    let host = fs::OpenOptions::new().write(true).open(scratch.path("tree/locked")).expect("the file");
    let range = LockRange { start: 0, len: 1 };
    let is_locked = || {
        let record = lock::conflict(host.as_fd(), LockKind::Exclusive, range).expect("a look");
        (lock::try_flock(host.as_fd(), LockKind::Exclusive).is_err(), record.is_some())
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let host = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(is_locked(), (true, true), "another process has it");
            }
        });
        for round in 0..4 {
            signal(next_child(server.pid(), &[]), "KILL");
            let write = WriteIn { fh: gone.1, size: 5, ..Default::default() };
            guest.ask(Opcode::Write, gone.0, &[write.as_bytes(), b"again"]).expect("WRITE");
            let read = ReadIn { fh: gone.1, size: 4096, ..Default::default() };
            let found = guest.ask(Opcode::Read, gone.0, &[read.as_bytes()]).expect("READ");
            assert_eq!(found, b"again".repeat(round + 1));
        }
        is_over.store(true, Ordering::Relaxed);
        host.join().expect("locked all the time");
    });
    guest.lock(locked.0, locked.1, F_UNLCK, 0).expect("unlocked");
    assert_eq!(is_locked(), (true, false));
    let release = ReleaseIn { fh: locked.1, ..Default::default() };
    guest.ask(Opcode::Release, locked.0, &[release.as_bytes()]).expect("RELEASE");
    assert_eq!(is_locked(), (false, false));
    drop(guest);
    server.stop();
}
