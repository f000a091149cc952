//! Many threads on one link: each gets its own answer, and none is left waiting.

use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_back_vrpc_client::VrpcFileSystem;
use tombolo_core::fs::{Create, Export, OpenFlags};
use tombolo_layer_basic::delay;
use tombolo_test_support::{Session, plain, tests};
use tombolo_vrpc_tests::site::{Plan, Site, client};

const THREADS: usize = 6;
const ROUNDS: usize = 400;
/// Far longer than it takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs threads; panics with what `left` says unless all end in time.
fn threads(run: impl Fn(usize) + Clone + Send + 'static, left: impl Fn() -> String) {
    let (done, all) = mpsc::channel();
    for thread in 0..THREADS {
        let (run, done) = (run.clone(), done.clone());
        std::thread::spawn(move || {
            run(thread);
            done.send(thread).expect("the test waits");
        });
    }
    drop(done);
    for _ in 0..THREADS {
        assert!(all.recv_timeout(PATIENCE).is_ok(), "a caller waits for ever, or failed: {}", left());
    }
}

fn crowd(export: impl Export + 'static, plan: Plan) {
    let host = Site::serving(Arc::new(export), plan);
    let fs = host.export().attach_session(&client()).expect("a session");
    let session = Session::of(fs.clone());
    let run = move |thread| {
        let file = session.file(&format!("file-{thread}"));
        for round in 0..ROUNDS {
            // Some fit into the frame, some need bulk memory.
            let len = if round % 2 == 0 { 100 } else { 3000 };
            let bytes = vec![(thread * ROUNDS + round) as u8; len];
            let written = session.write(file, round as u64, &bytes).expect("write");
            assert_eq!(written, len);
            let read = session.read(file, round as u64, len).expect("read");
            assert_eq!(read.len(), len);
            assert!(read == bytes, "another thread's data");
        }
    };
    threads(run, || format!("{:?} {:?}", fs.counts(), host.answers()));
}

fn slow() -> impl Export {
    delay::over(Arc::new(Memory::default()), Duration::from_micros(20)).expect("a timer")
}

tests! {
    many_threads_on_one_link: crowd(Memory::default(), Plan::default());
    many_threads_share_link_with_scarce_bulk_memory:
        crowd(Memory::default(), Plan { bulk_bytes: 8192, slots: 8, ..Plan::default() });
    many_threads_on_one_link_whose_answers_come_later: crowd(slow(), Plan::default());
}

/// Opens and closes links with one caller each, which often sleeps: the wake-ups are under test.
#[test]
fn one_thread_on_each_of_many_links() {
    let host = Site::serving(Arc::new(Memory::default()), Plan::default());
    let sessions: Arc<Mutex<Vec<Weak<VrpcFileSystem>>>> = Arc::default();
    let (site, opened) = (host.clone(), sessions.clone());
    let run = move |thread| {
        let export = site.export();
        for life in 0..20 {
            let fs = export.attach_session(&client()).expect("a session");
            opened.lock().expect("no panic").push(Arc::downgrade(&fs));
            let session = Session::of(fs);
            let how = Create { flags: OpenFlags::WRITE | OpenFlags::APPEND, ..plain() };
            let file = session.file_as(&format!("file-{thread}-{life}"), &how).expect("create");
            for _ in 0..50 {
                assert_eq!(session.write(file, 0, &[thread as u8; 100]).expect("write"), 100);
            }
            session.release(file);
        }
    };
    threads(run, || {
        let sessions = sessions.lock().expect("no panic");
        let left: Vec<_> = sessions.iter().filter_map(Weak::upgrade).map(|fs| fs.counts()).collect();
        format!("{left:?} {:?}", host.answers())
    });
}
