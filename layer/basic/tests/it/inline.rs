//! Operations through a stack of layers complete immediately, without allocations.

use std::sync::Arc;

use tombolo_allocations::of_this_thread;
use tombolo_back_memory::Memory;
use tombolo_core::fs::{Export, File, NodeId, OpenFlags, Write};
use tombolo_layer_basic::stats::Counters;
use tombolo_layer_basic::{fault, readonly, stats};
use tombolo_mem::Buffer;
use tombolo_test_support::{READ_WRITE, Session, name};

fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = of_this_thread();
    work();
    of_this_thread() - before
}

/// Opens a file of 8 KiB through four layers, of which `third` puts one over the others.
fn opened(third: fn(Arc<dyn Export>) -> Arc<dyn Export>, flags: OpenFlags) -> (Session, File) {
    let memory: Arc<dyn Export> = Arc::new(Memory::default());
    Session::attach(&*memory).put("file", &[0; 8192]);
    let counted = Arc::new(stats::over(memory, Counters::new()));
    let export = third(Arc::new(fault::over(counted, fault::Plan::default())));
    let session = Session::attach(&stats::over(export, Counters::new()));
    let file = session.open("file", flags).unwrap();
    (session, file)
}

#[test]
fn reading_through_four_layers_allocates_nothing() {
    let (Session { fs, cx, .. }, file) = &opened(|export| Arc::new(readonly::over(export)), OpenFlags::READ);
    let buffer = Buffer::new(4096);
    // Beyond the calls that are all timed, so that both ways of counting are covered.
    let allocations = allocations_of(|| {
        for _ in 0..100 {
            assert!(fs.getattr(cx, file.node, None).is_done());
            assert!(fs.lookup(cx, NodeId::ROOT, name("file")).is_done());
            assert!(fs.read(cx, *file, 0, buffer.sink(0..4096)).is_done());
        }
    });
    assert_eq!(allocations, 0);
}

#[test]
fn writing_through_four_layers_allocates_nothing() {
    let third = |export| -> Arc<dyn Export> { Arc::new(fault::over(export, fault::Plan::default())) };
    let (Session { fs, cx, .. }, file) = &opened(third, READ_WRITE);
    let buffer = Buffer::new(4096);
    let allocations = allocations_of(|| {
        for _ in 0..100 {
            assert!(fs.write(cx, *file, &Write::default(), buffer.source(0..4096)).is_done());
        }
    });
    assert_eq!(allocations, 0);
}

#[test]
fn the_allocator_does_count() {
    assert_eq!(allocations_of(|| drop(Box::new(1))), 1);
}
