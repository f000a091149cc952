//! Client with commands in shared memory, the only channel into a guest; and a clock for it, because that of
//! a guest's kernel is too slow.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_links::bell::{BellLocation, BellSource, SERIAL_LINE};
use tombolo_host_links::shared_memory::MemoryLocation;
use tombolo_mem::{Region, WordMut};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::region::mmapper;
use tombolo_sys::cycles;

use super::WARM;
use super::endpoint::{At, Endpoint};
use super::session::{Operation, Session};
use crate::error::{Doing, Error, OrWrong, Result};
use crate::measure::Clock;

/// Size of a client's page after the link's memory.
pub const PAGE: u64 = 4096;
pub const CLIENTS: u64 = 2;

/// Page of a client: requests to make, and number of commands. Each word has its own cache lines.
pub struct Mailbox {
    told: WordMut,
    count: WordMut,
    how: WordMut,
}

/// How a client makes its requests: bits of a word.
pub const SLEEPING: u32 = 1;
/// With the bell, which is the guest's serial line.
pub const BELLED: u32 = 2;
/// Each after [`REST`].
pub const RESTED: u32 = 4;
pub const REST: Duration = Duration::from_millis(5);

impl Mailbox {
    /// Returns the mailbox of client number `client`, after the first `link_bytes` of memory.
    pub fn new(memory: &Region, link_bytes: u64, client: u64) -> Result<Self> {
        let start = usize::try_from(link_bytes + PAGE * client).unwrap_or(usize::MAX);
        let word = |at: usize| WordMut::new(memory, start.saturating_add(at)).or_wrong("memory for orders");
        Ok(Self { told: word(0)?, count: word(512)?, how: word(1024)? })
    }

    /// Sends the command to make `count` null requests; 0 to exit.
    pub fn tell(&self, count: u32, how: u32) {
        self.how.store(how, Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
        self.told.store(self.told.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// Interval between polls for a command, and their time limit.
const NAP: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(300);
/// Maximum length of a turn; on a busy machine it has fewer operations.
const TURN_MAX: Duration = Duration::from_secs(1);
/// Duration of the calibration of the processor's clock against the kernel's.
const CALIBRATION: Duration = Duration::from_millis(100);

/// Executes commands until told to exit or until the time limit. `path` is the memory, which begins with the
/// link's `link_bytes`.
pub fn serve_orders(path: &Path, link_bytes: u64, client: u64, out: &mut dyn Write) -> Result<()> {
    let memory = mmapper::open(path, link_bytes + PAGE * CLIENTS).or_wrong("memory")?;
    let mailbox = Mailbox::new(&memory, link_bytes, client)?;
    let ticks = Ticks::calibrated()?;
    let mut say = |line: &str| {
        writeln!(out, "{line}").and_then(|()| out.flush()).doing(|| "reply to a command".to_owned())
    };
    let mut told = mailbox.told.load(Ordering::Acquire);
    say(READY)?;
    let mut since = Instant::now();
    while since.elapsed() < PATIENCE {
        let now = mailbox.told.load(Ordering::Acquire);
        if now == told {
            thread::sleep(NAP);
            continue;
        }
        told = now;
        match mailbox.count.load(Ordering::Relaxed).into() {
            0 => return Ok(()),
            count => match null(path.to_owned(), &ticks, count, mailbox.how.load(Ordering::Relaxed)) {
                Ok(clock) => {
                    let [p1, p50, p99] = QUANTILES.map(|quantile| clock.quantile_ns(quantile));
                    say(&format!("{TOOK} {p1} {p50} {p99}"))?;
                }
                Err(error) => say(&error.to_string())?,
            },
        }
        since = Instant::now();
    }
    Ok(())
}

/// Output of a client that is ready, and prefix of the times of a turn.
pub const READY: &str = "ready";
const TOOK: &str = "took";
pub const QUANTILES: [f64; 3] = [0.01, 0.5, 0.99];

/// Parses the times of a turn in nanoseconds.
pub fn times(line: &str) -> Option<[f64; 3]> {
    let mut words = line.strip_prefix(TOOK)?.split_whitespace().map(str::parse);
    let mut next = || words.next()?.ok();
    Some([next()?, next()?, next()?])
}

fn null(path: PathBuf, ticks: &Ticks, count: u64, how: u32) -> Result<Clock> {
    let mode = if how & SLEEPING == 0 { Mode::Poll } else { Mode::Adaptive };
    let bell = (how & BELLED != 0).then(|| BellSource::new(BellLocation::Device(SERIAL_LINE.into())));
    let endpoint = Endpoint { at: At::Memory(MemoryLocation::Mmapper(path)), mode, bell };
    let session = Session::begin(&endpoint, 0)?;
    let rest = if how & RESTED == 0 { Duration::ZERO } else { REST };
    ticks.time(count, rest, || session.ask(Operation::Null))
}

struct Ticks {
    each: f64,
}

impl Ticks {
    fn calibrated() -> Result<Self> {
        let absent = || Error::Absent("this processor has no clock that programs can read".to_owned());
        let (begun, first) = (Instant::now(), cycles::now().ok_or_else(absent)?);
        thread::sleep(CALIBRATION);
        let (took, last) = (begun.elapsed(), cycles::now().ok_or_else(absent)?);
        Ok(Self { each: took.as_nanos() as f64 / last.saturating_sub(first).max(1) as f64 })
    }

    /// Measures at most `count` operations, after a warm-up.
    #[inline]
    fn time(&self, count: u64, rest: Duration, mut once: impl FnMut() -> Result<()>) -> Result<Clock> {
        for _ in 0..(count / 20).min(WARM) {
            once()?;
        }
        let mut clock = Clock::new();
        let mut last = cycles::now().unwrap_or_default();
        for _ in 0..count {
            if clock.total() > TURN_MAX {
                break;
            }
            if !rest.is_zero() {
                thread::sleep(rest);
                last = cycles::now().unwrap_or_default();
            }
            once()?;
            let now = cycles::now().unwrap_or_default();
            let nanos = now.saturating_sub(last) as f64 * self.each;
            clock.record(Duration::from_nanos(nanos as u64), 1);
            // Excludes the time for recording.
            last = cycles::now().unwrap_or_default();
        }
        Ok(clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ring::{speed, test_server};

    #[test]
    fn client_executes_commands_from_shared_memory() {
        const LINK_BYTES: u64 = 4 << 20;
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let (shared, _) = speed::lay_out(folder.path()).unwrap();
        let path = folder.path().join("memory");
        std::fs::File::create(&path).unwrap().set_len(LINK_BYTES + PAGE * CLIENTS).unwrap();
        let _listener = test_server::sit(&shared, &path, LINK_BYTES);
        let memory = mmapper::open(&path, LINK_BYTES + PAGE * CLIENTS).unwrap();
        let mailbox = Mailbox::new(&memory, LINK_BYTES, 1).unwrap();
        let (said, hear) = std::sync::mpsc::channel();
        let client = thread::spawn(move || serve_orders(&path, LINK_BYTES, 1, &mut Lines(said)));
        assert_eq!(hear.recv().unwrap(), READY);
        for _ in 0..2 {
            mailbox.tell(50, 0);
            let line = hear.recv().unwrap();
            let [p1, p50, p99] = times(&line).unwrap_or_else(|| panic!("{line}"));
            assert!(p1 > 0.0 && p1 <= p50 && p50 <= p99, "{line}");
        }
        mailbox.tell(0, 0);
        client.join().unwrap().unwrap();
    }

    /// Writer that sends each line.
    struct Lines(std::sync::mpsc::Sender<String>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let text = String::from_utf8_lossy(bytes);
            text.lines()
                .filter(|line| !line.is_empty())
                .for_each(|line| self.0.send(line.to_owned()).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
