//! Operations through a stack of layers complete immediately, without allocations.

use std::sync::Arc;

use tombolo_allocations::of_this_thread;
use tombolo_back_memory::Memory;
use tombolo_core::fs::{
    Client, Create, Export, File, FileSystem, Mode, Name, NewMode, NodeId, OpenFlags, PermissionCheck, Write,
};
use tombolo_core::{Ctx, SessionId};
use tombolo_layer_basic::stats::Counters;
use tombolo_layer_basic::{fault, readonly, stats};
use tombolo_mem::Buffer;

fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = of_this_thread();
    work();
    of_this_thread() - before
}

struct Fixture {
    fs: Arc<dyn FileSystem>,
    cx: Ctx,
    file: File,
}

/// Creates a session over `layers` of a tree with one open file of 8 KiB.
fn fixture(layers: impl FnOnce(Arc<dyn Export>) -> Arc<dyn Export>, flags: OpenFlags) -> Fixture {
    let memory: Arc<dyn Export> = Arc::new(Memory::default());
    let client = Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::Caller };
    let cx = Ctx::root(client.session);
    let plain = memory.attach(&client).unwrap();
    let how =
        Create { mode: NewMode::settled(Mode::new(0o644)), flags: OpenFlags::WRITE, ..Create::default() };
    let created = plain.create(&cx, NodeId::ROOT, name(), &how).wait().unwrap();
    let made = File { node: created.entry.node, open: created.open };
    let source = Buffer::new(8192).source(0..8192);
    plain.write(&cx, made, &Write::default(), source).wait().unwrap();

    let fs = layers(memory).attach(&client).unwrap();
    let node = fs.lookup(&cx, NodeId::ROOT, name()).wait().unwrap().node;
    let open = fs.open(&cx, node, flags).wait().unwrap().open;
    Fixture { fs, cx, file: File { node, open } }
}

fn name() -> Name<'static> {
    Name::new(b"file").unwrap()
}

#[test]
fn reading_through_four_layers_allocates_nothing() {
    let fixture = fixture(
        |export| {
            let export = Arc::new(stats::over(export, Counters::new()));
            let export = Arc::new(fault::over(export, fault::Plan::default()));
            let export = Arc::new(readonly::over(export));
            Arc::new(stats::over(export, Counters::new()))
        },
        OpenFlags::READ,
    );
    let buffer = Buffer::new(4096);
    // Beyond the calls that are all timed, so that both ways of counting are covered.
    let allocations = allocations_of(|| {
        for _ in 0..100 {
            assert!(fixture.fs.getattr(&fixture.cx, fixture.file.node, None).is_done());
            assert!(fixture.fs.lookup(&fixture.cx, NodeId::ROOT, name()).is_done());
            assert!(fixture.fs.read(&fixture.cx, fixture.file, 0, buffer.sink(0..4096)).is_done());
        }
    });
    assert_eq!(allocations, 0);
}

#[test]
fn writing_through_four_layers_allocates_nothing() {
    let fixture = fixture(
        |export| {
            let export = Arc::new(stats::over(export, Counters::new()));
            let export = Arc::new(fault::over(export, fault::Plan::default()));
            let export = Arc::new(fault::over(export, fault::Plan::default()));
            Arc::new(stats::over(export, Counters::new()))
        },
        OpenFlags::READ | OpenFlags::WRITE,
    );
    let buffer = Buffer::new(4096);
    let allocations = allocations_of(|| {
        for _ in 0..100 {
            let answer =
                fixture.fs.write(&fixture.cx, fixture.file, &Write::default(), buffer.source(0..4096));
            assert!(answer.is_done());
        }
    });
    assert_eq!(allocations, 0);
}

#[test]
fn the_allocator_does_count() {
    assert_eq!(allocations_of(|| drop(Box::new(1))), 1);
}
