//! Background listing of a directory by another client during a measurement.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::super::Wait;
use super::super::client::{Call, Connection, Mounted, Reply, readdirplus};
use super::list::{PAGE_BYTES, list_all};
use crate::error::{Error, Result, same};
use crate::measure::Work;
use crate::peer::Nfs;

/// Client that lists a directory repeatedly. Its calls replay a recorded listing, so that replies need no
/// parsing: the lister shares the caller's core, and must not occupy it.
pub struct Lister {
    connection: Connection,
    pages: Vec<Call>,
    next: usize,
}

impl Lister {
    /// Creates a lister of the directory `path` with this many entries, by listing it once.
    pub fn new(server: &Nfs, path: &str, entries: usize) -> Result<Self> {
        let mut mounted = Mounted::new(server, Wait::Sleep)?;
        let directory = mounted.walk(path)?;
        let mut connection = mounted.into_connection();
        let mut pages = Vec::new();
        let found = list_all(&mut connection, &directory, &mut Reply::default(), |from| {
            pages.push(readdirplus(&directory, from, PAGE_BYTES));
        })?;
        same("READDIRPLUS", found, entries)?;
        Ok(Self { connection, pages, next: 0 })
    }

    fn page(&mut self) -> Result<()> {
        let at = self.next;
        self.next = (at + 1) % self.pages.len().max(1);
        match self.pages.get_mut(at) {
            Some(call) => self.connection.repeat(call, 1, 1, |_, _| {}, || {}),
            None => Ok(()),
        }
    }

    /// Lists while `other` runs, which starts after the first page.
    fn during<T>(&mut self, other: impl FnOnce() -> T) -> Result<T> {
        let (stop, pages) = (AtomicBool::new(false), AtomicU64::new(0));
        let (stop, pages) = (&stop, &pages);
        let (done, listed) = thread::scope(|scope| {
            let lister = scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    self.page()?;
                    pages.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), Error>(())
            });
            while pages.load(Ordering::Relaxed) == 0 && !lister.is_finished() {
                thread::yield_now();
            }
            let done = other();
            stop.store(true, Ordering::Relaxed);
            let gone = || Err(Error::Absent("the listing thread ended".to_owned()));
            (done, lister.join().unwrap_or_else(|_| gone()))
        });
        listed.map(|()| done)
    }
}

/// Runs an operation while a directory is listed on another connection.
pub fn beside(mut other: Work<'static>, mut lister: Lister) -> Work<'static> {
    Work::new(move |count, clock| lister.during(|| other.run(count, clock))?)
}
