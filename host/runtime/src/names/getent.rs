//! Asks services for names by getent(1), a process for each question.

use std::ffi::OsString;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tombolo_sys::Errno;
use tombolo_sys::epoll::{Epoll, Interest};
use tombolo_sys::process::{self, Death, ends_with_this_thread};

use super::{Deadline, LookUpError};

/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The processes that this one has ask at once. Further look-ups wait, as part of their time.
pub(super) const PROCESSES_MAX: usize = 8;

/// The exit code for a key that no service knows.
const NOT_FOUND: i32 = 2;

/// The program that asks.
pub(super) struct Getent {
    program: Vec<OsString>,
    /// A shorter time than is usual, in tests.
    pub(super) time_max: Option<Duration>,
}

impl Getent {
    pub(super) fn of_system() -> Self {
        Self { program: vec!["getent".into()], time_max: None }
    }

    /// Asks another program in its place.
    #[cfg(test)]
    pub(super) fn like(program: Vec<OsString>, time_max: Duration) -> Self {
        Self { program, time_max: Some(time_max) }
    }

    /// Returns the lines of a database for a key; `None` where there are none.
    pub(super) fn ask(
        &self,
        database: &'static str,
        key: &str,
        deadline: Deadline,
    ) -> Result<Option<String>, LookUpError> {
        let before = deadline.left()?;
        let _turn = QUEUE.turn(deadline)?;
        // A service with less than half of the time is not known to be a silent one.
        let is_hurried = deadline.left().map_or(true, |left| left < before / 2);
        let mut running = self.start(database, key)?;
        let answer = running.answer(deadline).map_err(|error| match error {
            LookUpError::TimedOut(allowed) if is_hurried => LookUpError::Busy(allowed),
            error => error,
        })?;
        let answer = answer.ok_or(LookUpError::Answer(database))?;
        let status = running.0.wait().map_err(LookUpError::Start)?;
        match status.code() {
            Some(0) => String::from_utf8(answer).map(Some).map_err(|_| LookUpError::Answer(database)),
            Some(NOT_FOUND) => Ok(None),
            _ => Err(LookUpError::Failed(database, status)),
        }
    }

    fn start(&self, database: &str, key: &str) -> Result<Running, LookUpError> {
        let (program, words) = self.program.split_first().ok_or(LookUpError::NoGetent)?;
        let mut command = Command::new(program);
        command.args(words).args([database, "--", key]).current_dir("/").env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        ends_with_this_thread(&mut command, Death::Killed);
        let started = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => LookUpError::NoGetent,
            _ => LookUpError::Start(error),
        });
        started.map(Running)
    }
}

/// A process that asks. It is killed when it is given up.
struct Running(Child);

impl Running {
    /// Reads its output until it has ended; `None` for one that is too long.
    fn answer(&mut self, deadline: Deadline) -> Result<Option<Vec<u8>>, LookUpError> {
        let failed = |errno: Errno| LookUpError::Start(errno.into());
        let Some(mut output) = self.0.stdout.take() else { return Ok(None) };
        let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
        let epoll = Epoll::new().map_err(failed)?;
        epoll.add(&output, 0, Interest::Readable).map_err(failed)?;
        until(&epoll, deadline, || {
            let len = output.read(&mut piece).map_err(LookUpError::Start)?;
            answer.extend_from_slice(&piece[..len]);
            Ok(len == 0 || answer.len() > ANSWER_BYTES_MAX)
        })?;
        if answer.len() > ANSWER_BYTES_MAX {
            return Ok(None);
        }
        // A process that has closed its output may still run.
        let (ended, epoll) = (process::watched(self.0.id()).map_err(failed)?, Epoll::new().map_err(failed)?);
        epoll.add(&ended, 0, Interest::Readable).map_err(failed)?;
        until(&epoll, deadline, || Ok(true))?;
        Ok(Some(answer))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // In vain for one that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls `step` each time that there is something to read, until it says that it is done.
fn until(
    epoll: &Epoll,
    deadline: Deadline,
    mut step: impl FnMut() -> Result<bool, LookUpError>,
) -> Result<(), LookUpError> {
    let mut events = Vec::new();
    loop {
        let waited = epoll.wait(&mut events, Some(deadline.left()?));
        waited.map_err(|errno| LookUpError::Start(errno.into()))?;
        if !events.is_empty() && step()? {
            return Ok(());
        }
    }
}

/// The look-ups that wait until they may have a process.
pub(super) struct Queue {
    running: Mutex<usize>,
    ended: Condvar,
}

static QUEUE: Queue = Queue::new();

/// One of the processes that may ask at once.
pub(super) struct Turn<'a>(&'a Queue);

impl Queue {
    pub(super) const fn new() -> Self {
        Self { running: Mutex::new(0), ended: Condvar::new() }
    }

    /// Waits for leave to start a process.
    ///
    /// # Errors
    /// [`LookUpError::Busy`]: others had it all the time. That says nothing about the service, which was not asked.
    pub(super) fn turn(&self, deadline: Deadline) -> Result<Turn<'_>, LookUpError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while *running >= PROCESSES_MAX {
            let left = deadline.left().map_err(|_| LookUpError::Busy(deadline.allowed))?;
            running = self.ended.wait_timeout(running, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *running += 1;
        Ok(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_one();
    }
}
