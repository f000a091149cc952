//! An origin that fails before or after executing an operation, so that only a look-up shows its outcome.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{Export, Op};
use tombolo_core::{Answer, Error};
use tombolo_layer_basic::around::{Around, Call, Layered, Payload};

/// Faults of the origin.
#[derive(Default)]
pub struct Trouble {
    /// Failing calls, in thousandths.
    pub rate: AtomicU64,
    random: Mutex<fastrand::Rng>,
    /// Requested operations, in order.
    pub log: Mutex<Vec<Op>>,
    once: Mutex<Option<(Op, Hook)>>,
}

/// Hook before an operation, with the error that it returns, if any.
type Hook = Box<dyn FnOnce() -> Option<Error> + Send>;

/// An origin with faults.
struct Troubled(Arc<Trouble>);

impl Trouble {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self { random: Mutex::new(fastrand::Rng::with_seed(seed)), ..Self::default() })
    }

    /// Runs a hook before the next operation of a kind.
    pub fn once(&self, op: Op, hook: impl FnOnce() -> Option<Error> + Send + 'static) {
        *self.once.lock().expect("a lock") = Some((op, Box::new(hook)));
    }

    pub fn over(self: &Arc<Self>, inner: Arc<dyn Export>) -> Arc<dyn Export> {
        Arc::new(Layered::new(inner, Arc::new(Troubled(self.clone()))))
    }
}

impl Around for Troubled {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        self.0.log.lock().expect("a lock").push(call.op);
        let hook = self.0.once.lock().expect("a lock").take_if(|(op, _)| *op == call.op);
        if let Some(error) = hook.and_then(|(_, hook)| hook()) {
            return Answer::err(error);
        }
        let (is_struck, is_performed, error) = {
            let mut random = self.0.random.lock().expect("a lock");
            let errors = [Error::Disconnected, Error::NoSpace, Error::TimedOut, Error::io("trouble")];
            let is_struck = random.u64(0..1000) < self.0.rate.load(Ordering::Relaxed);
            let error = errors.into_iter().nth(random.usize(0..4));
            (is_struck, random.bool(), error)
        };
        match error.filter(|_| is_struck) {
            Some(error) => {
                if is_performed {
                    drop(inner());
                }
                Answer::err(error)
            }
            None => inner(),
        }
    }
}
