//! A proxy that is killed while it brings changes to the origin: at the Nth operation there, before that is
//! performed or after it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tombolo_core::fs::{Export, Op};
use tombolo_core::{Answer, Error};
use tombolo_layer_basic::around::{Around, Call, Layered, Payload};

use crate::world::image;

/// What happens at an operation.
type Hook = Box<dyn Fn() + Send>;

/// Operations that change the origin, and the one at which the proxy ends.
#[derive(Default)]
pub struct Cut {
    asked: AtomicU64,
    is_over: AtomicBool,
    plan: Mutex<Plan>,
}

#[derive(Default)]
struct Plan {
    /// Which, and whether it is performed.
    at: Option<(u64, bool)>,
    /// What the proxy has on its disk.
    dir: PathBuf,
    left: Option<TempDir>,
    /// Before each operation.
    before: Option<Hook>,
}

struct Cutting(Arc<Cut>);

impl Cut {
    pub fn over(self: &Arc<Self>, inner: Arc<dyn Export>) -> Arc<dyn Export> {
        Arc::new(Layered::new(inner, Arc::new(Cutting(self.clone()))))
    }

    /// Has the proxy whose disk is `dir` end at the Nth change of the origin from now on.
    pub fn at(&self, nth: u64, is_performed: bool, dir: PathBuf) {
        self.asked.store(0, Ordering::SeqCst);
        let mut plan = self.plan.lock().expect("a lock");
        (plan.at, plan.dir) = (Some((nth, is_performed)), dir);
    }

    pub fn before_each(&self, hook: impl Fn() + Send + 'static) {
        self.plan.lock().expect("a lock").before = Some(Box::new(hook));
    }

    /// What was on the disk at the end, if it has come. The origin answers again.
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
