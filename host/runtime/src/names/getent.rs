//! Look-ups through getent(1), with a process for each.

use std::ffi::OsString;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tombolo_core::lock;
use tombolo_sys::Errno;
use tombolo_sys::epoll::{Epoll, Interest};
use tombolo_sys::process::{self, Death, ends_with_this_thread};

use super::{Deadline, LookUpError};

/// Maximum length of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Maximum number of concurrent processes. Further look-ups are queued; the time in the queue counts towards
/// their time-out.
pub(super) const PROCESSES_MAX: usize = 8;

/// Exit code for an unknown key.
const NOT_FOUND: i32 = 2;

/// The look-up program with its arguments; a substitute in tests.
pub(super) struct Getent {
    program: Vec<OsString>,
    /// Reduced time-out, for tests.
    pub(super) time_max: Option<Duration>,
}

impl Getent {
    pub(super) fn of_system() -> Self {
        Self { program: vec!["getent".into()], time_max: None }
    }

    /// Returns a substitute program, for tests.
    #[cfg(test)]
    pub(super) fn like(program: Vec<OsString>, time_max: Duration) -> Self {
        Self { program, time_max: Some(time_max) }
    }

    /// Returns the lines of a database for a key, or `None` if there are none.
    pub(super) fn ask(
        &self,
        database: &'static str,
        key: &str,
        deadline: Deadline,
    ) -> Result<Option<String>, LookUpError> {
        let before = deadline.left()?;
        let _turn = QUEUE.turn(deadline)?;
        // If the queue has used more than half of the time, a time-out is not blamed on the service.
        let is_hurried = deadline.left().map_or(true, |left| left < before / 2);
        let mut running = self.start(database, key)?;
        let answer = running.answer(deadline).map_err(|error| match error {
            LookUpError::TimedOut(allowed) if is_hurried => LookUpError::Busy(allowed),
            error => error,
        })?;
        let answer = answer.ok_or(LookUpError::Answer(database))?;
        let status = running.0.wait().map_err(LookUpError::Read)?;
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

/// A look-up process, killed when this is dropped.
struct Running(Child);

impl Running {
    /// Reads the output of getent(1) to its end. Returns `None` if the output is too long.
    fn answer(&mut self, deadline: Deadline) -> Result<Option<Vec<u8>>, LookUpError> {
        let failed = |errno: Errno| LookUpError::Read(errno.into());
        let Some(mut output) = self.0.stdout.take() else { return Ok(None) };
        let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
        let epoll = Epoll::new().map_err(failed)?;
        epoll.add(&output, 0, Interest::Readable).map_err(failed)?;
        until(&epoll, deadline, || {
            let len = output.read(&mut piece).map_err(LookUpError::Read)?;
            answer.extend_from_slice(&piece[..len]);
            Ok(len == 0 || answer.len() > ANSWER_BYTES_MAX)
        })?;
        if answer.len() > ANSWER_BYTES_MAX {
            return Ok(None);
        }
        // A getent process that has closed its output may still be running.
        let (ended, epoll) = (process::watched(self.0.id()).map_err(failed)?, Epoll::new().map_err(failed)?);
        epoll.add(&ended, 0, Interest::Readable).map_err(failed)?;
        until(&epoll, deadline, || Ok(true))?;
        Ok(Some(answer))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Killing fails harmlessly if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls `step` whenever there is something to read, until it returns `true`.
fn until(
    epoll: &Epoll,
    deadline: Deadline,
    mut step: impl FnMut() -> Result<bool, LookUpError>,
) -> Result<(), LookUpError> {
    let mut events = Vec::new();
    loop {
        let waited = epoll.wait(&mut events, Some(deadline.left()?));
        waited.map_err(|errno| LookUpError::Read(errno.into()))?;
        if !events.is_empty() && step()? {
            return Ok(());
        }
    }
}

/// Limit on concurrent look-up processes, of which `running` exist; further look-ups wait until one ends.
pub(super) struct Queue {
    running: Mutex<usize>,
    ended: Condvar,
}

static QUEUE: Queue = Queue::new();

/// A permit for one process.
pub(super) struct Turn<'a>(&'a Queue);

impl Queue {
    pub(super) const fn new() -> Self {
        Self { running: Mutex::new(0), ended: Condvar::new() }
    }

    /// Waits for a permit to start a process.
    ///
    /// # Errors
    /// [`LookUpError::Busy`]: other look-ups had all permits until the deadline. The service was not queried.
    pub(super) fn turn(&self, deadline: Deadline) -> Result<Turn<'_>, LookUpError> {
        let mut running = lock(&self.running);
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
        *lock(&self.0.running) -= 1;
        self.0.ended.notify_one();
    }
}
