//! Checkpoints of a guest that runs, and goes on in the VMM that it has. The process that watches the VM
//! makes them: it has the guest's memory mounted where that is, and what it has begun comes to its end
//! whatever becomes of the command.
//!
//! Drafts of the overlays to come lie on the disk before the guest stands still. Then its device state is
//! written, what it has in its memory moves to the server of that, and both servers put the drafts on top:
//! nothing of that waits for a disk. The guest goes on. What was frozen becomes durable, the drafts get their
//! names, and last the device state. Until then nothing that the guest makes durable is answered.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_back_image_file::claim_open;
use tombolo_core::block::OpenOptions;
use tombolo_sys::{Errno, packet};

use super::chain::{self, Draft, KINDS};
use super::checkpoint::Turn;
use super::home::Home;
use super::running::{Asleep, DRAFT, forget};
use crate::assembly::layers::{BYTES_MAX, DONE, GO_ON, LAYER, REST, SETTLE, TAKE_BACK, TOP};
use crate::failure::{Failure, Outcome};

/// The servers of disk and memory, as what lies beneath their overlays is changed, in the order of [`KINDS`].
pub struct Channels(pub [OwnedFd; 2]);

/// What makes checkpoints of a VM that runs.
pub struct Checkpoints {
    /// Held while files and servers do not go together.
    turn: Arc<Mutex<()>>,
}

impl Checkpoints {
    /// Makes them from now on for commands that ask at the socket for that.
    pub fn serve(home: &Home, channels: Channels) -> io::Result<Self> {
        let listener = UnixListener::bind(&home.run().checkpoints)?;
        let turn = Arc::new(Mutex::new(()));
        let (own, name) = (turn.clone(), home.name.clone());
        let serve = move || {
            for asked in listener.incoming().flatten() {
                if let Err(error) = answer(&name, &channels, &own, &asked) {
                    tracing::warn!(%error, "what asked for a checkpoint has gone");
                }
            }
        };
        thread::Builder::new().name("checkpoints".into()).spawn(serve)?;
        Ok(Self { turn })
    }

    /// Waits for the end of one that is being made, and lets none begin.
    pub fn end(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a command is told: a number, and for how many milliseconds the guest stood still; or why there is
/// none.
const MADE: &str = "made";

fn answer(name: &str, channels: &Channels, turn: &Mutex<()>, asked: &UnixStream) -> io::Result<()> {
    let mut keep = String::new();
    BufReader::new(asked).read_line(&mut keep)?;
    let keep = keep.trim_end().parse().map_err(io::Error::other)?;
    let made = Home::of(name).and_then(|home| make(&home, channels, turn, keep));
    let mut asked = asked;
    match made {
        Ok((number, still)) => writeln!(asked, "{MADE} {number} {}", still.as_millis()),
        Err(failure) => writeln!(asked, "{}", failure.to_string().replace('\n', " ")),
    }
}

/// Has a checkpoint made of a VM that runs over overlays. Its number, and how long the guest stood still.
pub fn ask(home: &Home, keep: usize) -> Result<(u32, Duration), Failure> {
    let making = format!("make a checkpoint of the VM {}", home.name);
    let asked = || -> io::Result<String> {
        let mut stream = UnixStream::connect(home.run().checkpoints)?;
        writeln!(stream, "{keep}")?;
        let mut said = String::new();
        BufReader::new(stream).read_line(&mut said)?;
        Ok(said)
    };
    let said = asked().map_err(|error| Failure::cannot(&making, &error).remedy("see tombolo vm list"))?;
    let mut words = said.split_ascii_whitespace();
    let made = (words.next() == Some(MADE)).then(|| {
        let number = words.next()?.parse().ok()?;
        Some((number, Duration::from_millis(words.next()?.parse().ok()?)))
    });
    match made.flatten() {
        Some(made) => Ok(made),
        None if said.is_empty() => Err(Failure::cannot(&making, "what watches it has ended")),
        None => Err(Failure::told(said.trim_end())),
    }
}

fn make(home: &Home, channels: &Channels, turn: &Mutex<()>, keep: usize) -> Result<(u32, Duration), Failure> {
    let _turn = Turn::take(home)?;
    // No more overlays than there may be stand on each other.
    let tidied = || chain::forget_oldest(home, keep).and_then(|()| channels.renew(home));
    tidied()?;
    let number = chain::next_number(home)?;
    // The VM's end does not wait for merging, which may be cut short anywhere.
    let turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    let mut drafts = Vec::new();
    let (still, mut asleep) = match freeze(home, channels, number, &mut drafts) {
        Ok(made) => made,
        Err(failure) => {
            drafts.into_iter().for_each(Draft::discard);
            let _ = forget(home, DRAFT);
            return Err(failure);
        }
    };
    let state = asleep.state.clone();
    thread::scope(|scope| {
        // The guest may be slow to find its devices. What it makes durable does not wait for that.
        if still.went_on {
            scope.spawn(|| asleep.plug());
        }
        let completed = complete(home, channels, &drafts, &state, number);
        drop(turn);
        completed
    })?;
    // What is open there keeps it mounted.
    drop(asleep);
    if let Err(error) = tidied() {
        tracing::warn!(%error, "checkpoints beyond those to keep are forgotten with the next one");
    }
    Ok((number, still.time))
}

/// Completes a checkpoint whose guest goes on: what that makes durable waits for this.
fn complete(home: &Home, channels: &Channels, drafts: &[Draft<'_>], state: &File, number: u32) -> Outcome {
    let settled = drafts.iter().zip(&channels.0).map(|(draft, channel)| settle(home, draft, channel));
    settled.fold(Ok(()), Outcome::and)?;
    state
        .sync_all()
        .and_then(|()| chain::complete(home, DRAFT, number))
        .map_err(|error| Failure::cannot(format_args!("make a checkpoint of the VM {}", home.name), &error))
}

/// Makes durable what was frozen, and what is on top of it what it is to be. A server that cannot goes on
/// with flushes that fail.
fn settle(home: &Home, draft: &Draft<'_>, channel: &OwnedFd) -> Outcome {
    ask_of(channel, SETTLE, None)?;
    while let Err(error) = draft.take_its_name() {
        tracing::error!(%error, "the VM's directory cannot be changed: trying again");
        thread::sleep(AGAIN);
    }
    renew(home, draft.what, channel)
}

/// Has a server read what now lies beneath what it writes to, and answer flushes: of what was merged nothing
/// stays in use.
fn renew(home: &Home, what: &str, channel: &OwnedFd) -> Outcome {
    let layers = chain::open_layers(home, what);
    let passed = layers
        .as_ref()
        .map_or(Ok(()), |layers| layers.iter().try_for_each(|(_, file)| ask_of(channel, LAYER, Some(file))));
    ask_of(channel, GO_ON, None)?;
    passed?;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    for (path, file) in layers? {
        // The server has the same open file. Without the lock nothing that keeps to the chain's rules writes
        // to it either.
        if let Err(error) = claim_open(&path, &file, &options) {
            tracing::warn!(%error, "an overlay of a checkpoint is not locked");
        }
    }
    Ok(())
}

/// Between two attempts.
const AGAIN: Duration = Duration::from_secs(1);

/// A stop of the guest for a checkpoint.
struct Still {
    time: Duration,
    went_on: bool,
}

/// Has the guest stand still while all of a moment is put aside, which nothing is written to any more. If
/// that fails it goes on as before, and else without what it has of this host.
fn freeze<'a>(
    home: &'a Home,
    channels: &Channels,
    number: u32,
    drafts: &mut Vec<Draft<'a>>,
) -> Result<(Still, Asleep<'a>), Failure> {
    for what in KINDS {
        drafts.push(Draft::make(home, what, number)?);
    }
    let mut asleep = Asleep::prepare(home, "make a checkpoint of")?;
    let stopped = Instant::now();
    let frozen = asleep.stop("make a checkpoint of").and_then(|()| {
        channels.ask_all(REST)?;
        // To its server, which has it durable later.
        let moved = asleep.memory.sync_all();
        moved.map_err(|error| Failure::cannot(format_args!("save the memory of {}", home.name), &error))?;
        drafts
            .iter()
            .zip(&channels.0)
            .try_for_each(|(draft, channel)| ask_of(channel, TOP, Some(&draft.file)))
    });
    if frozen.is_err() {
        channels.0.iter().for_each(|channel| drop(ask_of(channel, TAKE_BACK, None)));
    }
    let went_on =
        asleep.proceed().inspect_err(|error| tracing::error!(%error, "the VMM does not go on")).is_ok();
    let still = Still { time: stopped.elapsed(), went_on };
    if frozen.is_err() && went_on {
        asleep.plug();
    }
    frozen.map(|()| (still, asleep))
}

impl Channels {
    fn ask_all(&self, request: &str) -> Outcome {
        self.0.iter().try_for_each(|channel| ask_of(channel, request, None))
    }

    fn renew(&self, home: &Home) -> Outcome {
        KINDS.into_iter().zip(&self.0).try_for_each(|(what, channel)| renew(home, what, channel))
    }
}

/// Has a server do something. It does, or is to end.
fn ask_of(channel: &OwnedFd, request: &str, file: Option<&File>) -> Outcome {
    let asked = || -> io::Result<String> {
        packet::send(channel, request.as_bytes(), &file.map(AsFd::as_fd).into_iter().collect::<Vec<_>>())?;
        let mut buffer = [0; BYTES_MAX];
        let len = loop {
            packet::wait(channel)?;
            match packet::receive(channel, &mut buffer) {
                Ok(packet) => break packet.len,
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        Ok(String::from_utf8_lossy(buffer.get(..len).unwrap_or_default()).into_owned())
    };
    let said = asked().map_err(|error| Failure::cannot("reach a server of the VM", &error))?;
    match &*said {
        DONE => Ok(()),
        "" => Err(Failure::cannot("reach a server of the VM", "it has ended")),
        reason => Err(Failure::cannot("freeze what a server of the VM has", reason)),
    }
}
