//! What is said to be stable is made stable first (RFC 1813 §1.5, §3.3.7, §4.8), as seen from between the server and the back
//! end. That the back end does as it is told is for `tests/crash`, which reads its system calls.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use tombolo_back_memory::Memory;
use tombolo_core::fs::{Answer, Error, Export, Stability, Written};
use tombolo_front_nfs_server::Durability;
use tombolo_layer::around::{Call, Payload};
use tombolo_layer::fault::{self, Rule, What, When};
use tombolo_layer::{Around, Layered, Op};
use tombolo_nfs_tests::bed::Plan;
use tombolo_nfs_tests::client::{Expect, mode, place as at};
use tombolo_nfs_tests::place::Place;
use tombolo_wire_nfs3::args::{
    CreateArgs, CreateHow, LinkArgs, MkdirArgs, MknodArgs, MknodWhat, RenameArgs, SetattrArgs, StableHow,
    SymlinkArgs,
};
use tombolo_wire_nfs3::{Call as NfsCall, Status};

/// Notes what comes by.
#[derive(Default)]
struct Spy(Mutex<Seen>);

#[derive(Default, Debug)]
struct Seen {
    syncs: usize,
    /// How stable the last write was.
    write: Option<Stability>,
}

impl Spy {
    /// What was seen since the last time.
    fn take(&self) -> Seen {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Around for Spy {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let answer = inner();
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if [Op::Fsync, Op::Syncfs].contains(&call.op) {
            seen.syncs += 1;
        }
        if let Answer::Done(Ok(payload)) = &answer
            && let Some(written) = (payload as &dyn Any).downcast_ref::<Written>()
        {
            seen.write = Some(written.stability);
        }
        answer
    }
}

fn spied_upon(durability: Durability) -> (Place, Arc<Spy>) {
    let (memory, spy): (Arc<dyn Export>, _) = (Arc::<Memory>::default(), Arc::<Spy>::default());
    let mut plan = Plan::over(Arc::new(Layered::new(memory, spy.clone())));
    plan.durability = durability;
    (Place::new(plan, None), spy)
}

#[test]
fn a_write_is_as_stable_below_as_it_is_said_to_be() {
    for durability in [Durability::Stable, Durability::Relaxed] {
        let (place, spy) = spied_upon(durability);
        let file = place.file("file", b"");
        for (stable, below) in [
            (StableHow::Unstable, Stability::Unstable),
            (StableHow::DataSync, Stability::DataSync),
            (StableHow::FileSync, Stability::FileSync),
        ] {
            spy.take();
            let committed = place.nfs.write(&file, 0, b"data", stable).done().committed;
            let seen = spy.take();
            let really = if seen.syncs > 0 { Some(Stability::FileSync) } else { seen.write };
            assert!(really >= Some(below), "{stable:?}: {seen:?}");
            assert!(
                committed >= stable
                    && tombolo_wire_nfs3::attr::stability(committed) <= really.expect("a write")
            );
        }
    }
}

#[test]
fn a_commit_is_a_sync() {
    for durability in [Durability::Stable, Durability::Relaxed] {
        let (place, spy) = spied_upon(durability);
        let file = place.file("file", b"data");
        spy.take();
        place.nfs.commit(&file, 0, 0).done();
        assert_eq!(spy.take().syncs, 1);
    }
}

/// Makes changes of names and attributes; counts the syncs of each.
fn syncs_of_changes(place: &Place, spy: &Spy) -> Vec<usize> {
    let (file, dir) = (place.file("kept", b""), place.dir("dir"));
    let (root, attributes, target) = (&place.root, mode(0o755), &b"target"[..]);
    let (how, guard) = (CreateHow::Guarded(attributes), None);
    let (file, link) = (file.as_handle(), at(root, b"d"));
    let (from, to) = (at(root, b"a"), at(&dir, b"e"));
    let calls = [
        NfsCall::Create(CreateArgs { place: from, how }),
        NfsCall::Mkdir(MkdirArgs { place: at(root, b"b"), attributes }),
        NfsCall::Symlink(SymlinkArgs { place: at(root, b"c"), attributes, target }),
        NfsCall::Mknod(MknodArgs { place: at(root, b"f"), what: MknodWhat::Fifo(attributes) }),
        NfsCall::Link(LinkArgs { file, link }),
        NfsCall::Rename(RenameArgs { from, to }),
        NfsCall::Remove(at(root, b"c")),
        NfsCall::Rmdir(at(root, b"b")),
        NfsCall::Setattr(SetattrArgs { object: file, attributes, guard }),
    ];
    let count = |call| {
        spy.take();
        assert_eq!(place.nfs.send(&place.nfs.message(call, b"")).status(), Ok(()), "{call:?}");
        spy.take().syncs
    };
    calls.iter().map(count).collect()
}

#[test]
fn changes_of_names_and_attributes_are_synced_before_they_are_answered() {
    let (place, spy) = spied_upon(Durability::Stable);
    let syncs = syncs_of_changes(&place, &spy);
    assert!(syncs.iter().all(|count| *count > 0), "{syncs:?}");
    let (place, spy) = spied_upon(Durability::Relaxed);
    let syncs = syncs_of_changes(&place, &spy);
    assert!(syncs.iter().all(|count| *count == 0), "relaxed is what was asked for: {syncs:?}");
}

#[test]
fn the_verifier_changes_when_data_may_be_lost() {
    let fails =
        Rule { op: Some(Op::Fsync), when: When::Nth(1), what: What::Fail(|| Error::Io { source: None }) };
    let export = fault::over(Arc::new(Memory::default()), fault::Plan { rules: vec![fails], seed: 1 });
    let mut plan = Plan::over(Arc::new(export));
    plan.durability = Durability::Relaxed;
    let place = Place::new(plan, None);
    let file = place.file("file", b"");
    let before = place.nfs.write(&file, 0, b"data", StableHow::Unstable).done().verifier;
    place.nfs.commit(&file, 0, 0).failed(Status::Io);
    let after = place.nfs.commit(&file, 0, 0).done().verifier;
    assert_ne!(before, after, "the client must send its data again");
    assert_eq!(place.nfs.write(&file, 0, b"data", StableHow::Unstable).done().verifier, after);
}
