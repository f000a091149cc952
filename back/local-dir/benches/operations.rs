//! What each operation costs in process, and what going to the pool adds: `cargo bench -p tombolo-back-local-dir`.
//! The directory is made in `$TMPDIR`, so that the file system is yours to choose.

#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_core::fs::{
    Client, Cookie, Create, Ctx, DirBudget, DirPage, Exclusive, Export, File, FileSystem, Identity, Mode,
    Name, NewMode, NodeId, OpenFlags, PermissionCheck, SessionId, SyncWhat, Write,
};
use tombolo_mem::{Region, Sink, Source};

const ROOT: NodeId = NodeId::ROOT;
const ROUNDS: usize = 9;

fn main() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::new(dir.path(), PermissionCheck::Caller);
    println!("{:<42} {:>9}   µs, median of {ROUNDS}", "operation", "each");
    names(&world);
    data(&world);
    mutations(&world, "");
    let user = Ctx { identity: Identity { uid: 1000, gid: 1000, groups: None }, ..world.cx.clone() };
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("chmod");
    mutations(&World { cx: user.clone(), ..world.clone() }, ", for user 1000");
    let checked = World { cx: user, ..World::new(dir.path(), PermissionCheck::BackEnd) };
    // Held, so that the others only count it.
    let _kept = checked.fs.lookup(&checked.cx, ROOT, name("file")).wait();
    row("lookup, known, checked for user", 20_000, || checked.look_up_and_forget("file"));
    long_listings();
    let file = world.open("file", OpenFlags::READ);
    row("fsync of nothing, in the pool", 2_000, || {
        world.fs.fsync(&world.cx, file, SyncWhat::Data).wait().ok();
    });
}

fn names(world: &World) {
    let kept = world.fs.lookup(&world.cx, ROOT, name("file")).wait().expect("lookup");
    row("getattr", 100_000, || _ = black_box(world.fs.getattr(&world.cx, kept.node, None).wait()));
    row("lookup, known", 100_000, || {
        _ = black_box(world.fs.lookup(&world.cx, ROOT, name("file")).wait());
        world.fs.forget(&world.cx, &[(kept.node, 1)]);
    });
    row("lookup, new, and forget", 20_000, || world.look_up_and_forget("other"));
    row("lookup, missing", 100_000, || _ = black_box(world.fs.lookup(&world.cx, ROOT, name("none")).wait()));
    row("open and release", 50_000, || {
        let open = world.fs.open(&world.cx, kept.node, OpenFlags::READ).wait().expect("open").open;
        world.fs.release(&world.cx, File { node: kept.node, open });
    });
    let file = world.directory();
    let budget = |plus| DirBudget { size_bytes: 64 << 10, entry_bytes: 24, align: 8, plus };
    for plus in [false, true] {
        let mut page = Some(DirPage::new(budget(plus)));
        row(if plus { "list 52 entries with attributes" } else { "list 52 entries" }, 2_000, || {
            let mut empty = page.take().unwrap_or_else(|| DirPage::new(budget(plus)));
            empty.reset(budget(plus));
            let full = world.fs.readdir(&world.cx, file, Cookie::START, empty).wait().expect("readdir");
            let met: Vec<_> =
                full.iter().filter_map(|line| line.entry.map(|entry| (entry.node, 1))).collect();
            world.fs.forget(&world.cx, &met);
            page = Some(full);
        });
    }
}

/// What an entry of a long directory costs with attributes and handle: nobody knows the nodes, and everybody does.
fn long_listings() {
    const ENTRIES: usize = 10_000;
    let dir = tempfile::tempdir().expect("a directory");
    for n in 0..ENTRIES {
        std::fs::write(dir.path().join(format!("a-file-with-a-name-{n:05}")), b"").expect("write");
    }
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    // Newborn files are looked at twice.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let root = World::new(dir.path(), PermissionCheck::BackEnd);
    let user = Ctx { identity: Identity { uid: 1000, gid: 1000, groups: None }, ..root.cx.clone() };
    for (whose, cx) in [("", root.cx.clone()), (", checked for user", user)] {
        let world = World { cx, ..root.clone() };
        let met = world.list_with_handles();
        row_per(&format!("list 10,000, all known{whose}"), ENTRIES, || {
            world.fs.forget(&world.cx, &world.list_with_handles());
        });
        world.fs.forget(&world.cx, &met);
        row_per(&format!("list 10,000, all new{whose}"), ENTRIES, || {
            world.fs.forget(&world.cx, &world.list_with_handles());
        });
    }
}

fn data(world: &World) {
    let file = world.open("file", OpenFlags::READ | OpenFlags::WRITE);
    let region = Region::heap(1 << 20);
    for (label, len, rounds) in [("4 KiB", 4096, 50_000), ("1 MiB", 1 << 20, 500)] {
        let (mut into, mut from) = (Sink::new(), Source::new());
        into.push(&region, 0, len).expect("inside");
        from.push(&region, 0, len).expect("inside");
        let write =
            || _ = world.fs.write(&world.cx, file, &Write::default(), from.clone()).wait().expect("write");
        write();
        row(&format!("read {label}"), rounds, || {
            _ = black_box(world.fs.read(&world.cx, file, 0, into.clone()).wait().expect("read"));
        });
        row(&format!("write {label}"), rounds, write);
    }
}

fn mutations(world: &World, whose: &str) {
    let how = Create {
        mode: NewMode::settled(Mode::new(0o644)),
        flags: OpenFlags::READ | OpenFlags::WRITE,
        exclusive: Exclusive::Yes,
    };
    row(&format!("create, release, unlink{whose}"), 1_000, || {
        let made = world.fs.create(&world.cx, ROOT, name("new"), &how).wait().expect("create");
        world.fs.release(&world.cx, File { node: made.entry.node, open: made.open });
        world.fs.forget(&world.cx, &[(made.entry.node, 1)]);
        world.fs.unlink(&world.cx, ROOT, name("new")).wait().expect("unlink");
    });
    row(&format!("mkdir and rmdir{whose}"), 1_000, || {
        let made = world.fs.mkdir(&world.cx, ROOT, name("dir"), how.mode).wait().expect("mkdir");
        world.fs.forget(&world.cx, &[(made.entry.node, 1)]);
        world.fs.rmdir(&world.cx, ROOT, name("dir")).wait().expect("rmdir");
    });
}

#[derive(Clone)]
struct World {
    fs: Arc<dyn FileSystem>,
    cx: Ctx,
}

impl World {
    fn new(dir: &std::path::Path, checks: PermissionCheck) -> Self {
        std::fs::write(dir.join("file"), b"text").expect("write");
        for n in 0..48 {
            std::fs::write(dir.join(format!("entry-{n}")), b"").expect("write");
        }
        std::fs::write(dir.join("other"), b"").expect("write");
        let export = LocalDir::open(dir, Options::default()).expect("serve");
        let client = Client { session: SessionId(1), label: "bench".into(), checks };
        Self { fs: export.attach(&client).expect("attach"), cx: Ctx::root(client.session) }
    }

    fn look_up_and_forget(&self, text: &str) {
        let entry = self.fs.lookup(&self.cx, ROOT, name(text)).wait().expect("lookup");
        self.fs.forget(&self.cx, &[(entry.node, 1)]);
    }

    fn open(&self, text: &str, flags: OpenFlags) -> File {
        let node = self.fs.lookup(&self.cx, ROOT, name(text)).wait().expect("lookup").node;
        File { node, open: self.fs.open(&self.cx, node, flags).wait().expect("open").open }
    }

    /// Lists the root and asks for the handle of each entry.
    fn list_with_handles(&self) -> Vec<(NodeId, u64)> {
        let budget = DirBudget { size_bytes: 64 << 10, entry_bytes: 120, align: 4, plus: true };
        let handles = self.fs.persistent_handles().expect("handles");
        let (file, mut cookie, mut met) = (self.directory(), Cookie::START, Vec::new());
        let mut page = DirPage::new(budget);
        while !page.is_end() {
            page.reset(budget);
            page = self.fs.readdir(&self.cx, file, cookie, page).wait().expect("readdir");
            for line in page.iter() {
                cookie = line.cookie;
                if let Some(entry) = line.entry {
                    black_box(handles.handle_of(&self.cx, entry.node).wait().expect("a handle"));
                    met.push((entry.node, 1));
                }
            }
        }
        self.fs.release(&self.cx, file);
        met
    }

    fn directory(&self) -> File {
        let opened =
            self.fs.open(&self.cx, ROOT, OpenFlags::READ | OpenFlags::DIRECTORY).wait().expect("open");
        File { node: ROOT, open: opened.open }
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

/// Prints the median time of one part of a call, in microseconds.
fn row_per(label: &str, parts: usize, mut call: impl FnMut()) {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64() * 1e6 / parts as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{label:<42} {:>9.2}", times[ROUNDS / 2]);
}

/// Prints the median time of one call, in microseconds.
fn row(label: &str, rounds: usize, mut call: impl FnMut()) {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| call());
            start.elapsed().as_secs_f64() * 1e6 / rounds as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{label:<42} {:>9.2}", times[ROUNDS / 2]);
}
