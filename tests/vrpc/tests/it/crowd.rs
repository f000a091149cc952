//! Many threads on one link: each gets its own answer, and none is left waiting.

use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_back_vrpc_client::VrpcFileSystem;
use tombolo_core::fs::{Create, Export, File, FileSystem, Mode, Name, NewMode, NodeId, OpenFlags, Write};
use tombolo_layer_basic::delay;
use tombolo_mem::{Buffer, Source};
use tombolo_vrpc_tests::test_host::{Plan, TestHost, client, root};

const THREADS: usize = 6;
const ROUNDS: usize = 400;
/// Far longer than it takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn crowd(export: Arc<dyn Export>, plan: Plan) {
    let host = TestHost::new(export, plan);
    let fs = host.export().attach_session(&client()).expect("a session");
    let cx = root();
    let how = Create {
        mode: NewMode::settled(Mode::new(0o600)),
        flags: OpenFlags::READ | OpenFlags::WRITE,
        ..Create::default()
    };
    let (done, all) = mpsc::channel();
    for thread in 0..THREADS {
        let name = format!("file-{thread}");
        let name = Name::new(name.as_bytes()).expect("a name");
        let created = fs.create(&cx, NodeId::ROOT, name, &how).wait().expect("create");
        let file = File { node: created.entry.node, open: created.open };
        let (fs, cx, done) = (fs.clone(), cx.clone(), done.clone());
        std::thread::spawn(move || {
            for round in 0..ROUNDS {
                // Some fit into the frame, some need bulk memory.
                let len = if round % 2 == 0 { 100 } else { 3000 };
                let bytes = vec![(thread * ROUNDS + round) as u8; len];
                let how = Write { offset: round as u64, ..Write::default() };
                let written = fs.write(&cx, file, &how, Source::from(bytes.clone())).wait().expect("write");
                assert_eq!(written.count, len);
                let mut buffer = Buffer::new(len);
                let read = fs.read(&cx, file, round as u64, buffer.sink(0..len)).wait().expect("read");
                assert_eq!(read.count, len);
                assert!(buffer.as_slice().expect("the read is over") == bytes, "another thread's data");
            }
            done.send(thread).expect("the test waits");
        });
    }
    drop(done);
    for _ in 0..THREADS {
        if all.recv_timeout(PATIENCE).is_err() {
            panic!("a caller waits for ever, or failed: {:?} {:?}", fs.counts(), host.server.counts());
        }
    }
}

#[test]
fn many_threads_on_one_link() {
    crowd(Arc::new(Memory::default()), Plan::default());
}

#[test]
fn many_threads_share_link_with_scarce_bulk_memory() {
    crowd(Arc::new(Memory::default()), Plan { bulk_bytes: 8192, slots: 8, ..Plan::default() });
}

#[test]
fn many_threads_on_one_link_whose_answers_come_later() {
    let export = delay::over(Arc::new(Memory::default()), Duration::from_micros(20)).expect("a timer");
    crowd(Arc::new(export), Plan::default());
}

/// Opens and closes links with one caller each, which often sleeps: the wake-ups are under test.
#[test]
fn one_thread_on_each_of_many_links() {
    let host = TestHost::new(Arc::new(Memory::default()), Plan::default());
    let (done, all) = mpsc::channel();
    let sessions: Arc<Mutex<Vec<Weak<VrpcFileSystem>>>> = Arc::default();
    for thread in 0..THREADS {
        let (export, done, sessions) = (host.export(), done.clone(), sessions.clone());
        std::thread::spawn(move || {
            for life in 0..20 {
                let fs = export.attach_session(&client()).expect("a session");
                sessions.lock().expect("no panic").push(Arc::downgrade(&fs));
                let cx = root();
                let name = format!("file-{thread}-{life}");
                let how = Create { flags: OpenFlags::WRITE | OpenFlags::APPEND, ..Create::default() };
                let name = Name::new(name.as_bytes()).expect("a name");
                let created = fs.create(&cx, NodeId::ROOT, name, &how).wait().expect("create");
                let file = File { node: created.entry.node, open: created.open };
                for _ in 0..50 {
                    let record = Source::from(vec![thread as u8; 100]);
                    let written = fs.write(&cx, file, &Write::default(), record).wait().expect("write");
                    assert_eq!(written.count, 100);
                }
                fs.release(&cx, file);
            }
            done.send(thread).expect("the test waits");
        });
    }
    drop(done);
    for _ in 0..THREADS {
        if all.recv_timeout(PATIENCE).is_err() {
            let sessions = sessions.lock().expect("no panic");
            let left: Vec<_> = sessions.iter().filter_map(Weak::upgrade).map(|fs| fs.counts()).collect();
            panic!("a caller waits for ever, or failed: {left:?} {:?}", host.counts());
        }
    }
}
