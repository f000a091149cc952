//! Files that local processes change through shared mappings, of which clients are not notified. Needs
//! /dev/fuse, root and python3.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::common::{MountPlace, until};

/// Maps a file and fills it with each letter that it reads; a capital first extends the file by a page.
const MAPPER: &str = "
import mmap, sys
file = open(sys.argv[1], 'r+b')
mapped = mmap.mmap(file.fileno(), 0)
for line in sys.stdin:
    if line[0].isupper():
        mapped.resize(len(mapped) + mmap.PAGESIZE)
    mapped[:] = line[0].encode() * len(mapped)
    print(len(mapped), flush=True)
";

struct Mapper {
    process: Child,
    letters: ChildStdin,
    sizes: BufReader<ChildStdout>,
}

impl Mapper {
    fn of(path: &Path) -> Self {
        let mut python = Command::new("python3");
        let python = python.args(["-c", MAPPER]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = python.spawn().expect("python3");
        let letters = process.stdin.take().expect("a pipe");
        let sizes = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, letters, sizes }
    }

    /// Stores a letter; returns the file's length afterwards.
    fn store(&mut self, letter: char) -> usize {
        writeln!(self.letters, "{letter}").expect("it reads");
        let mut line = String::new();
        self.sizes.read_line(&mut line).expect("it answers");
        line.trim().parse().expect("a size")
    }

    fn end(self) {
        let Self { mut process, letters, .. } = self;
        drop(letters);
        assert!(process.wait().expect("its end").success());
    }
}

/// Checks that each store is visible at the next access.
fn stores_are_seen(scratch: &MountPlace) {
    let (ours, theirs) = (scratch.mnt().join("a.db"), scratch.path("tree/a.db"));
    let mut mapper = Mapper::of(&theirs);
    ours.metadata().expect("there");
    for letter in ('a'..='z').chain('A'..='Z') {
        let size = mapper.store(letter);
        let (seen, there) = (ours.metadata().expect("there"), theirs.metadata().expect("there"));
        let times = |of: &fs::Metadata| (of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
        assert_eq!((seen.len(), times(&seen)), (size as u64, times(&there)), "{letter}");
        assert!(fs::read_to_string(&ours).expect("read") == letter.to_string().repeat(size), "{letter}");
        // Reading invalidates the cached access time; this fetches it again.
        ours.metadata().expect("there");
    }
    mapper.end();
}

/// Checks that files that do not match stay cached.
fn other_files_are_believed(scratch: &MountPlace) {
    let file = scratch.mnt().join("file");
    let looks = || scratch.served("getattr") + scratch.served("lookup");
    let is_believed = || {
        let before = looks();
        (0..100).for_each(|_| assert!(file.metadata().is_ok()));
        looks() == before
    };
    until("it is believed", is_believed);
}

#[test]
fn push_mount_never_caches_ask_files() {
    let Some(scratch) = MountPlace::new() else { return };
    fs::write(scratch.path("tree/a.db"), [b'.'; 8192]).expect("written");
    scratch.mount("coherence=push,ask=none,ask=*.db");
    stores_are_seen(&scratch);
    other_files_are_believed(&scratch);
    scratch.umount();
}

#[test]
fn shm_mount_never_caches_ask_files_of_server() {
    let Some(scratch) = MountPlace::new() else { return };
    fs::write(scratch.path("tree/a.db"), [b'.'; 8192]).expect("written");
    let server = scratch.serve_shm("--host-watch --ask *.db,export=/tree");
    let mount = scratch.serve_until("mount -f shm:link.sock/tree mnt", "ready fuse");
    mount.says(&[" coherence=push\n"]);
    stores_are_seen(&scratch);
    other_files_are_believed(&scratch);
    mount.stop();
    server.stop();
}
