//! Syncs before replies that promise stability (RFC 1813 §3.3.7, §4.7, §4.8), observed between server and
//! back end. `tests/kill` verifies the back end's own system calls.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_core::fs::Op;
use tombolo_core::fs::{Created, Export, Written};
use tombolo_core::{Answer, Error, Stability};
use tombolo_front_nfs_server::Durability;
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_basic::around::{Call, Payload};
use tombolo_layer_basic::fault::{self, Rule, What, When};
use tombolo_layer_basic::{Around, Layered};
use tombolo_nfs_tests::client::{Expect, dir_op_args as at, mode};
use tombolo_nfs_tests::fixture::{Fixture, local_dir};
use tombolo_nfs_tests::test_server::Plan;
use tombolo_wire_nfs3::args::{
    CreateArgs, CreateHow, LinkArgs, MkdirArgs, MknodArgs, MknodKind, RenameArgs, SetattrArgs, StableHow,
    SymlinkArgs,
};
use tombolo_wire_nfs3::attr::stability;
use tombolo_wire_nfs3::{Call as NfsCall, CreateVerifier, Sattr3, SetTime3, Status};

/// Records syncs and writes.
#[derive(Default)]
struct Spy(Arc<Mutex<Seen>>);

#[derive(Default, Debug)]
struct Seen {
    syncs: usize,
    /// Stability of the last write.
    write: Option<Stability>,
}

impl Spy {
    /// Returns the records since the last call.
    fn take(&self) -> Seen {
        std::mem::take(&mut lock(&self.0))
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Around for Spy {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let (seen, is_sync) = (self.0.clone(), [Op::Fsync, Op::Syncfs].contains(&call.op));
        inner().map(move |payload| {
            let mut seen = lock(&seen);
            seen.syncs += usize::from(is_sync);
            if let Some(written) = (&payload as &dyn Any).downcast_ref::<Written>() {
                seen.write = Some(written.stability);
            }
            drop(seen);
            payload
        })
    }
}

fn spied_upon(durability: Durability) -> (Fixture, Arc<Spy>) {
    over(Arc::<Memory>::default(), durability)
}

fn over(export: Arc<dyn Export>, durability: Durability) -> (Fixture, Arc<Spy>) {
    let spy = Arc::<Spy>::default();
    let plan = Plan::over(Arc::new(Layered::new(export, spy.clone())));
    (Fixture::new(Plan { durability, ..plan }, None), spy)
}

/// Uses a disk: a tree in memory is stable as soon as it is written.
#[test]
fn write_stability_in_back_end_matches_reply() {
    let tree = tempfile::tempdir().expect("a scratch directory");
    let (fixture, spy) = over(local_dir(tree.path()), Durability::Stable);
    let file = fixture.file("file", b"");
    let write = |stable| {
        spy.take();
        let committed = fixture.nfs.write(&file, 0, b"data", stable).done().committed;
        assert!(committed >= stable, "{committed:?} for {stable:?}");
        let seen = spy.take();
        let below = if seen.syncs > 0 { Stability::FileSync } else { seen.write.expect("a write") };
        assert!(below >= stability(committed), "{below:?} is said to be {committed:?}");
        below
    };
    if write(StableHow::Unstable) > Stability::Unstable {
        return;
    }
    assert_eq!(write(StableHow::DataSync), Stability::DataSync);
    assert_eq!(write(StableHow::FileSync), Stability::FileSync);
}

#[test]
fn a_commit_is_a_sync() {
    for durability in [Durability::Stable, Durability::Relaxed] {
        let (fixture, spy) = spied_upon(durability);
        let file = fixture.file("file", b"data");
        spy.take();
        fixture.nfs.commit(&file, 0, 0).done();
        assert_eq!(spy.take().syncs, 1);
    }
}

/// Makes changes of names and attributes; counts the syncs of each.
fn syncs_of_changes(fixture: &Fixture, spy: &Spy) -> Vec<usize> {
    let (file, dir) = (fixture.file("kept", b""), fixture.dir("dir"));
    let (root, attributes, target) = (&fixture.root, mode(0o755), &b"target"[..]);
    let (how, guard) = (CreateHow::Guarded(attributes), None);
    let (file, link) = (file.as_handle(), at(root, b"d"));
    let (from, to) = (at(root, b"a"), at(&dir, b"e"));
    let calls = [
        NfsCall::Create(CreateArgs { location: from, how }),
        NfsCall::Mkdir(MkdirArgs { location: at(root, b"b"), attributes }),
        NfsCall::Symlink(SymlinkArgs { location: at(root, b"c"), attributes, target }),
        NfsCall::Mknod(MknodArgs { location: at(root, b"f"), what: MknodKind::Fifo(attributes) }),
        NfsCall::Link(LinkArgs { file, link }),
        NfsCall::Rename(RenameArgs { from, to }),
        NfsCall::Remove(at(root, b"c")),
        NfsCall::Rmdir(at(root, b"b")),
        NfsCall::Setattr(SetattrArgs { object: file, attributes, guard }),
    ];
    let count = |call| {
        spy.take();
        assert_eq!(fixture.nfs.send(&fixture.nfs.message(call, b"")).status(), Ok(()), "{call:?}");
        spy.take().syncs
    };
    calls.iter().map(count).collect()
}

#[test]
fn name_and_attribute_changes_are_synced_before_replies() {
    let (fixture, spy) = spied_upon(Durability::Stable);
    let syncs = syncs_of_changes(&fixture, &spy);
    assert!(syncs.iter().all(|count| *count > 0), "{syncs:?}");
    let (fixture, spy) = spied_upon(Durability::Relaxed);
    let syncs = syncs_of_changes(&fixture, &spy);
    assert!(syncs.iter().all(|count| *count == 0), "relaxed is what was asked for: {syncs:?}");
}

/// Verifies a sync of the node too: the directory's need not include attributes set after creation.
#[test]
fn a_create_syncs_its_node_and_directory() {
    let (fixture, spy) = spied_upon(Durability::Stable);
    let timed = Sattr3 { mtime: SetTime3::Server, ..mode(0o755) };
    let sized = Sattr3 { size: Some(5000), ..mode(0o644) };
    let (root, target) = (&fixture.root, &b"target"[..]);
    let verifier = CreateVerifier(*b"verifier");
    let create = |name: &'static [u8], how| NfsCall::Create(CreateArgs { location: at(root, name), how });
    let calls = [
        create(b"a", CreateHow::Guarded(timed)),
        create(b"b", CreateHow::Unchecked(sized)),
        create(b"c", CreateHow::Exclusive(verifier)),
        // The same again finds the file, which may have been made a moment ago.
        create(b"c", CreateHow::Exclusive(verifier)),
        NfsCall::Mkdir(MkdirArgs { location: at(root, b"d"), attributes: timed }),
        NfsCall::Symlink(SymlinkArgs { location: at(root, b"e"), attributes: timed, target }),
        NfsCall::Mknod(MknodArgs { location: at(root, b"f"), what: MknodKind::Fifo(timed) }),
    ];
    for call in calls {
        spy.take();
        assert_eq!(fixture.nfs.send(&fixture.nfs.message(&call, b"")).status(), Ok(()), "{call:?}");
        assert!(spy.take().syncs >= 2, "{call:?}");
    }
}

/// Notes what was made and synced, in order. Syncs are slow.
#[derive(Default)]
struct Order(Arc<Mutex<Vec<Event>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The file of this number is made.
    Made(u64),
    /// The so-manieth sync.
    SyncBegan(usize),
    SyncEnded(usize),
    /// The client has the answer about this file.
    Answered(u64),
}

impl Order {
    fn note(events: &Mutex<Vec<Event>>, event: Event) {
        events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    fn begins(&self) -> usize {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = events.iter().filter(|event| matches!(event, Event::SyncBegan(_))).count();
        events.push(Event::SyncBegan(number));
        number
    }
}

impl Around for Order {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let events = self.0.clone();
        if call.op == Op::Fsync {
            let (number, over) = (self.begins(), Arc::<Promise<()>>::default());
            std::thread::spawn({
                let over = over.clone();
                move || {
                    std::thread::sleep(Duration::from_millis(3));
                    over.keep(());
                }
            });
            let synced = inner();
            return Answer::later(async move {
                over.kept().await;
                Self::note(&events, Event::SyncEnded(number));
                synced.resolve().await
            });
        }
        inner().map(move |payload| {
            if let Some(created) = (&payload as &dyn Any).downcast_ref::<Created>() {
                Self::note(&events, Event::Made(created.entry.attr.fileid));
            }
            payload
        })
    }
}

#[test]
fn concurrent_creates_share_later_syncs() {
    const CLIENTS: usize = 8;
    const FILES: usize = 10;
    let order = Arc::<Order>::default();
    let export = Layered::new(Arc::new(Memory::default()), order.clone());
    let fixture = Fixture::new(Plan::over(Arc::new(export)), None);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (nfs, root, events) = (fixture.server.nfs(), fixture.root, order.0.clone());
            scope.spawn(move || {
                for number in 0..FILES {
                    let name = format!("{client}.{number}");
                    let made = nfs.create(&root, name.as_bytes(), CreateHow::Guarded(mode(0o644))).done();
                    let fileid = made.attributes.expect("attributes").fileid;
                    Order::note(&events, Event::Answered(fileid));
                }
            });
        }
    });
    let events = order.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let at = |event| events.iter().position(|&it| it == event).unwrap_or_else(|| panic!("{event:?}"));
    let syncs = events.iter().filter(|event| matches!(event, Event::SyncBegan(_))).count();
    for made in events.iter().filter_map(|event| if let Event::Made(it) = event { Some(*it) } else { None }) {
        let (from, to) = (at(Event::Made(made)), at(Event::Answered(made)));
        let is_between = |number| from < at(Event::SyncBegan(number)) && at(Event::SyncEnded(number)) < to;
        assert!((0..syncs).any(is_between), "{made} is answered without a sync of its own: {events:?}");
    }
    assert!(syncs < CLIENTS * FILES / 2, "{syncs} syncs");
}

#[test]
fn the_verifier_changes_when_data_may_be_lost() {
    let fails =
        Rule { op: Some(Op::Fsync), when: When::Nth(1), what: What::Fail(|| Error::Io { source: None }) };
    let export = fault::over(Arc::new(Memory::default()), fault::Plan { rules: vec![fails], seed: 1 });
    let plan = Plan { durability: Durability::Relaxed, ..Plan::over(Arc::new(export)) };
    let fixture = Fixture::new(plan, None);
    let file = fixture.file("file", b"");
    let before = fixture.nfs.write(&file, 0, b"data", StableHow::Unstable).done().verifier;
    fixture.nfs.commit(&file, 0, 0).failed(Status::Io);
    let after = fixture.nfs.commit(&file, 0, 0).done().verifier;
    assert_ne!(before, after, "the client must send its data again");
    assert_eq!(fixture.nfs.write(&file, 0, b"data", StableHow::Unstable).done().verifier, after);
}
