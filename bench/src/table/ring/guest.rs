//! Null request from a User Mode Linux guest to its host, compared with one between two processes of the host
//! over the same memory: the file of the guest's `/dev/mmapper`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_links::shared_memory::MemoryLocation;
use tombolo_mem::Region;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::region::mmapper;
use tombolo_sys::affinity;

use super::guest_client::{CLIENTS, Mailbox, PAGE, READY, times};
use super::{Plan, server, speed, wrong};
use crate::error::{Doing, Error, Result};
use crate::measure::{Placement, go_on, spare_cores};
use crate::peer::{in_checkout, this_program};
use crate::report::{Figure, Report, Unit};

const NULL: &str = "null request, both polling";
const HOST: &str = "two processes of the host";
const GUEST: &str = "a UML guest and its host";
const VARIANTS: [&str; 3] = ["p1", "p50", "p99"];

/// Maximum round trip from the guest, 1.25 × one between processes, as a ratio.
const TARGET: f64 = 0.8;
/// Size of the link's part of the memory, and operations per turn.
const LINK_BYTES: u64 = 16 << 20;
const NULLS: usize = 40_000;
/// Time limits for a guest to boot, a turn, and a client to exit.
const BOOT: Duration = Duration::from_secs(60);
const TURN: Duration = Duration::from_secs(30);
const LEAVE: Duration = Duration::from_secs(10);
/// Time limit of the guest, in seconds.
const LIFE_S: &str = "600";

pub fn run(plan: &Plan) -> Result<Report> {
    let title = "A null request from a UML guest to its host, and between two processes";
    let mut report = plan.report("ring-guest", title);
    let cores = spare_cores();
    let (Some(first), Some(second)) = (cores.first(), cores.get(1)) else {
        return Err(Error::Absent("both sides poll, which requires two cores".to_owned()));
    };
    let folder = plan.folder()?;
    let (shared, _) = speed::lay_out(folder.path())?;
    let path = folder.path().join("memory");
    let bytes = LINK_BYTES + PAGE * CLIENTS;
    File::create_new(&path).and_then(|file| file.set_len(bytes)).doing_to("make", &path)?;
    let memory = mmapper::open(&path, bytes).map_err(|error| wrong("memory", &error))?;
    // Threads and processes inherit their core: clients on one, servers on the other.
    affinity::pin(None, &[*first]).doing(|| "pin".to_owned())?;
    let mut clients =
        [Client::host(&path, &memory, plan)?, Client::guest(&path, &memory, folder.path(), plan)?];
    for client in &mut clients {
        client.wait_until_ready()?;
    }
    affinity::pin(None, &[*second]).doing(|| "pin".to_owned())?;
    let links = server::links(&shared)?;
    let listener = server::sit(&MemoryLocation::Mmapper(path), LINK_BYTES, &links, Mode::Poll)?;
    affinity::pin(None, &[*first]).doing(|| "pin".to_owned())?;
    for round in 0..plan.rounds {
        for turn in 0..clients.len() {
            go_on()?;
            let Some(client) = clients.get_mut((round + turn) % CLIENTS as usize) else { continue };
            client.turn(plan.scaled(NULLS, 200))?;
        }
    }
    for client in clients {
        client.figures(&mut report);
    }
    drop(listener);
    Placement::leave()?;
    report.compare_cells(NULL, (GUEST, "p50"), (HOST, "p50"), Some(TARGET));
    report.condition(format!(
        "{} rounds, in each of which either client has a turn of at most {} null requests, over a link of its own; each is timed alone, by the processor's clock, which is the same in a guest; a figure is the median of its rounds (quartiles in brackets)",
        plan.rounds,
        plan.scaled(NULLS, 200)
    ));
    report.condition(
        "the client on one core, local-dir's server on the other; requests are made \
         through the library. The guest runs this very program (UML, iomem=mmapper)",
    );
    Ok(report)
}

/// A client with its output.
struct Client {
    name: &'static str,
    child: Child,
    answers: Receiver<String>,
    mailbox: Mailbox,
    /// Times by quantile and round.
    rounds: [Vec<f64>; 3],
}

impl Client {
    fn host(path: &Path, memory: &Region, plan: &Plan) -> Result<Self> {
        let mut command = Command::new(this_program()?);
        command.args(words(path, 0));
        Self::start(HOST, 0, command, memory, plan)
    }

    fn guest(path: &Path, memory: &Region, folder: &Path, plan: &Plan) -> Result<Self> {
        let mut command = Command::new(in_checkout(Path::new("tests/guests/run"))?);
        let memory_option = format!("{},{}", path.display(), LINK_BYTES + PAGE * CLIENTS);
        command.args(["uml", "--timeout", LIFE_S, "--shm", &memory_option, "--command"]).arg(this_program()?);
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
        let rounds = [(); 3].map(|()| Vec::with_capacity(plan.rounds));
        Ok(Self { name, child, answers, mailbox, rounds })
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
                let mut said = String::new();
                if let Some(errors) = &mut self.child.stderr {
                    // Unreadable output is ignored.
                    let _partial = errors.take(4096).read_to_string(&mut said);
                }
                Err(Error::Absent(format!("{}: {}", self.name, said.trim())))
            }
        }
    }

    fn turn(&mut self, count: usize) -> Result<()> {
        self.mailbox.tell(u32::try_from(count).unwrap_or(u32::MAX));
        let answer = self.answers.recv_timeout(TURN).unwrap_or_else(|error| error.to_string());
        let Some(times) = times(&answer) else {
            return Err(Error::Wrong { what: self.name.to_owned(), answer });
        };
        self.rounds.iter_mut().zip(times).for_each(|(rounds, time)| rounds.push(time));
        Ok(())
    }

    fn figures(mut self, report: &mut Report) {
        for (variant, rounds) in VARIANTS.into_iter().zip(std::mem::take(&mut self.rounds)) {
            report.figures.extend(Figure::of_rounds(NULL, variant, self.name, Unit::Nanoseconds, rounds));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.mailbox.tell(0);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < LEAVE {
            thread::sleep(Duration::from_millis(10));
        }
        let _gone = tombolo_sys::process::terminate(self.child.id());
        let _ended = self.child.wait();
    }
}

fn words(memory: &Path, client: u64) -> Vec<std::ffi::OsString> {
    let (bytes, client) = (LINK_BYTES.to_string(), client.to_string());
    ["ring-guest".into(), memory.into(), bytes.into(), client.into()].into()
}
