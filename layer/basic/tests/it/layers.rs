//! The function of each layer, over the reference model.

use std::fs::File as HostFile;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_back_memory::{Memory, MemoryDisk};
use tombolo_core::block::{Allocation, BlockDevice, Range, Zeroing};
use tombolo_core::fs::{AccessMask, Export, NewMode, NodeId, Op, OpenFlags};
use tombolo_core::{Ctx, Error, Interrupt, SessionId, Stability};
use tombolo_layer_basic::fault::{Plan, Rule, What, When};
use tombolo_layer_basic::stats::Counters;
use tombolo_layer_basic::{delay, fault, readonly, record, stats};
use tombolo_mem::{Buffer, Source};
use tombolo_test_support::{Session, name};

#[test]
fn stats_count_calls_errors_and_bytes() {
    let counters = Counters::new();
    let session = Session::attach(&stats::over(Arc::new(Memory::default()), counters.clone()));
    let file = session.file("file");
    session.write(file, 0, &[0; 1000]).unwrap();
    session.write(file, 0, &[0; 500]).unwrap();
    for _ in 0..3 {
        session.lookup("missing").unwrap_err();
    }
    session.release(file);
    session.forget(file.node);
    let snapshot = counters.snapshot();
    let of = |op: &str| {
        let operation = snapshot.operation(op).unwrap();
        (operation.count, operation.errors, operation.bytes)
    };
    assert_eq!(of("create"), (1, 0, 0));
    assert_eq!(of("write"), (2, 0, 1500));
    assert_eq!(of("lookup"), (3, 3, 0));
    assert_eq!((of("release"), of("forget")), ((1, 0, 0), (1, 0, 0)));
    assert!(snapshot.operation("write").unwrap().quantile_ns(0.5).unwrap() > 0);
    assert!(snapshot.operation("mkdir").is_none(), "what was never called is not listed");
}

#[test]
fn stats_time_what_comes_later_until_it_is_there() {
    let counters = Counters::new();
    let slow = delay::over(Arc::new(Memory::default()), Duration::from_millis(20)).unwrap();
    let session = Session::attach(&stats::over(Arc::new(slow), counters.clone()));
    session.fs.statfs(&session.cx, NodeId::ROOT).wait().unwrap();
    assert!(counters.snapshot().operation("statfs").unwrap().max_ns >= 20_000_000);
}

#[test]
fn disk_operations_in_progress_are_counted() {
    let (counters, cx) = (Counters::of_disk(), Ctx::root(SessionId(1)));
    let slow = delay::disk::over(Arc::new(MemoryDisk::new(1 << 20).unwrap()), Duration::from_millis(5));
    let disk = stats::disk::over(slow.unwrap(), counters.clone());
    let under_way = || counters.snapshot().under_way;
    assert_eq!(under_way(), Some(0));
    let [first, second, third] = [0; 3].map(|_| disk.flush(&cx));
    assert_eq!(under_way(), Some(3));
    drop(first);
    assert_eq!(under_way(), Some(2));
    second.wait().unwrap();
    third.wait().unwrap();
    assert_eq!(under_way(), Some(0));
    let at_once = stats::disk::over(Arc::new(MemoryDisk::new(1 << 20).unwrap()), counters.clone());
    at_once.flush(&cx).wait().unwrap();
    assert_eq!((under_way(), counters.snapshot().operation("flush").unwrap().count), (Some(0), 4));
    assert_eq!(Counters::new().snapshot().under_way, None, "of file systems it is not known");
}

#[test]
fn delay_answers_later_and_changes_nothing_else() {
    let time = Duration::from_millis(10);
    let session = Session::attach(&delay::over(Arc::new(Memory::default()), time).unwrap());
    let began = Instant::now();
    let answer = session.fs.mkdir(&session.cx, NodeId::ROOT, name("dir"), NewMode::default());
    assert!(!answer.is_done());
    answer.wait().unwrap();
    assert!(began.elapsed() >= time);
    session.lookup("dir").unwrap();
}

#[test]
fn delay_ends_at_an_interrupt_with_nothing_done() {
    let mut session =
        Session::attach(&delay::over(Arc::new(Memory::default()), Duration::from_secs(60)).unwrap());
    let interrupt = Interrupt::new();
    session.cx.interrupt = interrupt.clone();
    let answer = session.fs.mkdir(&session.cx, NodeId::ROOT, name("dir"), NewMode::default());
    let waiter = std::thread::spawn(move || answer.wait());
    interrupt.raise();
    assert!(matches!(waiter.join().unwrap(), Err(Error::Interrupted)));
}

#[test]
fn slow_operations_do_not_wait_for_each_other() {
    let time = Duration::from_millis(100);
    let session = Session::attach(&delay::over(Arc::new(Memory::default()), time).unwrap());
    let began = Instant::now();
    let answers: Vec<_> = (0..100).map(|_| session.fs.getattr(&session.cx, NodeId::ROOT, None)).collect();
    for answer in answers {
        answer.wait().unwrap();
    }
    assert!(began.elapsed() < 60 * time, "a hundred answers took {:?}", began.elapsed());
}

#[test]
fn faults_strike_as_planned() {
    let full = Rule { op: Some(Op::Write), when: When::Nth(2), what: What::Fail(|| Error::NoSpace) };
    let short = Rule { op: Some(Op::Write), when: When::Nth(3), what: What::Short(10) };
    let plan = Plan { rules: vec![full, short], seed: 1 };
    let session = Session::attach(&fault::over(Arc::new(Memory::default()), plan));
    let file = session.file("file");
    assert_eq!(session.write(file, 0, &[1; 100]).unwrap(), 100);
    assert!(matches!(session.write(file, 0, &[2; 100]), Err(Error::NoSpace)));
    assert_eq!(session.write(file, 0, &[3; 100]).unwrap(), 10);
    assert_eq!(session.write(file, 0, &[4; 100]).unwrap(), 100);
    assert_eq!(session.attr(file.node).size, 100, "what failed changed nothing");
}

#[test]
fn readonly_refuses_every_change_and_lets_all_else_pass() {
    let memory: Arc<dyn Export> = Arc::new(Memory::default());
    let plain = Session::attach(&*memory);
    let file = plain.file("file");
    plain.write(file, 0, b"data").unwrap();

    let session = Session::attach(&readonly::over(memory));
    assert!(session.fs.profile().read_only);
    let read_only = |result: tombolo_core::Result<()>| assert!(matches!(result, Err(Error::ReadOnly)));
    read_only(session.mkdir("dir").map(drop));
    read_only(session.unlink("file").map(drop));
    read_only(session.setattr("file", Default::default()).map(drop));
    read_only(session.open("file", OpenFlags::READ | OpenFlags::WRITE).map(drop));
    read_only(session.open("file", OpenFlags::READ | OpenFlags::TRUNCATE).map(drop));
    read_only(session.access("file", AccessMask::WRITE));
    session.access("file", AccessMask::READ).unwrap();
    let file = session.reader("file");
    session.fs.flush(&session.cx, file, tombolo_core::fs::LockOwner(0)).wait().unwrap();
}

#[test]
fn disk_faults_follow_plan_and_change_nothing() {
    let fail = |op, when| Rule { op: Some(op), when, what: What::Fail(|| Error::NoSpace) };
    let rules = vec![
        fail(Op::Write, When::Nth(1)),
        fail(Op::Allocate, When::Nth(2)),
        fail(Op::Flush, When::Always),
        fail(Op::Setattr, When::Always),
    ];
    let disk = fault::over_disk(Arc::new(MemoryDisk::new(8192).unwrap()), Plan { rules, seed: 0 });
    let (cx, all) = (Ctx::root(SessionId(1)), Range { offset: 0, len_bytes: 8192 });
    let write = || disk.write(&cx, 0, Stability::Unstable, Source::from(vec![7; 8192])).wait();
    let is_all = |allocation| {
        let extents = disk.extents(&cx, all, 10).wait().unwrap();
        extents.as_slice().iter().all(|extent| extent.allocation == allocation)
    };
    assert!(matches!(write(), Err(Error::NoSpace)));
    assert!(is_all(Allocation::Hole));
    disk.discard(&cx, all).wait().unwrap();
    write().unwrap();
    let unmap = Zeroing { may_unmap: true, ..Zeroing::default() };
    assert!(matches!(disk.write_zeroes(&cx, all, unmap).wait(), Err(Error::NoSpace)));
    assert!(is_all(Allocation::Data));
    assert!(matches!(disk.flush(&cx).wait(), Err(Error::NoSpace)));
    assert!(matches!(disk.resize().unwrap().set_size(&cx, 4096).wait(), Err(Error::NoSpace)));
    assert_eq!(disk.geometry().size_bytes, 8192);
}

#[test]
fn first_reads_of_disk_are_recorded_in_order() {
    let path = std::env::temp_dir().join(format!("tombolo-record-{}", std::process::id()));
    let out = || Arc::new(HostFile::options().create(true).append(true).open(&path).unwrap());
    let disk = |name| record::over(Arc::new(MemoryDisk::new(40_448).unwrap()), out(), name);
    let (cx, memory, other) = (Ctx::root(SessionId(1)), disk("memory"), disk("disk"));
    let read = |disk: &dyn BlockDevice, offset, len| {
        disk.read(&cx, offset, Buffer::new(len).sink(0..len)).wait().unwrap();
    };
    read(&*memory, 8192, 4096);
    read(&*other, 0, 100);
    // Overlapping earlier reads, and the partial block at the end.
    read(&*memory, 5000, 12_000);
    read(&*memory, 36_864, 3584);
    read(&*memory, 4096, 30_000);
    memory.write(&cx, 0, Stability::Unstable, Source::from(vec![7; 4096])).wait().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let expected = "8192 4096 memory\n0 4096 disk\n4096 4096 memory\n12288 8192 memory\n36864 3584 memory\n20480 16384 memory\n";
    assert_eq!(text, expected);
}
