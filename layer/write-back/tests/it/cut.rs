//! A proxy that is killed while it sends changes to the origin: at the Nth operation there, before or after
//! its execution.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tombolo_core::fs::{Export, Op};
use tombolo_core::{Answer, Error};
use tombolo_layer_basic::around::{Around, Call, Layered, Payload};
use tombolo_test_support::image;

/// Hook for an operation.
type Hook = Box<dyn Fn() + Send>;

/// Counter of operations that change the origin, and the one at which the proxy is killed.
#[derive(Default)]
pub struct Cut {
    asked: AtomicU64,
    is_over: AtomicBool,
    plan: Mutex<Plan>,
}

#[derive(Default)]
struct Plan {
    /// Number of the operation, and `true` if it is executed.
    at: Option<(u64, bool)>,
    /// The proxy's directory on the disk.
    dir: PathBuf,
    left: Option<TempDir>,
    /// Hook before each operation.
    before: Option<Hook>,
}

struct Cutting(Arc<Cut>);

impl Cut {
    pub fn over(self: &Arc<Self>, inner: Arc<dyn Export>) -> Arc<dyn Export> {
        Arc::new(Layered::new(inner, Arc::new(Cutting(self.clone()))))
    }

    /// Kills the proxy with the disk `dir` at the Nth change of the origin from now on.
    pub fn at(&self, nth: u64, is_performed: bool, dir: PathBuf) {
        self.asked.store(0, Ordering::SeqCst);
        let mut plan = self.plan.lock().expect("a lock");
        (plan.at, plan.dir) = (Some((nth, is_performed)), dir);
    }

    pub fn before_each(&self, hook: impl Fn() + Send + 'static) {
        self.plan.lock().expect("a lock").before = Some(Box::new(hook));
    }

    /// Returns a copy of the disk at the kill, if it has happened. The origin answers again.
    pub fn left(&self) -> Option<TempDir> {
        let mut plan = self.plan.lock().expect("a lock");
        plan.at = None;
        self.is_over.store(false, Ordering::SeqCst);
        plan.left.take()
    }
}

impl Around for Cutting {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        if self.0.is_over.load(Ordering::SeqCst) {
            return Answer::err(Error::Disconnected);
        }
        if !call.op.mutates() && call.op != Op::Fsync {
            return inner();
        }
        let mut plan = self.0.plan.lock().expect("a lock");
        if let Some(before) = &plan.before {
            before();
        }
        let nth = self.0.asked.fetch_add(1, Ordering::SeqCst);
        let Some((_, is_performed)) = plan.at.filter(|(at, _)| *at == nth) else {
            drop(plan);
            return inner();
        };
        if is_performed {
            drop(inner().wait());
        }
        let left = tempfile::tempdir().expect("a directory");
        image(&plan.dir, left.path());
        plan.left = Some(left);
        self.0.is_over.store(true, Ordering::SeqCst);
        Answer::err(Error::Disconnected)
    }
}
