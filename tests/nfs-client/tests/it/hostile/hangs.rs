//! Servers that do not reply, temporarily or for ever.

use std::process::Command;
use std::time::{Duration, Instant};

use tombolo_core::Error;
use tombolo_core::fs::{LockOwner, SyncScope, Write};
use tombolo_nfs_client_tests::mount::{hard, mounted, world};
use tombolo_nfs_client_tests::server::{ReceivedCall, ScriptedReply};
use tombolo_test_support::until;
use tombolo_wire_nfs3::Procedure;

use crate::hostile::operations::for_each;
use crate::hostile::stage::{Stage, on_hard, on_soft, raise_after, told};

/// Set in a process that runs one test.
const ALONE: &str = "TOMBOLO_TEST_ALONE";

#[test]
fn a_soft_mount_gives_up_in_time() {
    for_each(|operation| {
        let stage = Stage::soft();
        let procedure = operation.procedure;
        let arm = || {
            stage.server.on(procedure, |_| ScriptedReply::Silence);
        };
        let begun = Instant::now();
        let error = (operation.run)(&stage.world, "silent", &arm).expect_err("no answer");
        assert!(begun.elapsed() < Duration::from_secs(10), "{procedure:?} took {:?}", begun.elapsed());
        let timed_out = matches!(error, Error::TimedOut) || told(&error).contains("127.0.0.1");
        assert!(timed_out, "{procedure:?}: {}", told(&error));
    });
}

#[test]
fn interrupt_ends_any_call_of_silent_hard_mount() {
    for_each(|operation| {
        let stage = Stage::hard();
        let procedure = operation.procedure;
        let (world, interrupt) = stage.world.interruptible();
        let arm = || {
            stage.server.on(procedure, |_| ScriptedReply::Silence);
            raise_after(&interrupt, Duration::from_millis(200));
        };
        let error = (operation.run)(&world, "silent", &arm).expect_err("interrupted");
        assert!(matches!(error, Error::Interrupted), "{procedure:?}: {}", told(&error));
    });
}

#[test]
fn a_hard_mount_waits_for_a_slow_server() {
    on_hard(|stage, world| {
        stage.server.now(|asked: &ReceivedCall<'_>| match asked.is(Procedure::Getattr) && asked.nth == 1 {
            true => ScriptedReply::Forward.after(Duration::from_secs(2)),
            false => ScriptedReply::Forward,
        });
        let asked = stage.server.count_of(Procedure::Getattr);
        let begun = Instant::now();
        world.attr(world.dir);
        assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
        assert_eq!(stage.server.count_of(Procedure::Getattr), asked + 1, "it is not asked again so soon");
    });
}

#[test]
fn a_hard_mount_waits_for_an_unreachable_server() {
    on_hard(|stage, _| {
        // Connections are closed; after a while calls are served.
        stage.server.now(|_| ScriptedReply::Reset);
        let world = stage.world.clone();
        let waits = std::thread::spawn(move || world.attr(world.dir));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!waits.is_finished(), "an answer that was not sent");
        stage.server.be_honest();
        waits.join().expect("the answer, in the end");
    });
}

/// Drops clients with pending calls; other clients must be unaffected.
#[test]
fn client_dropped_during_server_hang_leaks_no_threads() {
    // A process of its own, since threads are counted.
    if std::env::var_os(ALONE).is_none() {
        let name = "hostile::hangs::client_dropped_during_server_hang_leaks_no_threads";
        let alone = Command::new(std::env::current_exe().expect("this program"))
            .args([name, "--exact", "--nocapture"])
            .env(ALONE, "1")
            .output()
            .expect("this program again");
        let output = String::from_utf8_lossy(&alone.stdout);
        assert!(alone.status.success() && output.contains("1 passed"), "{alone:?}");
        return;
    }
    let threads = || std::fs::read_dir("/proc/self/task").expect("threads").count();
    on_soft(move |stage, _| {
        let before = threads();
        for _ in 0..5 {
            let world = world(mounted(stage.server.address(), hard()));
            let file = world.file("file");
            stage.server.now(|_| ScriptedReply::Silence);
            let written = world.fs.write(&world.cx, file, &Write::default(), b"lost".to_vec().into());
            drop(written);
            world.release(file);
            drop(world);
            stage.server.be_honest();
            // Pending calls are repeated now instead of after a minute.
            stage.server.reset_all();
        }
        // One leaked thread per client would be five; the scripted server's end with their connections.
        until("as few threads as before", || threads() <= before + 2);
    });
}

#[test]
fn close_on_hung_soft_mount_fails_in_time() {
    on_soft(|stage, world| {
        let file = world.file("file");
        stage.server.now(|asked: &ReceivedCall<'_>| {
            let data = asked.is(Procedure::Write) || asked.is(Procedure::Commit);
            if data { ScriptedReply::Silence } else { ScriptedReply::Forward }
        });
        let written = world.write_as(file, &Write::default(), b"contents");
        let closed = world.fs.flush(&world.cx, file, LockOwner(1)).wait();
        written.map(drop).and(closed).expect_err("the data are nowhere");
        let _ = world.fs.fsync(&world.cx, file, SyncScope::All).wait();
        world.release(file);
    });
}
