//! Null request from a User Mode Linux (UML) guest to its host, over a file that is the guest's
//! `/dev/mmapper`. [`run`] compares it with a null request between two processes of the host over the same
//! file, both polling. [`bell`] measures the guest with both sides in [`Mode::Adaptive`]: they poll, then
//! sleep until a bell or a timer wakes them.
//!
//! A client is a process that runs [`serve_orders`], on the host or in the guest. It takes its commands from
//! a [`Mailbox`] in the shared memory, which a guest can read too, and replies on standard output. It
//! measures with the processor's cycle counter ([`Ticks`]), because the clock of a UML kernel is too slow.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_links::bell::{BellLocation, BellSource, SERIAL_LINE};
use tombolo_host_links::shared_memory::MemoryLocation;
use tombolo_mem::{Region, WordMut};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::region::mmapper;
use tombolo_sys::{affinity, cycles};

use super::session::{At, Endpoint, Operation, Session};
use super::{WARM, served};
use crate::error::{Doing, Error, OrWrong, Result};
use crate::files::Place;
use crate::measure::{Clock, go_on, spare_cores};
use crate::peer::{AtSocket, Server, in_checkout, this_program};
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, turns};

const NULL: &str = "null request, both polling";
const HOST: &str = "two processes of the host";
const GUEST: &str = "a UML guest and its host";
const VARIANTS: [&str; 3] = ["p1", "p50", "p99"];

/// Size of the link's part of the memory, which is before the mailboxes.
const LINK_BYTES: u64 = 16 << 20;
/// Time limit for a client to be ready, which includes the boot of a guest.
const BOOT: Duration = Duration::from_secs(60);
/// Time limit of a turn.
const TURN: Duration = Duration::from_secs(30);
/// Time limit for a client to exit by itself.
const LEAVE: Duration = Duration::from_secs(10);
/// Time limit of the guest, in seconds.
const LIFE_S: &str = "600";

pub fn run(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let cores = spare_cores();
    let (Some(first), Some(second)) = (cores.first(), cores.get(1)) else {
        return Err(Error::Absent("both sides poll, which requires two cores".to_owned()));
    };
    let (place, _) = served(&plan.within)?;
    // Threads and processes inherit their core: clients on one, servers on the other.
    affinity::pin(None, &[*second]).doing(|| "pin".to_owned())?;
    let (server, memory) = serve(&place, Mode::Poll, None)?;
    let path = &server.place;
    affinity::pin(None, &[*first]).doing(|| "pin".to_owned())?;
    let clients = [Client::host(path, &memory)?, Client::guest(path, &memory, place.folder(), None)?];
    let mut clients = clients.map(RefCell::new);
    for client in clients.iter_mut().map(RefCell::get_mut) {
        client.wait_until_ready()?;
    }
    for client in turns(plan.rounds(), &clients) {
        go_on()?;
        let mut client = client.borrow_mut();
        for (variant, ns) in VARIANTS.into_iter().zip(client.turn(sheet.number("nulls"), 0)?) {
            report.add(NULL, variant, client.name, Unit::Nanoseconds, ns);
        }
    }
    drop((clients, server));
    Ok(())
}

/// Starts a server over a file in `place`; returns the file, mapped, too. Mailboxes follow the link in it.
fn serve(place: &Place, mode: Mode, bell: Option<&Path>) -> Result<(AtSocket, Region)> {
    let (path, bytes) = (place.beside("memory"), LINK_BYTES + PAGE * CLIENTS);
    let server = AtSocket::over_memory(&place.shared(), (&path, LINK_BYTES), mode, bell)?;
    File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(bytes))
        .doing_to("lengthen", &path)?;
    let memory = mmapper::open(&path, bytes).or_wrong("memory")?;
    Ok((server, memory))
}

/// A client process, as seen by the benchmark.
struct Client {
    name: &'static str,
    process: Server,
    /// Lines of the client's standard output, sent by a thread.
    answers: Receiver<String>,
    mailbox: Mailbox,
}

impl Client {
    fn host(path: &Path, memory: &Region) -> Result<Self> {
        let mut command = Command::new(this_program()?);
        command.args(words(path, 0));
        Self::start(HOST, 0, command, memory)
    }

    /// Boots a guest with a client in it; `bell` is the socket of the guest's bell.
    fn guest(path: &Path, memory: &Region, folder: &Path, bell: Option<&Path>) -> Result<Self> {
        let mut command = Command::new(in_checkout("tests/guests/run")?);
        let memory_option = format!("{},{}", path.display(), LINK_BYTES + PAGE * CLIENTS);
        command.args(["uml", "--timeout", LIFE_S, "--shm", &memory_option]);
        command.args(bell.iter().flat_map(|bell| [OsStr::new("--bell"), bell.as_os_str()]));
        command.arg("--command").arg(this_program()?);
        command.args(words(Path::new(mmapper::DEVICE), 1)).env("TMPDIR", folder);
        Self::start(GUEST, 1, command, memory)
    }

    fn start(name: &'static str, number: u64, mut command: Command, memory: &Region) -> Result<Self> {
        let (process, out) = Server::talking(name, &mut command)?;
        let (tell, answers) = channel();
        thread::spawn(move || {
            let mut lines = BufReader::new(out).lines().map_while(|line| line.ok());
            lines.try_for_each(|line| tell.send(line.trim().to_owned()))
        });
        let mailbox = Mailbox::new(memory, LINK_BYTES, number)?;
        Ok(Self { name, process, answers, mailbox })
    }

    /// Waits until the client is ready. A failing guest is reported as unavailable, with its reason.
    fn wait_until_ready(&mut self) -> Result<()> {
        match self.answers.recv_timeout(BOOT) {
            Ok(line) if line == READY => Ok(()),
            Ok(line) => Err(Error::Absent(format!("{}: {line}", self.name))),
            Err(RecvTimeoutError::Timeout) => {
                Err(Error::Absent(format!("{} is not ready after {} s", self.name, BOOT.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::Absent(format!("{}: {}", self.name, self.process.said())))
            }
        }
    }

    /// Sends a command for at most `count` requests; returns their p1, p50 and p99 in nanoseconds. `how`:
    /// [`Mailbox::how`].
    fn turn(&mut self, count: usize, how: u32) -> Result<[f64; 3]> {
        self.mailbox.tell(u32::try_from(count).unwrap_or(u32::MAX), how);
        let answer = self.answers.recv_timeout(TURN).unwrap_or_else(|error| error.to_string());
        times(&answer).ok_or_else(|| Error::Wrong { what: self.name.to_owned(), answer })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.mailbox.tell(0, 0);
        // A process that does not exit is terminated when `process` is dropped.
        let _left = self.process.ended_within(LEAVE);
    }
}

fn words(memory: &Path, client: u64) -> Vec<std::ffi::OsString> {
    let (bytes, client) = (LINK_BYTES.to_string(), client.to_string());
    ["ring-guest".into(), memory.into(), bytes.into(), client.into()].into()
}

const BELL_COLUMNS: [(&str, u32); 2] = [("no doorbell", 0), ("bell", BELLED)];
/// Rows: requests per turn (at most 20 if quick), bits of [`Mailbox::how`], threads that compute meanwhile.
const ROWS: [(usize, u32, usize); 4] = [(2000, 0, 0), (100, RESTED, 0), (300, 0, 2), (60, RESTED, 2)];

/// Measures requests with both sides in [`Mode::Adaptive`], with a bell and without a doorbell.
pub fn bell(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let (place, _) = served(&plan.within)?;
    let bell = place.beside("bell");
    let (server, memory) = serve(&place, Mode::Adaptive, Some(&bell))?;
    let mut client = Client::guest(&server.place, &memory, place.folder(), Some(&bell))?;
    client.wait_until_ready()?;
    for (row, (count, how, loops)) in sheet.rows.iter().zip(ROWS) {
        for (column, bell) in turns(plan.rounds(), &BELL_COLUMNS) {
            go_on()?;
            let times = beside(loops, || client.turn(plan.scaled(count, 20), how | bell | SLEEPING))?;
            for (variant, ns) in VARIANTS.into_iter().zip(times) {
                report.add(row, variant, column, Unit::Nanoseconds, ns);
            }
        }
    }
    Ok(())
}

/// Runs `work` while this many threads compute.
fn beside<T>(loops: usize, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..loops {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    })
}

/// Size of a client's page after the link's memory.
const PAGE: u64 = 4096;
const CLIENTS: u64 = 2;

/// Page of a client, with one command. Each word has its own cache lines.
struct Mailbox {
    /// Number of commands sent, stored last; a client that sees it change reads the other words.
    told: WordMut,
    /// Maximum number of requests to make; 0 to exit.
    count: WordMut,
    /// Bits, such as [`SLEEPING`].
    how: WordMut,
}

/// Bit of [`Mailbox::how`]: the client waits for replies in [`Mode::Adaptive`], so it sleeps if one takes
/// long; without the bit it polls.
const SLEEPING: u32 = 1;
/// Bit of [`Mailbox::how`]: the bell, the guest's serial line, wakes the sleeping client.
const BELLED: u32 = 2;
/// Bit of [`Mailbox::how`]: each request is made after a pause of [`REST`], so that both sides sleep by then.
const RESTED: u32 = 4;
const REST: Duration = Duration::from_millis(5);

impl Mailbox {
    /// Returns the mailbox of client number `client`, after the first `link_bytes` of memory.
    pub fn new(memory: &Region, link_bytes: u64, client: u64) -> Result<Self> {
        let start = usize::try_from(link_bytes + PAGE * client).unwrap_or(usize::MAX);
        let word = |at: usize| WordMut::new(memory, start.saturating_add(at)).or_wrong("memory for orders");
        Ok(Self { told: word(0)?, count: word(512)?, how: word(1024)? })
    }

    /// Sends the command to make at most `count` null requests; 0 to exit.
    pub fn tell(&self, count: u32, how: u32) {
        self.how.store(how, Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
        self.told.store(self.told.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// Interval between polls for a command.
const NAP: Duration = Duration::from_millis(2);
/// Time without a command after which a client exits.
const PATIENCE: Duration = Duration::from_secs(300);
/// Maximum time measured in a turn; on a slow machine a turn has fewer operations.
const TURN_MAX: Duration = Duration::from_secs(1);
/// Duration of the calibration of the cycle counter by the kernel's clock.
const CALIBRATION: Duration = Duration::from_millis(100);

/// Executes the commands of client number `client`, until one says to exit or none arrives for [`PATIENCE`].
/// `path` is the shared memory, which begins with the link's `link_bytes`. Results are written to `out`.
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

/// Output of a client that is ready.
const READY: &str = "ready";
/// Prefix of the output after a turn: p1, p50 and p99 follow.
const TOOK: &str = "took";
const QUANTILES: [f64; 3] = [0.01, 0.5, 0.99];

/// Parses the output after a turn: p1, p50 and p99 in nanoseconds. Returns `None` for any other output.
fn times(line: &str) -> Option<[f64; 3]> {
    let mut words = line.strip_prefix(TOOK)?.split_whitespace().map(str::parse);
    let mut next = || words.next()?.ok();
    Some([next()?, next()?, next()?])
}

/// Makes at most `count` null requests over a new link, as the bits of `how` say.
fn null(path: PathBuf, ticks: &Ticks, count: u64, how: u32) -> Result<Clock> {
    let mode = if how & SLEEPING == 0 { Mode::Poll } else { Mode::Adaptive };
    let bell = (how & BELLED != 0).then(|| BellSource::new(BellLocation::Device(SERIAL_LINE.into())));
    let endpoint = Endpoint { at: At::Memory(MemoryLocation::Mmapper(path)), mode, bell };
    let session = Session::begin(&endpoint, 0)?;
    let rest = if how & RESTED == 0 { Duration::ZERO } else { REST };
    ticks.time(count, rest, || session.ask(Operation::Null))
}

/// The processor's cycle counter, calibrated.
struct Ticks {
    /// Nanoseconds per cycle.
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

    /// Measures at most `count` operations, each after an unmeasured pause of `rest`; the warm-up has no
    /// pauses.
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
    use crate::table::ring::test_server;

    #[test]
    fn client_executes_commands_from_shared_memory() {
        const LINK_BYTES: u64 = 4 << 20;
        let (place, _) = served(Path::new("/dev/shm")).unwrap();
        let path = place.beside("memory");
        std::fs::File::create(&path).unwrap().set_len(LINK_BYTES + PAGE * CLIENTS).unwrap();
        let _listener = test_server::sit(&place.shared(), &path, LINK_BYTES);
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
