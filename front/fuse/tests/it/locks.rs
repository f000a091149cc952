//! POSIX locks of programs that use a mount.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FlockOperation, fcntl_lock};
use tombolo_back_memory::Memory;
use tombolo_core::fs::{Lock, LockFamily, LockKind, LockOwner, LockRange};
use tombolo_front_fuse::dev::Options;
use tombolo_test_support::Session;
use tombolo_wire_fuse::Opcode;

use crate::common::Mounted;
use crate::push::soon;

/// Has Linux forget one look-up of a locked file: a cached name leads to that file now.
#[test]
fn partly_forgotten_file_loses_its_lock_at_a_close() {
    let export = Memory::default();
    let mounted = Mounted::new(&export, &Options::default());
    for name in ["file", "other"] {
        fs::write(mounted.at(name), name).expect("write");
    }
    let locked = File::options().read(true).write(true).open(mounted.at("file")).expect("open");
    fcntl_lock(&locked, FlockOperation::NonBlockingLockExclusive).expect("locked");
    let counters = mounted.mount.session().counters();
    let forgets = || counters.requests(Opcode::Forget) + counters.requests(Opcode::BatchForget);
    let before = forgets();
    let elsewhere = Session::attach(&export);
    elsewhere.unlink("other").expect("removed");
    elsewhere.link("file", "other").expect("linked");
    let number = |name| fs::metadata(mounted.at(name)).expect("there").ino();
    soon("another file", || number("other") == number("file"));
    soon("nothing forgotten", || forgets() > before);
    drop(File::open(mounted.at("file")).expect("open"));
    let (file, range) = (elsewhere.writer("file"), LockRange::ALL);
    let lock = Lock { family: LockFamily::Posix, kind: LockKind::Write, range, owner: LockOwner(1), pid: 1 };
    elsewhere.locks().lock(&elsewhere.cx, file, &lock, false).wait().expect("no other lock");
}
