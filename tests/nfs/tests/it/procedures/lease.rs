//! LEASE of the side program: a client's change waits until all others have returned their leases.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_back_memory::Memory;
use tombolo_core::fs::{LeaseTable, NodeId, PermissionCheck};
use tombolo_front_nfs_server::{LeaseHolders, Squash};
use tombolo_layer_basic::recall;
use tombolo_nfs_tests::client::{
    Caller, DATA, Expect, Message, Nfs, Verdict, calls_on, changes_of_names, mode,
};
use tombolo_nfs_tests::fixture::Fixture;
use tombolo_nfs_tests::test_server::Plan;
use tombolo_test_support::{Session, mode as new_mode, name, until};
use tombolo_wire_nfs3::args::{CreateHow, StableHow};
use tombolo_wire_nfs3::side::{
    self, Call as SideCall, LeaseArgs, LeaseOk, LeaseOperation, LeaseReply, LeaseState,
};
use tombolo_wire_nfs3::{Call, FileHandle, FileHandleBuf, Procedure, Reply, Status};
use tombolo_wire_rpc::Accepted;

use super::packing::unpack;

/// Longer than any test: nothing expires.
const LONG: Duration = Duration::from_secs(600);
/// Something runs out. A tenth of it passes after a change before another is granted.
const SHORT: Duration = Duration::from_secs(2);

fn leased(term: Duration) -> Fixture {
    leased_after(term, Duration::ZERO)
}

/// Starts a server whose predecessor may have granted leases that last until `grace` has passed.
fn leased_after(term: Duration, grace: Duration) -> Fixture {
    let leases = Some(LeaseTable::new(term, grace, 1));
    Fixture::new(Plan { leases, ..Plan::over(Arc::new(Memory::default())) }, None)
}

fn ask(nfs: &Nfs, file: FileHandle<'_>, act: LeaseOperation, epoch: u64) -> LeaseReply {
    let call = SideCall::Lease(LeaseArgs { file, act, epoch });
    let mut message = Message::new(7, side::PROGRAM, side::VERSION, call.procedure().number(), nfs.caller());
    tombolo_wire_xdr::Encoder::new(&mut message.arguments).value(&call);
    nfs.send(&message).results()
}

/// A client that may hold a lease.
struct Holder<'a> {
    nfs: Nfs,
    stamp: u32,
    root: &'a FileHandleBuf,
}

impl<'a> Holder<'a> {
    fn new(fixture: &'a Fixture, stamp: u32) -> Self {
        Self { nfs: fixture.nfs.as_caller(Caller::Stamped(stamp)), stamp, root: &fixture.root }
    }

    fn ask(&self, act: LeaseOperation, epoch: u64) -> LeaseOk {
        match ask(&self.nfs, self.root.as_handle(), act, epoch) {
            Reply::Ok(ok) => ok,
            Reply::Failed(status, ()) => panic!("{status:?}"),
        }
    }

    /// Requests a lease until one is granted; returns its epoch.
    fn granted(&self) -> u64 {
        let began = Instant::now();
        loop {
            let answer = self.ask(LeaseOperation::Grant, 0);
            match answer.state {
                LeaseState::Held => return answer.epoch,
                _ => assert!(began.elapsed() < Duration::from_secs(30), "never granted"),
            }
            thread::sleep(Duration::from_millis(answer.time_ms.min(100).into()));
        }
    }

    fn is_recalled(&self, epoch: u64) -> bool {
        loop {
            match self.ask(LeaseOperation::Keep, epoch).state {
                LeaseState::Held => {}
                state => return state == LeaseState::Recalled,
            }
        }
    }

    fn file(&self, name: &[u8], bytes: &[u8]) -> FileHandleBuf {
        let how = CreateHow::Guarded(mode(0o644));
        let file = self.nfs.create(self.root, name, how).done().handle();
        self.nfs.write(&file, 0, bytes, StableHow::FileSync).done();
        file
    }

    fn read(&self, file: &FileHandleBuf) -> Vec<u8> {
        self.nfs.read(file, 0, 100).done().bytes
    }
}

#[test]
fn foreign_change_waits_until_lease_is_returned() {
    let fixture = leased(10 * SHORT);
    let (holder, reader) = (Holder::new(&fixture, 1), Holder::new(&fixture, 2));
    let file = holder.file(b"file", b"old");
    let leases = [holder.granted(), reader.granted()];
    thread::scope(|scope| {
        let waits =
            [&holder, &reader].map(|of| scope.spawn(|| of.is_recalled(leases[of.stamp as usize - 1])));
        let other = scope.spawn(|| fixture.nfs.write(&file, 0, b"new", StableHow::FileSync).done());
        for wait in waits {
            assert!(wait.join().expect("answered"), "recalled");
        }
        assert_eq!(holder.read(&file), b"old");
        holder.ask(LeaseOperation::GiveBack, leases[0]);
        assert!(reader.is_recalled(leases[1]), "it says so again");
        assert_eq!(holder.read(&file), b"old", "the second has not given back");
        holder.ask(LeaseOperation::GiveBack, leases[1]);
        assert_eq!(holder.read(&file), b"old", "that was not its own");
        reader.ask(LeaseOperation::GiveBack, leases[1]);
        other.join().expect("written");
        assert_eq!(holder.read(&file), b"new");
        assert_eq!(
            holder.ask(LeaseOperation::Grant, 0).state,
            LeaseState::NotHeld,
            "another has just changed something"
        );
    });
}

#[test]
fn foreign_reads_and_own_changes_recall_no_lease() {
    let fixture = leased(LONG);
    let holder = Holder::new(&fixture, 1);
    let file = holder.file(b"file", b"old");
    let epoch = holder.granted();
    thread::scope(|scope| {
        let first = scope.spawn(|| holder.ask(LeaseOperation::Keep, epoch).state);
        until_one_waits(&fixture);
        let calls = calls_on(file.as_handle(), b"data");
        for call in calls.iter().filter(|call| !changes(call)) {
            drop(fixture.nfs.send(&fixture.nfs.message(call, &[])));
        }
        holder.nfs.write(&file, 0, b"own", StableHow::FileSync).done();
        // One question of a holder waits at a time: a second one ends the first.
        let second = scope.spawn(|| holder.ask(LeaseOperation::Keep, epoch).state);
        assert_eq!(first.join().expect("answered"), LeaseState::Held);
        // The server no longer knows the lease's number and answers at once.
        holder.granted();
        assert_ne!(second.join().expect("answered"), LeaseState::Recalled);
    });
}

/// Waits until the server has counted a waiting call.
fn until_one_waits(fixture: &Fixture) {
    while fixture.server.counts().later == 0 {
        thread::yield_now();
    }
}

fn changes(call: &Call<'_>) -> bool {
    !matches!(
        call,
        Call::Null
            | Call::Getattr(_)
            | Call::Lookup(_)
            | Call::Access(_)
            | Call::Readlink(_)
            | Call::Read(_)
            | Call::Readdir(_)
            | Call::Readdirplus(_)
            | Call::Fsstat(_)
            | Call::Fsinfo(_)
            | Call::Pathconf(_)
            | Call::Commit(_)
    )
}

#[test]
fn every_changing_procedure_recalls_leases() {
    // The waits for all recalls add up, and may not bar it.
    let fixture = leased(5 * SHORT);
    let holder = Holder::new(&fixture, 1);
    let (file, root) = (holder.file(b"file", b"old"), fixture.root.as_handle());
    let all = calls_on(file.as_handle(), b"name").into_iter().chain(changes_of_names(root, b"name"));
    let mut seen = Vec::new();
    for call in all.filter(changes) {
        let procedure = call.procedure();
        if seen.contains(&procedure) {
            continue;
        }
        seen.push(procedure);
        let epoch = holder.granted();
        thread::scope(|scope| {
            let data: &[u8] = if procedure == Procedure::Write { DATA } else { &[] };
            let other = scope.spawn(|| drop(fixture.nfs.send(&fixture.nfs.message(&call, data))));
            assert!(holder.is_recalled(epoch), "{procedure:?}");
            holder.ask(LeaseOperation::GiveBack, epoch);
            other.join().expect("answered");
        });
    }
    assert_eq!(seen.len(), 10, "{seen:?}");
}

#[test]
fn compressed_write_recalls_lease() {
    let fixture = leased(10 * SHORT);
    let holder = Holder::new(&fixture, 1);
    let (file, epoch) = (holder.file(b"file", b"old"), holder.granted());
    let frame = zstd::bulk::compress(b"new", 1).expect("compressed");
    let message = unpack(&fixture.nfs, &file, 0, 3, &frame);
    thread::scope(|scope| {
        let other = scope.spawn(|| drop(fixture.nfs.send(&message)));
        let mut state = LeaseState::Held;
        while state == LeaseState::Held && !other.is_finished() {
            state = holder.ask(LeaseOperation::Keep, epoch).state;
        }
        let before = holder.read(&file);
        holder.ask(LeaseOperation::GiveBack, epoch);
        other.join().expect("answered");
        assert_eq!((state, &before[..]), (LeaseState::Recalled, &b"old"[..]));
        assert_eq!(holder.read(&file), b"new");
    });
}

#[test]
fn silent_holder_loses_lease_after_one_term() {
    let fixture = leased(SHORT);
    let holder = Holder::new(&fixture, 1);
    let file = holder.file(b"file", b"old");
    let (epoch, began) = (holder.granted(), Instant::now());
    fixture.nfs.write(&file, 0, b"new", StableHow::FileSync).done();
    assert!(began.elapsed() + Duration::from_millis(100) >= SHORT, "{:?}", began.elapsed());
    assert_eq!(holder.ask(LeaseOperation::Keep, epoch).state, LeaseState::NotHeld);
}

#[test]
fn messages_about_an_earlier_lease_change_nothing() {
    let fixture = leased(LONG);
    let holder = Holder::new(&fixture, 1);
    let (file, old, new) = (holder.file(b"file", b"old"), holder.granted(), holder.granted());
    holder.ask(LeaseOperation::GiveBack, old);
    assert_eq!(holder.ask(LeaseOperation::Keep, old).state, LeaseState::NotHeld);
    thread::scope(|scope| {
        let other = scope.spawn(|| fixture.nfs.write(&file, 0, b"new", StableHow::FileSync).done());
        assert!(holder.is_recalled(new), "it is held");
        holder.ask(LeaseOperation::GiveBack, new);
        other.join().expect("written");
    });
}

#[test]
fn lease_lasts_while_its_holder_renews() {
    let term = 4 * SHORT;
    let fixture = leased(term);
    let holder = Holder::new(&fixture, 1);
    let (epoch, began) = (holder.granted(), Instant::now());
    while began.elapsed() < term + SHORT {
        assert_eq!(holder.ask(LeaseOperation::Keep, epoch).state, LeaseState::Held);
    }
    let other = Holder::new(&fixture, 2).granted();
    assert_ne!(other, epoch);
    assert_eq!(holder.ask(LeaseOperation::Keep, other).state, LeaseState::NotHeld, "it is another's");
}

#[test]
fn sessions_of_other_front_ends_wait_too() {
    let (table, tree) = (LeaseTable::new(LONG, Duration::ZERO, 1), Arc::new(Memory::default()));
    let plan = Plan { leases: Some(table.clone()), ..Plan::over(tree.clone()) };
    let fixture = Fixture::new(plan, None);
    let holder = Holder::new(&fixture, 1);
    let epoch = holder.granted();
    let guest = Session::checked(&recall::over(tree, table), PermissionCheck::Caller);
    let made = guest.fs.mkdir(&guest.cx, guest.dir, name("dir"), new_mode(0o755));
    assert!(!made.is_done() && holder.is_recalled(epoch));
    let found = || holder.nfs.lookup(holder.root, b"dir");
    assert_eq!(found().status(), Some(&Status::NoEnt));
    holder.ask(LeaseOperation::GiveBack, epoch);
    made.wait().expect("made");
    assert_eq!(found().status(), None);
}

#[test]
fn no_lease_is_granted_for_a_term_after_start() {
    let fixture = leased_after(LONG, LONG);
    let answer = Holder::new(&fixture, 1).ask(LeaseOperation::Grant, 0);
    assert_eq!(answer.state, LeaseState::NotHeld);
    assert!(u128::from(answer.time_ms) > LONG.as_millis() - 60_000, "{answer:?}");
}

#[test]
fn changes_wait_for_leases_of_the_previous_server() {
    let began = Instant::now();
    let fixture = leased_after(SHORT, SHORT);
    Holder::new(&fixture, 1).file(b"file", b"new");
    assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
}

#[test]
fn malformed_call_gets_its_error() {
    let fixture = leased(LONG);
    let root = fixture.root.as_handle();
    let stamped = fixture.nfs.as_caller(Caller::Stamped(1));
    let failed = |nfs: &Nfs, file| match ask(nfs, file, LeaseOperation::Grant, 0) {
        Reply::Failed(status, ()) => status,
        Reply::Ok(ok) => panic!("{ok:?}"),
    };
    assert_eq!(failed(&fixture.nfs, root), Status::Inval, "not to be told from others");
    assert_eq!(failed(&fixture.nfs.as_caller(Caller::Anonymous), root), Status::Inval);
    assert_eq!(failed(&stamped, FileHandle::new(b"nonsense").expect("a handle")), Status::BadHandle);
    let plain = Fixture::in_memory();
    let none = plain.nfs.as_caller(Caller::Stamped(1));
    assert_eq!(failed(&none, plain.root.as_handle()), Status::NotSupp);
    for act in [LeaseOperation::Keep, LeaseOperation::GiveBack] {
        let Reply::Ok(answer) = ask(&stamped, root, act, u64::MAX) else { panic!("an answer") };
        assert_eq!(answer.state, LeaseState::NotHeld);
    }
    let message = Message::new(7, side::PROGRAM, side::VERSION, 4, &Caller::Stamped(1));
    assert_eq!(fixture.nfs.send(&message).verdict, Verdict::Accepted(Accepted::GarbageArgs));
}

#[test]
fn one_host_stalls_others_once_despite_many_stamps() {
    // Long enough for all requests to be sent before the first lease expires.
    let term = 5 * SHORT;
    let fixture = leased(term);
    let file = Holder::new(&fixture, 1).file(b"file", b"old");
    let holders: Vec<_> = (2..22).map(|stamp| Holder::new(&fixture, stamp)).collect();
    holders[0].granted();
    let is_held = |holder: &&Holder<'_>| holder.ask(LeaseOperation::Grant, 0).state == LeaseState::Held;
    assert_eq!(holders.iter().filter(is_held).count(), 8);
    fixture.nfs.write(&file, 0, b"new", StableHow::FileSync).done();
    // It has waited for leases that nobody gave back.
    thread::sleep(term / 5);
    for holder in &holders {
        let answer = holder.ask(LeaseOperation::Grant, 0);
        assert_eq!(answer.state, LeaseState::NotHeld);
        assert!(u128::from(answer.time_ms) > term.as_millis(), "{answer:?}");
    }
}

#[test]
fn unlisted_client_gets_no_lease() {
    let leases = Some(LeaseTable::new(LONG, Duration::ZERO, 1));
    let plan = Plan { leases, lease_holders: LeaseHolders::NONE, ..Plan::over(Arc::new(Memory::default())) };
    let fixture = Fixture::new(plan, None);
    let holder = Holder::new(&fixture, 1);
    let asked = ask(&holder.nfs, holder.root.as_handle(), LeaseOperation::Grant, 0);
    assert!(matches!(asked, Reply::Failed(Status::Perm, ())), "{asked:?}");
}

#[test]
fn user_without_access_to_root_gets_no_lease() {
    let tree = Arc::new(Memory::default());
    let owner = Session::checked(&*tree, PermissionCheck::Caller);
    let leases = Some(LeaseTable::new(LONG, Duration::ZERO, 1));
    let plan = Plan { leases, ..Plan::over(tree) }.squashing(Squash::default());
    let fixture = Fixture::new(plan, None);
    let holder = Holder::new(&fixture, 1);
    for (mode, status) in [(0o700, Some(Status::Acces)), (0o744, Some(Status::Acces)), (0o755, None)] {
        owner.chmod(NodeId::ROOT, mode).expect("chmod");
        let asked = match ask(&holder.nfs, holder.root.as_handle(), LeaseOperation::Grant, 0) {
            Reply::Ok(_) => None,
            Reply::Failed(status, ()) => Some(status),
        };
        assert_eq!(asked, status, "{mode:o}");
    }
}

#[test]
fn stopping_server_answers_waiting_lease_calls() {
    let fixture = leased(LONG);
    let holder = Holder::new(&fixture, 1);
    let (epoch, nfs) = (holder.granted(), holder.nfs.clone());
    let Fixture { server, root, .. } = fixture;
    let question = thread::spawn(move || match ask(&nfs, root.as_handle(), LeaseOperation::Keep, epoch) {
        Reply::Ok(answer) => answer.state,
        Reply::Failed(status, ()) => panic!("{status:?}"),
    });
    until("the call waits", || server.counts().later > 0);
    server.stop();
    assert_eq!(question.join().expect("answered"), LeaseState::NotHeld);
}
