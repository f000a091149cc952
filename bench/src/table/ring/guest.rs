//! Null request from a User Mode Linux guest to its host, compared with one between two processes of the host
//! over the same memory: the file of the guest's `/dev/mmapper`.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_mem::Region;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::region::mmapper;
use tombolo_sys::affinity;

use super::guest_client::{CLIENTS, Mailbox, PAGE, READY, times};
use super::{Plan, speed};
use crate::error::{Doing, Error, OrWrong, Result};
use crate::measure::{Placement, go_on, spare_cores};
use crate::peer::{Shm, in_checkout, this_program};
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, sheet, turns};

const NULL: &str = "null request, both polling";
const HOST: &str = "two processes of the host";
const GUEST: &str = "a UML guest and its host";
pub(super) const VARIANTS: [&str; 3] = ["p1", "p50", "p99"];

/// Size of the link's part of the memory.
pub(super) const LINK_BYTES: u64 = 16 << 20;
/// Time limits for a guest to boot, a turn, and a client to exit.
const BOOT: Duration = Duration::from_secs(60);
const TURN: Duration = Duration::from_secs(30);
const LEAVE: Duration = Duration::from_secs(10);
/// Time limit of the guest, in seconds.
const LIFE_S: &str = "600";

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_> = sheet!(plan, "ring-guest")?;
    let mut report = sheet.report();
    let cores = spare_cores();
    let (Some(first), Some(second)) = (cores.first(), cores.get(1)) else {
        return Err(Error::Absent("both sides poll, which requires two cores".to_owned()));
    };
    let folder = plan.folder()?;
    let (shared, _) = speed::lay_out(folder.path())?;
    // Threads and processes inherit their core: clients on one, servers on the other.
    affinity::pin(None, &[*second]).doing(|| "pin".to_owned())?;
    let (server, memory) = serve(&shared, folder.path(), Mode::Poll, None)?;
    let path = server.place();
    affinity::pin(None, &[*first]).doing(|| "pin".to_owned())?;
    let clients = [Client::host(path, &memory)?, Client::guest(path, &memory, folder.path(), None)?];
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
    Placement::leave()?;
    Ok(sheet.finish(report))
}

/// Starts a server over memory in a folder, which the pages of the clients follow.
pub(super) fn serve(shared: &Path, folder: &Path, mode: Mode, bell: Option<&Path>) -> Result<(Shm, Region)> {
    let (path, bytes) = (folder.join("memory"), LINK_BYTES + PAGE * CLIENTS);
    let server = Shm::over_memory(shared, (&path, LINK_BYTES), mode, bell)?;
    File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(bytes))
        .doing_to("lengthen", &path)?;
    let memory = mmapper::open(&path, bytes).or_wrong("memory")?;
    Ok((server, memory))
}

/// A client with its output.
pub(super) struct Client {
    name: &'static str,
    child: Child,
    answers: Receiver<String>,
    mailbox: Mailbox,
}

impl Client {
    fn host(path: &Path, memory: &Region) -> Result<Self> {
        let mut command = Command::new(this_program()?);
        command.args(words(path, 0));
        Self::start(HOST, 0, command, memory)
    }

    /// Boots a guest; `bell` is its bell.
    pub(super) fn guest(path: &Path, memory: &Region, folder: &Path, bell: Option<&Path>) -> Result<Self> {
        let mut command = Command::new(in_checkout(Path::new("tests/guests/run"))?);
        let memory_option = format!("{},{}", path.display(), LINK_BYTES + PAGE * CLIENTS);
        command.args(["uml", "--timeout", LIFE_S, "--shm", &memory_option]);
        command.args(bell.iter().flat_map(|bell| [OsStr::new("--bell"), bell.as_os_str()]));
        command.arg("--command").arg(this_program()?);
        command.args(words(Path::new(mmapper::DEVICE), 1)).env("TMPDIR", folder);
        Self::start(GUEST, 1, command, memory)
    }

    fn start(name: &'static str, number: u64, mut command: Command, memory: &Region) -> Result<Self> {
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
        Ok(Self { name, child, answers, mailbox })
    }

    /// Waits until the client is ready. A failing guest is reported as unavailable, with its reason.
    pub(super) fn wait_until_ready(&mut self) -> Result<()> {
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

    /// Returns p1, p50 and p99 of this many requests.
    pub(super) fn turn(&mut self, count: usize, how: u32) -> Result<[f64; 3]> {
        self.mailbox.tell(u32::try_from(count).unwrap_or(u32::MAX), how);
        let answer = self.answers.recv_timeout(TURN).unwrap_or_else(|error| error.to_string());
        times(&answer).ok_or_else(|| Error::Wrong { what: self.name.to_owned(), answer })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.mailbox.tell(0, 0);
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
