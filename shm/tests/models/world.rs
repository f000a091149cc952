//! Memory and threads of a model checker.

use std::sync::Arc;

use tombolo_shm::cells::{Cells, CellsMut, DoorbellWordMut};
use tombolo_shm::doorbell::{Mode, Ringer, Sleeper, WakeReason};
use tombolo_shm::link::Epoch;
use tombolo_shm::ring::{Consumer, Message, Producer};

/// The primitives of a model checker.
pub trait World: 'static {
    type Lines: Cells + CellsMut + Clone + Send + 'static;
    type Word: DoorbellWordMut + Clone + Send + Sync + 'static;

    fn lines(count: usize) -> Self::Lines;
    fn word() -> Self::Word;
    /// Runs a closure concurrently; the returned closure waits for its end.
    fn spawn(run: impl FnOnce() + Send + 'static) -> impl FnOnce();
    fn yield_now();
}

/// One side of a link.
pub struct Side<W: World> {
    pub producer: Producer<W::Lines>,
    pub consumer: Consumer<W::Lines>,
    pub ringer: Arc<Ringer<W::Word, W::Word>>,
    pub sleeper: Sleeper<W::Word, W::Word>,
}

/// Returns both sides of a link with that many slots, neither of which polls before it sleeps.
pub fn sides<W: World>(slots: usize) -> [Side<W>; 2] {
    let lines = [W::lines(slots), W::lines(slots)];
    let notify_flag = [W::word(), W::word()];
    let doorbells = [W::word(), W::word()];
    let side = |own: usize| {
        let peer = 1 - own;
        let epoch = Epoch::new(0x00AB_0005).expect("not zero");
        let (nudged, sleeping) = (W::word(), W::word());
        let doorbell = Some(doorbells[peer].clone());
        Side {
            producer: Producer::new(lines[own].clone(), epoch),
            consumer: Consumer::new(lines[peer].clone(), epoch),
            ringer: Arc::new(Ringer::new(Some(notify_flag[peer].clone()), doorbells[own].clone())),
            sleeper: Sleeper::new(Mode::Event, notify_flag[own].clone(), doorbell, nudged, sleeping),
        }
    };
    [side(0), side(1)]
}

impl<W: World> Side<W> {
    pub fn send(&mut self, id: u32) {
        self.producer.push(&message(id));
        self.ringer.ring();
    }

    /// Returns the next message, which must be whole. Sleeps until it has arrived.
    pub fn receive(&mut self) -> u32 {
        loop {
            self.consumer.check().expect("an honest peer");
            if let Some(found) = self.consumer.pop() {
                assert_eq!(found, message(found.id), "torn");
                return found.id;
            }
            assert_eq!(self.sleeper.wait(None, &self.consumer), WakeReason::Ready);
        }
    }
}

/// Returns a message whose every word identifies it.
pub fn message(id: u32) -> Message {
    Message { id, frame_len: id, kind: id, body: [id as u8; 48] }
}

/// Defines a world for one of the two crates, whose names are the same.
macro_rules! world {
    ($name:ident, $checker:ident, $module:ident, $stream:expr) => {
        mod $module {
            use std::sync::Arc;
            use std::sync::atomic::Ordering::{self, Relaxed, Release, SeqCst};
            use std::time::Duration;

            use $checker::sync::atomic::{AtomicU32, AtomicU64, fence};
            use $checker::sync::{Condvar, Mutex};
            use $checker::thread;

            use tombolo_shm::cells::{Cells, CellsMut, DoorbellWord, DoorbellWordMut, SleepOutcome};

            pub struct $name;

            #[derive(Clone)]
            pub struct Lines(Arc<Vec<[AtomicU64; 8]>>);

            impl Cells for Lines {
                fn count(&self) -> usize {
                    self.0.len()
                }

                fn load(&self, line: usize, word: usize, order: Ordering) -> u64 {
                    self.0[line][word].load(order)
                }
            }

            impl CellsMut for Lines {
                fn count(&self) -> usize {
                    self.0.len()
                }

                fn store(&self, line: usize, word: usize, value: u64, order: Ordering) {
                    self.0[line][word].store(value, order);
                }

                fn add(&self, line: usize, word: usize, n: u64, order: Ordering) {
                    self.0[line][word].fetch_add(n, order);
                }
            }

            /// A futex: a lock is held from the check of the word until the thread sleeps, and taken for
            /// waking. Or a bell, which has `true` while its stream has bytes.
            #[derive(Clone)]
            pub struct Word(Arc<(AtomicU32, Mutex<Option<bool>>, Condvar)>);

            impl DoorbellWord for Word {
                fn load(&self, order: Ordering) -> u32 {
                    self.0.0.load(order)
                }

                fn wait(&self, expected: u32, timeout: Option<Duration>) -> SleepOutcome {
                    assert_eq!(timeout, None, "there is no time here");
                    let mut kernel = self.0.1.lock().unwrap();
                    if kernel.is_some() {
                        while *kernel == Some(false) {
                            kernel = self.0.2.wait(kernel).unwrap();
                        }
                        *kernel = Some(false);
                    } else if self.0.0.load(Relaxed) == expected {
                        drop(self.0.2.wait(kernel).unwrap());
                    }
                    SleepOutcome::Woken
                }

                fn wake(&self) {
                    let mut kernel = self.0.1.lock().unwrap();
                    *kernel = kernel.map(|_| true);
                    self.0.2.notify_one();
                }

                fn fence() {
                    fence(SeqCst);
                }

                fn yield_now() {
                    thread::yield_now();
                }
            }

            impl DoorbellWordMut for Word {
                fn store(&self, value: u32, order: Ordering) {
                    self.0.0.store(value, order);
                }

                fn bump(&self) {
                    self.0.0.fetch_add(1, Release);
                }
            }

            impl super::World for $name {
                type Lines = Lines;
                type Word = Word;

                fn lines(count: usize) -> Lines {
                    let line = || std::array::from_fn(|_| AtomicU64::new(0));
                    Lines(Arc::new((0..count).map(|_| line()).collect()))
                }

                fn word() -> Word {
                    Word(Arc::new((AtomicU32::new(0), Mutex::new($stream), Condvar::new())))
                }

                fn spawn(run: impl FnOnce() + Send + 'static) -> impl FnOnce() {
                    let thread = thread::spawn(run);
                    || thread.join().unwrap()
                }

                fn yield_now() {
                    thread::yield_now();
                }
            }
        }

        pub use $module::$name;
    };
}

world!(Loom, loom, in_loom, None);
world!(Shuttle, shuttle, in_shuttle, None);
world!(LoomBell, loom, bell_in_loom, Some(false));
