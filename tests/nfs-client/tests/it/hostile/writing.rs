//! Impossible replies to WRITE and COMMIT, and changing verifiers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo_conformance::waist::World;
use tombolo_core::block::{BlockDevice, OpenOptions};
use tombolo_core::fs::{File, LockOwner, SyncScope, Write};
use tombolo_core::{Result, block_on};
use tombolo_layer_file_disk::FileDisk;
use tombolo_nfs_client_tests::server::{ReceivedCall, ScriptedReply};
use tombolo_test_support::until;
use tombolo_wire_nfs3::args::StableHow;
use tombolo_wire_nfs3::results::{CommitOk, CommitReply, WriteOk, WriteReply};
use tombolo_wire_nfs3::{Call, Procedure, Status, WccData, WriteVerifier};

use crate::hostile::stage::{assert_names, on_hard, on_soft};

const CONTENTS: &[u8] = b"what has to be in the file in the end";

fn written(asked: &ReceivedCall<'_>, count: u32, committed: StableHow, verifier: u64) -> ScriptedReply {
    let verifier = WriteVerifier(verifier.to_be_bytes());
    asked.results(&WriteReply::Ok(WriteOk { file_wcc: WccData::NONE, count, committed, verifier }))
}

fn committed(asked: &ReceivedCall<'_>, verifier: u64) -> ScriptedReply {
    let verifier = WriteVerifier(verifier.to_be_bytes());
    asked.results(&CommitReply::Ok(CommitOk { file_wcc: WccData::NONE, verifier }))
}

fn sync(world: &World, file: File) -> Result<()> {
    world.fs.fsync(&world.cx, file, SyncScope::All).wait()
}

/// Returns the file's content as another client reads it.
fn at_the_server(world: &World) -> Vec<u8> {
    world.other_session().contents("file")
}

/// Writes with these replies to WRITE, and syncs.
fn write_of(reply: impl Fn(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static) -> Result<()> {
    on_soft(move |stage, world| {
        let file = world.file("file");
        stage.server.on(Procedure::Write, reply);
        let written = world.write_as(file, &Write::default(), CONTENTS);
        let synced = sync(world, file);
        world.release(file);
        written.and(synced)
    })
}

/// Replies that more was written than sent, or nothing, which must be no loop either.
#[test]
fn impossible_counts_of_written_bytes_are_errors() {
    let len = CONTENTS.len() as u32;
    for count in [len + 1, len + 4096, u32::MAX / 2, 0] {
        assert_names(write_of(move |asked| written(asked, count, StableHow::FileSync, 1)), "write");
    }
}

#[test]
fn short_server_writes_are_completed() {
    on_soft(|stage, world| {
        let file = world.file("file");
        let honest = stage.honest.nfs();
        stage.server.now(move |asked: &ReceivedCall<'_>| {
            let Some(Call::Write(args)) = asked.call() else { return ScriptedReply::Forward };
            // Writes and reports at most five bytes.
            let len = args.count.min(5);
            let range = args.data.range(asked.arguments().len()).expect("data");
            let bytes = &asked.arguments()[range][..len as usize];
            let done = honest.write(&args.file.to_owned(), args.offset, bytes, StableHow::FileSync);
            assert_eq!(done.status(), None);
            written(asked, len, StableHow::FileSync, 1)
        });
        world.write_all(file, 0, CONTENTS);
        sync(world, file).expect("synced");
        world.release(file);
        stage.server.be_honest();
        assert_eq!(at_the_server(world), CONTENTS);
    });
}

#[test]
fn ever_changing_verifier_neither_loops_nor_loses_data() {
    on_soft(|stage, world| {
        let file = world.file("file");
        static VERIFIER: AtomicU64 = AtomicU64::new(1);
        // Executes writes and replies with a new verifier each time.
        stage.server.now(|asked: &ReceivedCall<'_>| match asked.call() {
            Some(Call::Write(_) | Call::Commit(_)) => ScriptedReply::edited(|results| {
                let at = results.len() - 8;
                let verifier = VERIFIER.fetch_add(1, Ordering::Relaxed);
                results[at..].copy_from_slice(&verifier.to_be_bytes());
            }),
            _ => ScriptedReply::Forward,
        });
        world.write_all(file, 0, CONTENTS);
        // The client must fail, or write so that verifiers do not matter.
        let synced = sync(world, file);
        let writes = stage.server.count_of(Procedure::Write);
        assert!(writes < 1000, "{writes} writes");
        if let Err(error) = synced {
            assert_names(Err(error), "");
        }
        world.release(file);
        stage.server.be_honest();
        assert_eq!(at_the_server(world), CONTENTS);
    });
}

#[test]
fn changed_verifier_makes_client_write_again() {
    on_soft(|stage, world| {
        let file = world.file("file");
        // The first server accepts the data as unstable and loses them at its restart: the correct one never
        // receives them.
        stage.server.now(|asked: &ReceivedCall<'_>| match asked.call() {
            Some(Call::Write(args)) if asked.nth == 1 => written(asked, args.count, StableHow::Unstable, 1),
            Some(Call::Commit(_)) if asked.nth == 1 => committed(asked, 2),
            _ => ScriptedReply::Forward,
        });
        world.write_all(file, 0, CONTENTS);
        sync(world, file).expect("synced, after all was written again");
        world.release(file);
        stage.server.be_honest();
        assert_eq!(at_the_server(world), CONTENTS);
        assert!(stage.server.count_of(Procedure::Write) >= 2);
    });
}

#[test]
fn write_behind_error_is_reported_at_sync_or_close() {
    for sync_first in [true, false] {
        on_soft(move |stage, world| {
            let file = world.file("file");
            stage.server.on(Procedure::Write, |asked| {
                asked.results(&WriteReply::Failed(Status::NoSpc, WccData::NONE))
            });
            let written = world.write_as(file, &Write::default(), CONTENTS);
            let ended = match sync_first {
                true => sync(world, file),
                false => world.fs.flush(&world.cx, file, LockOwner(1)).wait(),
            };
            let error = written.and(ended).expect_err("there is no space");
            assert_eq!(error.to_string(), "no space left on device");
            world.release(file);
        });
    }
}

/// Tests data of an earlier client that was killed before its COMMIT.
#[test]
fn first_disk_flush_commits_data_of_earlier_client() {
    on_soft(|stage, world| {
        let file = world.file("file");
        world.write_as(file, &Write::default(), &[7; 8192]).expect("written");
        sync(world, file).expect("stable");
        world.release(file);
        let (path, options) = (format!("{}/file", world.name()), OpenOptions::default());
        let disk = FileDisk::open(world.fs.clone(), world.cx.clone(), path.as_bytes(), &options);
        let disk = block_on(disk).expect("a disk");
        let before = stage.server.count_of(Procedure::Commit);
        for _ in 0..2 {
            disk.flush(&world.cx).wait().expect("flushed");
            assert_eq!(stage.server.count_of(Procedure::Commit), before + 1, "once");
        }
    });
}

#[test]
fn a_failed_commit_is_reported() {
    on_soft(|stage, world| {
        let file = world.file("file");
        stage.server.now(|asked: &ReceivedCall<'_>| match asked.call() {
            Some(Call::Write(args)) => written(asked, args.count, StableHow::Unstable, 1),
            Some(Call::Commit(_)) => asked.results(&CommitReply::Failed(Status::Io, WccData::NONE)),
            _ => ScriptedReply::Forward,
        });
        let written = world.write_as(file, &Write::default(), CONTENTS);
        let result = written.and(sync(world, file));
        assert_names(result, "commit");
        world.release(file);
    });
}

#[test]
fn commit_level_below_request_is_an_error() {
    on_soft(|stage, world| {
        let file = world.file("file");
        stage.server.now(|asked: &ReceivedCall<'_>| match asked.call() {
            // Replies UNSTABLE to any stability.
            Some(Call::Write(args)) => written(asked, args.count, StableHow::Unstable, 1),
            Some(Call::Commit(_)) => committed(asked, 1),
            _ => ScriptedReply::Forward,
        });
        let how = Write { stability: tombolo_core::Stability::FileSync, ..Write::default() };
        let result = world.write_as(file, &how, CONTENTS);
        // The client must either commit the data otherwise or fail; a reply below the requested stability is
        // neither.
        if let Ok(done) = result {
            assert!(done.stability == tombolo_core::Stability::FileSync);
            assert!(stage.server.count_of(Procedure::Commit) > 0);
        }
        world.release(file);
    });
}

/// Answers JUKEBOX to the first write while a second one to the same range succeeds.
#[test]
fn a_delayed_write_does_not_overwrite_a_later_one() {
    on_hard(|stage, world| {
        let file = world.file("file");
        let first = vec![b'1'; CONTENTS.len()];
        let (is_first, mut times) = (first.clone(), 0);
        stage.server.now(move |asked: &ReceivedCall<'_>| match asked.is(Procedure::Write) {
            true if times < 3 && asked.arguments().windows(is_first.len()).any(|bytes| bytes == is_first) => {
                times += 1;
                asked.results(&WriteReply::Failed(Status::Jukebox, WccData::NONE))
            }
            _ => ScriptedReply::Forward,
        });
        let written = world.write_as(file, &Write::default(), &first).expect("written");
        assert_eq!(written.count, first.len());
        // The first write is sent and postponed.
        until("the first write", || stage.server.count_of(Procedure::Write) > 0);
        world.write_all(file, 0, CONTENTS);
        sync(world, file).expect("synced");
        world.release(file);
        // Time for repetitions that may still be pending.
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(at_the_server(world), CONTENTS);
    });
}
