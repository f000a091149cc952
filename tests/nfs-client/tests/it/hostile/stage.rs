//! A client of a scripted server.

use std::sync::mpsc;
use std::time::Duration;

use tempfile::TempDir;
use tombolo_back_nfs_client::Options;
use tombolo_conformance::waist::World;
use tombolo_core::{Interrupt, Result};
use tombolo_nfs_client_tests::mount::{hard, mounted, soft, world};
use tombolo_nfs_client_tests::server::{Scripted, ScriptedReply};
use tombolo_nfs_tests::fixture::{local_dir, scratch};
use tombolo_nfs_tests::test_server::{Plan, TestServer};

/// Maximum duration of anything that need not wait for ever.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// A client of a scripted server.
pub struct Stage {
    // Dropped before its servers.
    pub world: World,
    pub server: Scripted,
    pub honest: TestServer,
    _tree: TempDir,
}

impl Stage {
    /// Mounts (soft) a scripted server that forwards all calls; the time-out is about one second.
    pub fn soft() -> Self {
        Self::with(soft())
    }

    /// Mounts (hard) a scripted server that forwards all calls.
    pub fn hard() -> Self {
        Self::with(hard())
    }

    /// Mounts a scripted server with these options.
    pub fn with(options: Options) -> Self {
        // A host directory, in which writes are unstable until COMMIT.
        let tree = scratch();
        let honest = Plan::over(local_dir(tree.path())).start();
        let server = Scripted::start(honest.address(), |_| ScriptedReply::Forward);
        let world = world(mounted(server.address(), options));
        Self { world, server, honest, _tree: tree }
    }
}

/// Returns the result of `action`; fails the test after [`PATIENCE`].
#[track_caller]
pub fn in_time<T: Send + 'static>(action: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(action()));
    wait.recv_timeout(PATIENCE).expect("an answer in time")
}

/// Runs a test on a soft mount with a time-out of about one second, within [`PATIENCE`].
#[track_caller]
pub fn on_soft<T: Send + 'static>(test: impl FnOnce(&Stage, &World) -> T + Send + 'static) -> T {
    in_time(move || {
        let stage = Stage::soft();
        test(&stage, &stage.world)
    })
}

/// Runs a test on a hard mount within [`PATIENCE`].
#[track_caller]
pub fn on_hard<T: Send + 'static>(test: impl FnOnce(&Stage, &World) -> T + Send + 'static) -> T {
    in_time(move || {
        let stage = Stage::hard();
        test(&stage, &stage.world)
    })
}

/// Raises an interrupt a while later.
pub fn raise_after(interrupt: &Interrupt, time: Duration) {
    let interrupt = interrupt.clone();
    std::thread::spawn(move || {
        std::thread::sleep(time);
        interrupt.raise();
    });
}

/// Formats an error with its causes in one line.
pub fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Asserts that the error names host and operation.
#[track_caller]
pub fn assert_names(result: Result<()>, operation: &str) {
    let error = result.expect_err("the reply was invalid");
    let told = told(&error);
    let named = told.contains("127.0.0.1") && told.to_lowercase().contains(&operation.to_lowercase());
    assert!(named, "does not name host and {operation}: {told}");
    assert!(!told.contains('\n'), "more than a line: {told}");
}
