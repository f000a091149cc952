//! What it costs to perform each request once: `cargo bench -p tombolo-layer --bench replies`.
//!
//! Time per operation, or per pair of operations that leaves nothing behind, directly and through the layer: without a key,
//! with a key, and with a key and a state file. An argument picks the rows that hold it. Medians and tenth percentiles of many short rounds, taken in turn.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_memory::Memory;
use tombolo_core::fs::{
    Asker, Client, Create, Ctx, Exclusive, Export, File, FileSystem, Mode, Name, NewMode, NodeId, OpenFlags,
    PermissionCheck, RequestKey, SessionId, Write,
};
use tombolo_layer::replies::{self, Options};
use tombolo_mem::Buffer;

/// Rounds are short and many, so that most are not interrupted.
const ROUNDS: usize = 200;
const CALLS: u32 = 100;

const ROOT: NodeId = NodeId::ROOT;

type Work<'a> = (String, Box<dyn Fn() + 'a>);

/// One way to the bottom.
struct Way {
    label: &'static str,
    fs: Arc<dyn FileSystem>,
    key: Option<fn(u32) -> RequestKey>,
}

fn main() {
    let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).expect("a directory");
    let local = LocalDir::open(&tree, DirOptions::default()).expect("the export");
    let memory = ways(&(Arc::new(Memory::default()) as Arc<dyn Export>), &scratch.path().join("of-memory"));
    let directory = ways(&(Arc::new(local) as Arc<dyn Export>), &scratch.path().join("of-directory"));
    let mut works = Vec::new();
    for (bottom, ways) in [("memory", &memory), ("directory on tmpfs", &directory)] {
        works.extend(ways.iter().map(|way| (format!("{bottom}, getattr, {}", way.label), getattr(way))));
        works.extend(ways.iter().map(|way| (format!("{bottom}, write 4 KiB, {}", way.label), write(way))));
        works.extend(ways.iter().map(|way| (format!("{bottom}, mkdir and rmdir, {}", way.label), pair(way))));
        works.extend(
            ways.iter().map(|way| (format!("{bottom}, create and unlink, {}", way.label), file(way))),
        );
    }
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with("--")).unwrap_or_default();
    works.retain(|(label, _)| label.contains(&wanted));
    print(&works);
}

fn ways(bottom: &Arc<dyn Export>, state: &Path) -> [Way; 5] {
    let plain = attach(&**bottom);
    let options = Options::default();
    let in_memory = attach(&replies::over(bottom.clone(), &options));
    let in_file = attach(&replies::open(bottom.clone(), &options, state).expect("the state file"));
    [
        Way { label: "direct", fs: plain, key: None },
        Way { label: "without a key", fs: in_memory.clone(), key: None },
        Way { label: "numbered, kept in memory", fs: in_memory.clone(), key: Some(numbered) },
        Way { label: "kept in memory", fs: in_memory, key: Some(called) },
        Way { label: "kept in a file", fs: in_file, key: Some(called) },
    ]
}

fn called(xid: u32) -> RequestKey {
    RequestKey::Rpc { client: 1, xid, procedure: 9, checksum: xid }
}

fn numbered(number: u32) -> RequestKey {
    RequestKey::Sequence { asker: Asker { instance: [7; 16], peer: 1 }, number: number.into() }
}

impl Way {
    /// The context of a new request.
    fn cx(&self) -> Ctx {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let xid = NEXT.fetch_add(1, Ordering::Relaxed);
        let key = self.key.map_or(RequestKey::None, |key| key(xid));
        Ctx { key, ..Ctx::root(SessionId(1)) }
    }
}

fn getattr(way: &Way) -> Box<dyn Fn() + '_> {
    Box::new(|| {
        let _ = black_box(way.fs.getattr(&way.cx(), black_box(ROOT), None));
    })
}

fn write(way: &Way) -> Box<dyn Fn() + '_> {
    let name = way.label.to_owned();
    let created = way.fs.create(&way.cx(), ROOT, self::name(&name), &how()).wait().expect("create");
    let file = File { node: created.entry.node, open: created.open };
    let buffer = Buffer::new(4096);
    Box::new(move || {
        let answer = way.fs.write(&way.cx(), file, &Write::default(), buffer.source(0..4096));
        answer.wait().expect("write");
    })
}

fn pair(way: &Way) -> Box<dyn Fn() + '_> {
    let mode = NewMode::settled(Mode::new(0o755));
    Box::new(move || {
        let made = way.fs.mkdir(&way.cx(), ROOT, name("made"), mode).wait().expect("mkdir");
        way.fs.rmdir(&way.cx(), ROOT, name("made")).wait().expect("rmdir");
        way.fs.forget(&way.cx(), &[(made.entry.node, 1)]);
    })
}

fn file(way: &Way) -> Box<dyn Fn() + '_> {
    Box::new(|| {
        let cx = way.cx();
        let created = way.fs.create(&cx, ROOT, name("file"), &how()).wait().expect("create");
        way.fs.release(&cx, File { node: created.entry.node, open: created.open });
        way.fs.unlink(&way.cx(), ROOT, name("file")).wait().expect("unlink");
        way.fs.forget(&cx, &[(created.entry.node, 1)]);
    })
}

fn how() -> Create {
    Create {
        mode: NewMode::settled(Mode::new(0o644)),
        flags: OpenFlags::READ | OpenFlags::WRITE,
        exclusive: Exclusive::Yes,
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a good name")
}

fn attach(export: &dyn Export) -> Arc<dyn FileSystem> {
    let client = Client { session: SessionId(1), label: "bench".into(), checks: PermissionCheck::BackEnd };
    export.attach(&client).expect("a session")
}

fn print(works: &[Work<'_>]) {
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); works.len()];
    for _ in 0..ROUNDS {
        for ((_, work), times) in works.iter().zip(&mut times) {
            let began = Instant::now();
            (0..CALLS).for_each(|_| work());
            times.push(began.elapsed().as_nanos() as f64 / f64::from(CALLS));
        }
    }
    println!("{:<60} {:>9} {:>9}", "", "median", "p10");
    for ((name, _), times) in works.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{name:<60} {:>6.0} ns {:>6.0} ns", times[ROUNDS / 2], times[ROUNDS / 10]);
    }
}
