//! A null request from a User Mode Linux guest to its host, beside one between two processes of the host, over the same memory: a file
//! that is the guest's `/dev/mmapper`. A bare cache line goes the same ways.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_links::memory::MemoryPlace;
use tombolo_mem::Region;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::region::mmapper;
use tombolo_sys::affinity;

use super::follow::{CALLERS, Mailbox, Order, PAGE, READY, times};
use super::{Plan, server, speed, wrong};
use crate::error::{Doing, Error, Result};
use crate::measure::{Place, Spread, go_on, spare_cores};
use crate::peer::in_checkout;
use crate::report::{Figure, Report, Unit};

const BARE: &str = "bare cache line";
const NULL: &str = "null request, both polling";
const HOST: &str = "two processes of the host";
const GUEST: &str = "a UML guest and its host";
const VARIANTS: [&str; 3] = ["p1", "p50", "p99"];

/// A round trip from the guest may take 1.25 × one between processes.
const AIM: f64 = 0.8;
/// The link's part of the memory; and operations of a turn.
const LINK_BYTES: u64 = 16 << 20;
const BARES: usize = 100_000;
const NULLS: usize = 40_000;
/// How long a guest has to boot, a turn to end, and a caller to leave.
const BOOT: Duration = Duration::from_secs(60);
const TURN: Duration = Duration::from_secs(30);
const LEAVE: Duration = Duration::from_secs(10);
/// The guest's, in seconds.
const LIFE_S: &str = "600";

/// Measures.
pub fn run(plan: &Plan) -> Result<Report> {
    let title = "A null request from a UML guest to its host, and between two processes";
    let mut report = Report::new("ring-guest", title, plan.command.clone(), plan.quick);
    let cores = spare_cores();
    let (Some(first), Some(second)) = (cores.first(), cores.get(1)) else {
        return Err(Error::Absent("both sides poll: two cores are needed".to_owned()));
    };
    let folder = tempfile::Builder::new().prefix("tombolo-bench.").tempdir_in(&plan.within);
    let folder = folder.doing_to("make a directory in", &plan.within)?;
    let (shared, _) = speed::lay_out(folder.path())?;
    let path = folder.path().join("memory");
    let bytes = LINK_BYTES + PAGE * CALLERS;
    File::create_new(&path).and_then(|file| file.set_len(bytes)).doing_to("make", &path)?;
    let memory = mmapper::open(&path, bytes).map_err(|error| wrong("memory", &error))?;
    // Threads and processes run where whoever makes them runs: callers on one core, what answers on the other.
    affinity::pin(None, &[*first]).doing(|| "pin".to_owned())?;
    let mut callers =
        [Caller::host(&path, &memory, plan)?, Caller::guest(&path, &memory, folder.path(), plan)?];
    for caller in &mut callers {
        caller.wait_until_ready()?;
    }
    affinity::pin(None, &[*second]).doing(|| "pin".to_owned())?;
    let links = server::links(&shared)?;
    let listener = server::sit(&MemoryPlace::Mmapper(path), LINK_BYTES, &links, Mode::Poll)?;
    affinity::pin(None, &[*first]).doing(|| "pin".to_owned())?;
    for round in 0..plan.rounds {
        for turn in 0..callers.len() {
            go_on()?;
            let Some(caller) = callers.get_mut((round + turn) % CALLERS as usize) else { continue };
            caller.turn(Order::Bare, plan.scaled(BARES, 500), *second)?;
            caller.turn(Order::Null, plan.scaled(NULLS, 200), *second)?;
        }
    }
    for caller in callers {
        caller.figures(&mut report);
    }
    drop(listener);
    Place::leave()?;
    judge(&mut report);
    report.condition(format!(
        "{} rounds, in each of which either caller has a turn of at most {} bare exchanges and one of at most {} null requests, over a link of its own; each \
         is timed alone, by the processor's clock, which is the same in a guest; a figure is the median of its rounds (quartiles in brackets)",
        plan.rounds,
        plan.scaled(BARES, 500),
        plan.scaled(NULLS, 200)
    ));
    report.condition(
        "the caller on one core, what answers on the other: a thread for bare exchanges, local-dir's server for requests, which are made \
         through the library. The guest runs this very program (UML, iomem=mmapper)",
    );
    Ok(report)
}

fn judge(report: &mut Report) {
    for row in [BARE, NULL] {
        let figure = |column: &str| report.figure(row, column, "p50").cloned();
        let (guest, host) = (figure(GUEST), figure(HOST));
        report.compare(guest.as_ref(), host.as_ref(), (row == NULL).then_some(AIM));
        let what = format!("in a UML guest: {row}, p50");
        if row == NULL {
            report.aim_beside(&what, "≤ 1.25 × two host processes", AIM, guest.as_ref(), host.as_ref());
        } else {
            report.aim_beside(&what, "printed", None, guest.as_ref(), host.as_ref());
        }
    }
}

/// A caller, and what it has told.
struct Caller {
    name: &'static str,
    child: Child,
    answers: Receiver<String>,
    mailbox: Mailbox,
    /// By order and quantile, round by round.
    rounds: [[Vec<f64>; 3]; 2],
}

impl Caller {
    /// In a process beside this one.
    fn host(path: &Path, memory: &Region, plan: &Plan) -> Result<Self> {
        let mut command = Command::new(program()?);
        command.args(words(path, 0));
        Self::start(HOST, 0, command, memory, plan)
    }

    /// In a guest.
    fn guest(path: &Path, memory: &Region, folder: &Path, plan: &Plan) -> Result<Self> {
        let mut command = Command::new(in_checkout(Path::new("tests/guests/run"))?);
        let memory_option = format!("{},{}", path.display(), LINK_BYTES + PAGE * CALLERS);
        command.args(["uml", "--timeout", LIFE_S, "--shm", &memory_option, "--command"]).arg(program()?);
        command.args(words(Path::new(mmapper::DEVICE), 1)).env("TMPDIR", folder);
        Self::start(GUEST, 1, command, memory, plan)
    }

    fn start(
        name: &'static str,
        number: u64,
        mut command: Command,
        memory: &Region,
        plan: &Plan,
    ) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().doing(|| format!("start {name}"))?;
        let (tell, answers) = channel();
        if let Some(out) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(|line| line.ok()) {
                    if tell.send(line.trim().to_owned()).is_err() {
                        return;
                    }
                }
            });
        }
        let mailbox = Mailbox::new(memory, LINK_BYTES, number)?;
        let rounds = [(); 2].map(|()| [(); 3].map(|()| Vec::with_capacity(plan.rounds)));
        Ok(Self { name, child, answers, mailbox, rounds })
    }

    /// A guest that does not get so far is one that this machine has not, and said why.
    fn wait_until_ready(&mut self) -> Result<()> {
        match self.answers.recv_timeout(BOOT) {
            Ok(line) if line == READY => Ok(()),
            Ok(line) => Err(Error::Absent(format!("{}: {line}", self.name))),
            Err(RecvTimeoutError::Timeout) => {
                Err(Error::Absent(format!("{} is not ready after {} s", self.name, BOOT.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let mut said = String::new();
                if let Some(errors) = &mut self.child.stderr {
                    // What cannot be read was not said.
                    let _partial = errors.take(4096).read_to_string(&mut said);
                }
                Err(Error::Absent(format!("{}: {}", self.name, said.trim())))
            }
        }
    }

    fn turn(&mut self, order: Order, count: usize, core: usize) -> Result<()> {
        let (over, last) = (AtomicBool::new(false), self.mailbox.last());
        let line = thread::scope(|scope| {
            if order == Order::Bare {
                scope.spawn(|| {
                    // Where it cannot be pinned it runs as it may.
                    let _free = affinity::pin(None, &[core]);
                    self.mailbox.echo(last, &over);
                });
            }
            self.mailbox.tell(order, u32::try_from(count).unwrap_or(u32::MAX));
            let line = self.answers.recv_timeout(TURN);
            over.store(true, Ordering::Relaxed);
            line
        });
        let answer = line.unwrap_or_else(|error| error.to_string());
        let Some(times) = times(&answer) else {
            return Err(Error::Wrong { what: self.name.to_owned(), answer });
        };
        let rounds = match order {
            Order::Null => &mut self.rounds[1],
            _ => &mut self.rounds[0],
        };
        rounds.iter_mut().zip(times).for_each(|(rounds, time)| rounds.push(time));
        Ok(())
    }

    fn figures(mut self, report: &mut Report) {
        for (row, of_row) in [BARE, NULL].into_iter().zip(std::mem::take(&mut self.rounds)) {
            for (variant, rounds) in VARIANTS.into_iter().zip(of_row) {
                let Some(spread) = Spread::of(&rounds) else { continue };
                let figure = Figure::single(row, variant, self.name, Unit::Nanoseconds, 0.0);
                report.figures.push(Figure { spread, rounds, ..figure });
            }
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.mailbox.tell(Order::End, 0);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < LEAVE {
            thread::sleep(Duration::from_millis(10));
        }
        let _gone = tombolo_sys::process::terminate(self.child.id());
        let _ended = self.child.wait();
    }
}

fn program() -> Result<PathBuf> {
    std::env::current_exe().doing(|| "find this program".to_owned())
}

fn words(memory: &Path, caller: u64) -> Vec<std::ffi::OsString> {
    let (bytes, caller) = (LINK_BYTES.to_string(), caller.to_string());
    ["ring-follow".into(), memory.into(), bytes.into(), caller.into()].into()
}
