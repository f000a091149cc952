//! Two clients in one directory of a server.

use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_back_nfs_client::{AttributeTimes, Options};
use tombolo_conformance::waist::World;
use tombolo_core::Result;
use tombolo_core::fs::{File, LockOwner};
use tombolo_nfs_client_tests::mount::{hard, mounted, world};
use tombolo_nfs_client_tests::server::{Scripted, ScriptedReply};
use tombolo_nfs_tests::test_server::TestServer;

/// Two clients in one directory of a server.
pub struct Pair {
    pub one: World,
    pub two: World,
    /// Counts the clients' calls.
    pub server: Scripted,
    _honest: TestServer,
}

impl Pair {
    /// Mounts both clients with default attribute times.
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    /// Mounts both clients with this attribute time.
    pub fn believing(time: Duration) -> Self {
        Self::with(Options { attributes: AttributeTimes::all(time), ..Options::default() })
    }

    /// Mounts both clients without attribute caching.
    pub fn noac() -> Self {
        Self::with(hard())
    }

    /// Mounts both clients with these options.
    pub fn with(options: Options) -> Self {
        let honest = TestServer::over(Memory::default());
        let server = Scripted::start(honest.address(), |_| ScriptedReply::Forward);
        let one = world(mounted(server.address(), options.clone()));
        let two = one.through(mounted(server.address(), options));
        Self { one, two, server, _honest: honest }
    }
}

/// Closes a file as close(2) does: its data are on the server, or it fails.
pub fn close(world: &World, file: File) -> Result<()> {
    let flushed = world.fs.flush(&world.cx, file, LockOwner(1)).wait();
    world.release(file);
    flushed
}
