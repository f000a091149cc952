//! Checkpoints of a running guest, made by the supervisor of its VM: the supervisor has the guest's memory
//! mounted in its own namespace, and completes a checkpoint that has begun even if the command is killed.
//!
//! The guest continues in its VMM, except at the first checkpoint of a VM that was booted, whose memory is a
//! plain file: a [successor](super::successor), started before, takes over the guest.
//!
//! Order of events:
//! - The drafts of the new overlays are written to the disk, and most of the guest's memory to the memory's
//!   server.
//! - The guest is paused. Its device state is written, the pages written meanwhile are sent to the memory's
//!   server, and both servers put the drafts on top. None of this waits for a disk.
//! - The guest continues. The frozen overlays become durable, the drafts get their final names, and last the
//!   device state gets its final name, with which the checkpoint exists. A flush of the guest's disk is
//!   answered only once the disk's frozen overlay is durable and its draft has its final name.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_back_image_file::lock_open_image;
use tombolo_core::block::OpenOptions;
use tombolo_core::lock;
use tombolo_host_vmm::Monitor;

use super::chain::{self, Draft, KINDS};
use super::channel::Channel;
use super::checkpoint::Turn;
use super::config::MEMORY;
use super::home::Home;
use super::ledger::{self, Meter};
use super::running::{Asleep, DRAFT, forget, sync_memory, unresponsive};
use super::successor::Successor;
use super::watch::{Event, Part};
use crate::assembly::layers::{ABANDON, GO_ON, LAYER, REST, SETTLE, TAKE_BACK, TOP};
use crate::failure::{Failure, OrCannot, Outcome};

/// Handle of the thread that makes checkpoints, for the thread that owns the VM's processes.
pub struct Checkpoints(Arc<Shared>);

/// State shared by the supervisor and the thread that makes checkpoints.
#[derive(Default)]
struct Shared {
    /// `true` while an [`Exclusive`] exists.
    is_locked: AtomicBool,
    /// `true` once the VM is ending: a checkpoint that does not hold the lock yet is undone.
    is_ending: AtomicBool,
    /// `true` while a checkpoint has begun, and is neither undone nor being completed.
    is_undoable: AtomicBool,
    /// A successor that runs the guest, in transfer to the thread that owns the VM's processes.
    successor: Mutex<Option<Successor>>,
}

impl Shared {
    fn lock(self: &Arc<Self>) -> Option<Exclusive> {
        let was_locked = self.is_locked.swap(true, Ordering::Acquire);
        (!was_locked).then(|| Exclusive(self.clone()))
    }
}

/// Lock of the VM's files and servers, which a checkpoint, a boot after a reset and the VM's end change.
/// Released on drop.
pub struct Exclusive(Arc<Shared>);

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.0.is_locked.store(false, Ordering::Release);
    }
}

/// Maximum time for undoing a checkpoint when the VM ends. The supervisor removes the checkpoint's files in
/// any case.
const UNDO_PATIENCE: Duration = Duration::from_secs(3);

impl Checkpoints {
    /// Serves requests for checkpoints at their socket. `channels` lead to the server of the disk and, if the
    /// memory is an overlay, to that of the memory.
    pub fn serve(home: &Home, channels: Vec<OwnedFd>, events: Sender<Event>) -> io::Result<Self> {
        let listener = UnixListener::bind(&home.run().checkpoints)?;
        let shared = Arc::<Shared>::default();
        let channels = KINDS.into_iter().zip(channels).map(|(what, socket)| Channel::new(what, socket));
        let mut maker = Maker { channels: channels.collect(), shared: shared.clone(), events };
        let name = home.name.clone();
        let serve = move || {
            for asked in listener.incoming().flatten() {
                if let Err(error) = maker.answer(&name, &asked) {
                    tracing::warn!(%error, "the client requesting a checkpoint has disconnected");
                }
            }
        };
        thread::Builder::new().name("checkpoints".into()).spawn(serve)?;
        Ok(Self(shared))
    }

    /// Begins the VM's end: a checkpoint that still waits for the lock is undone.
    pub fn cancel(&self) {
        self.0.is_ending.store(true, Ordering::SeqCst);
    }

    /// Waits until a cancelled checkpoint is undone, up to a limit, because its VMM may be unresponsive.
    pub fn wait_until_undone(&self) {
        let end = Instant::now() + UNDO_PATIENCE;
        while self.0.is_undoable.load(Ordering::SeqCst) && Instant::now() < end {
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Locks out further checkpoints. Returns `None` while a checkpoint holds the lock.
    pub fn end(&self) -> Option<Exclusive> {
        self.0.lock()
    }

    /// Passes a successor that runs the guest to `take`. The checkpoint waits until `take` returns.
    pub fn taken_over(&self, take: impl FnOnce(Successor)) {
        let mut slot = lock(&self.0.successor);
        if let Some(successor) = slot.take() {
            take(successor);
        }
    }
}

/// First word of the reply to a successful request. The number of the checkpoint and the guest's pause in
/// milliseconds follow; any other reply is the reason of a failure.
const MADE: &str = "made";

/// Requests a checkpoint of a running VM. Returns its number and the duration of the guest's pause.
pub fn ask(home: &Home, keep: usize) -> Result<(u32, Duration), Failure> {
    let making = format!("create a checkpoint of VM {}", home.name);
    let asked = || -> io::Result<String> {
        let mut stream = UnixStream::connect(home.run().checkpoints)?;
        writeln!(stream, "{keep}")?;
        let mut said = String::new();
        BufReader::new(stream).read_line(&mut said)?;
        Ok(said)
    };
    let said = asked().or_cannot(&making).map_err(|failure| failure.remedy("see tombolo vm list"))?;
    let mut words = said.split_ascii_whitespace();
    let made = (words.next() == Some(MADE)).then(|| {
        let number = words.next()?.parse().ok()?;
        Some((number, Duration::from_millis(words.next()?.parse().ok()?)))
    });
    match made.flatten() {
        Some(made) => Ok(made),
        None if said.is_empty() => Err(Failure::cannot(&making, "its supervisor has ended")),
        None => Err(Failure::told(said.trim_end())),
    }
}

/// State of the thread that makes checkpoints.
struct Maker {
    /// Channels to the servers of the disk and, if it is an overlay, the memory, in the order of [`KINDS`].
    channels: Vec<Channel>,
    shared: Arc<Shared>,
    events: Sender<Event>,
}

impl Maker {
    fn answer(&mut self, name: &str, asked: &UnixStream) -> io::Result<()> {
        let mut keep = String::new();
        BufReader::new(asked).read_line(&mut keep)?;
        let keep = keep.trim_end().parse().map_err(io::Error::other)?;
        let made = Home::of(name).and_then(|home| self.make(&home, keep));
        let mut asked = asked;
        match made {
            Ok((number, still)) => writeln!(asked, "{MADE} {number} {}", still.as_millis()),
            Err(failure) => writeln!(asked, "{}", failure.to_string().replace('\n', " ")),
        }
    }

    fn make(&mut self, home: &Home, keep: usize) -> Result<(u32, Duration), Failure> {
        let _turn = Turn::take(home)?;
        self.find_unresponsive(home)?;
        // Bounds the depth of the overlay chains.
        self.tidy(home, keep)?;
        let number = chain::next_number(home)?;
        let mut drafts = Vec::new();
        self.shared.is_undoable.store(true, Ordering::SeqCst);
        let frozen = self.freeze(home, number, &mut drafts);
        if frozen.is_err() {
            drafts.drain(..).for_each(Draft::discard);
            let _ = forget(home, DRAFT);
        }
        self.shared.is_undoable.store(false, Ordering::SeqCst);
        let Frozen { time, mut asleep, is_adopted, lock } = frozen?;
        let (state, memory) = (asleep.state.clone(), asleep.memory.clone());
        thread::scope(|scope| {
            // The guest may be slow to find its devices, so plugging them does not delay the answers to its
            // flushes.
            scope.spawn(|| asleep.plug());
            let adopted = if is_adopted { adopt(home, &memory) } else { Ok(()) };
            if adopted.is_err() {
                // A failed sync means that the kernel has dropped pages of the memory, so the VM ends.
                let _ = self.events.send(Event::Ended(Part::Memory));
            }
            let completed = self.complete(home, &drafts, &state, number, adopted);
            drop(lock);
            completed
        })?;
        // Files open on the mount would keep it mounted.
        drop((asleep, memory));
        if let Err(error) = self.tidy(home, keep) {
            tracing::warn!(%error, "excess checkpoints will be merged with the next one");
        }
        Ok((number, time))
    }

    /// Fails if a server does not respond.
    fn find_unresponsive(&self, home: &Home) -> Outcome {
        let run = home.run();
        for (channel, control) in self.channels.iter().zip([&run.disk_control, &run.memory_control]) {
            if Meter::of(control).moved().is_none() {
                return Err(unresponsive(home, DOING, channel.what));
            }
        }
        Ok(())
    }

    fn tidy(&mut self, home: &Home, keep: usize) -> Outcome {
        chain::forget_oldest(home, keep)?;
        self.channels.iter_mut().try_for_each(|channel| renew(home, channel))
    }

    /// Pauses the guest, freezes device state, memory and disk at that moment, and resumes the guest without
    /// its network card, identity and shares, which the caller plugs again. After a failure the guest
    /// continues as before, unless the VM is ending or the VMM does not respond.
    fn freeze<'a>(
        &mut self,
        home: &'a Home,
        number: u32,
        drafts: &mut Vec<Draft<'a>>,
    ) -> Result<Frozen<'a>, Failure> {
        self.goes_on(home)?;
        let mut successor = Successor::start(home, || self.is_ending())?;
        for what in KINDS {
            drafts.push(Draft::make(home, what, number)?);
        }
        let mut asleep = Asleep::prepare(home, DOING)?;
        let prepared = match &mut successor {
            Some(successor) => successor.prepare(home),
            // The memory's server gets the pages written so far, and makes them durable later.
            None => self
                .memory()
                .map_or(Ok(()), |server| server.ask(REST, None, None))
                .and_then(|()| sync_memory(home, &asleep.memory)),
        };
        // The lock is taken only now: the VM's end does not wait for merging and unplugging, which may be
        // interrupted at any point.
        let lock = match prepared.and_then(|()| self.lock(home)) {
            Ok(lock) => lock,
            Err(failure) => {
                self.take_back(successor);
                if !self.is_ending() {
                    asleep.plug();
                }
                return Err(failure);
            }
        };
        let written_before = written(home);
        let mut laps = match self.pause(home, &mut asleep, drafts, &mut successor) {
            Ok(laps) => laps,
            Err(failure) => {
                self.take_back(successor);
                let went_on = asleep.proceed(|| self.is_ending());
                drop(lock);
                match went_on {
                    Ok(()) => asleep.plug(),
                    Err(error) => tracing::error!(%error, "the VMM did not resume"),
                }
                return Err(failure);
            }
        };
        let is_adopted = successor.is_some();
        self.channels.extend(successor.as_mut().and_then(|successor| successor.channel.take()));
        // The servers undo nothing after this request. It precedes the resumption, which may wait for a
        // change that a server holds until it receives the request. A server that has ended is noticed with
        // the reply.
        self.channels.iter_mut().for_each(|channel| drop(channel.send(SETTLE, None)));
        if !is_adopted && let Err(error) = asleep.proceed(|| self.is_ending()) {
            tracing::error!(%error, "the VMM did not resume");
        }
        laps.end("resumption");
        let time = laps.total();
        let kib = written(home).saturating_sub(written_before) >> 10;
        home.note(&format!(
            "guest paused for {} ms, while {kib} KiB of memory were written: {}",
            time.as_millis(),
            laps.parts.join(", ")
        ));
        if let Some(monitor) = successor.and_then(|successor| self.hand_over(successor)) {
            asleep.monitor = monitor;
        }
        Ok(Frozen { time, asleep, is_adopted, lock })
    }

    /// Pauses the guest, saves its device state, and puts the drafts on top of disk and memory. A
    /// successor, if there is one, then runs the guest.
    fn pause(
        &mut self,
        home: &Home,
        asleep: &mut Asleep<'_>,
        drafts: &[Draft<'_>],
        successor: &mut Option<Successor>,
    ) -> Result<Laps, Failure> {
        let mut laps = Laps::begin(asleep.stop(DOING)?);
        laps.end("device state");
        let until = Instant::now() + PAUSE_PATIENCE;
        match successor {
            Some(successor) => successor.load(home, until)?,
            None => write_memory(home, &asleep.memory, until)?,
        }
        laps.end("memory");
        let next = successor.iter_mut().filter_map(|successor| successor.channel.as_mut());
        for (draft, channel) in drafts.iter().zip(self.channels.iter_mut().chain(next)) {
            channel.ask(TOP, Some(&draft.file), Some(until))?;
        }
        laps.end("overlays");
        let Some(successor) = successor else { return Ok(laps) };
        // The overlay of the successor's memory is discarded with the successor, so its server never undoes
        // anything. If it held writes, the VMM would stop, because the kernel delays changes of pages of a
        // FUSE mount until earlier ones are written.
        if let Some(channel) = &mut successor.channel {
            channel.send(SETTLE, None)?;
        }
        successor.proceed(home, until)?;
        Ok(laps)
    }

    /// Passes a successor that runs the guest to the thread that owns the VM's processes, and waits until it
    /// has replaced the first VMM. Returns the successor's monitor.
    fn hand_over(&self, mut successor: Successor) -> Option<Monitor> {
        let monitor = successor.take_monitor();
        *lock(&self.shared.successor) = Some(successor);
        let _ = self.events.send(Event::Switch);
        while lock(&self.shared.successor).is_some() {
            thread::sleep(LOOK_EVERY);
        }
        monitor
    }

    /// Ends a successor, and then has the servers undo the requests of this checkpoint. A server that does
    /// not respond holds all changes until it has received the request to undo.
    fn take_back(&mut self, successor: Option<Successor>) {
        let may_run = successor.as_ref().is_some_and(|successor| successor.may_run);
        drop(successor);
        let request = if may_run { ABANDON } else { TAKE_BACK };
        self.channels.iter_mut().for_each(|channel| drop(channel.send(request, None)));
        // The guest resumes only once all servers have replied: until then its writes would fail with those
        // of the successor.
        while may_run && !self.is_ending() && !self.channels.iter_mut().all(Channel::is_quiet) {
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Completes a checkpoint while the guest runs. Flushes by the guest wait until the disk's server
    /// receives [`GO_ON`].
    fn complete(
        &mut self,
        home: &Home,
        drafts: &[Draft<'_>],
        state: &File,
        number: u32,
        adopted: Outcome,
    ) -> Outcome {
        let settled = drafts.iter().zip(&mut self.channels);
        let settled = settled.map(|(draft, channel)| settle(home, draft, channel));
        settled.fold(adopted, Outcome::and)?;
        state
            .sync_all()
            .and_then(|()| chain::complete(home, DRAFT, number))
            .or_cannot(format_args!("{DOING} VM {}", home.name))
    }

    /// Returns the channel to the server of the memory; `None` if the memory is a plain file.
    fn memory(&mut self) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|channel| channel.what == MEMORY)
    }

    fn is_ending(&self) -> bool {
        self.shared.is_ending.load(Ordering::SeqCst)
    }

    /// Fails if the VM is ending.
    fn goes_on(&self, home: &Home) -> Outcome {
        if self.is_ending() {
            return Err(Failure::cannot(format_args!("{DOING} VM {}", home.name), "it is being stopped"));
        }
        Ok(())
    }

    fn lock(&self, home: &Home) -> Result<Exclusive, Failure> {
        loop {
            self.goes_on(home)?;
            if let Some(lock) = self.shared.lock() {
                return Ok(lock);
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Time limit for the servers, and for a successor, while the guest is paused.
pub const PAUSE_PATIENCE: Duration = Duration::from_secs(5);

/// Writes the memory of a paused guest to its server. A server that does not respond blocks a thread until it
/// does or ends.
fn write_memory(home: &Home, memory: &Arc<File>, until: Instant) -> Outcome {
    let saving = format!("save the memory of {}", home.name);
    let (written, wait) = mpsc::channel();
    let memory = memory.clone();
    let write = move || written.send(memory.sync_all()).unwrap_or_default();
    thread::Builder::new().name("memory".into()).spawn(write).or_cannot(&saving)?;
    match wait.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(written) => written.or_cannot(&saving),
        Err(_) => Err(Failure::cannot(&saving, "its server does not respond")),
    }
}

/// Durations of the parts of a guest's pause.
struct Laps {
    begun: Instant,
    last: Instant,
    parts: Vec<String>,
}

impl Laps {
    fn begin(begun: Instant) -> Self {
        Self { begun, last: begun, parts: Vec::new() }
    }

    fn end(&mut self, what: &str) {
        let now = Instant::now();
        let took = now.duration_since(self.last).as_secs_f64() * 1e3;
        self.parts.push(format!("{what} {took:.1} ms"));
        self.last = now;
    }

    fn total(&self) -> Duration {
        self.last.duration_since(self.begun)
    }
}

/// Returns the number of bytes written to the memory's server so far; 0 if the memory is a plain file or the
/// server does not respond.
fn written(home: &Home) -> u64 {
    ledger::moved(&home.run().memory_control).map_or(0, |(_, written)| written)
}

pub const DOING: &str = "create a checkpoint of";

const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A resumed guest whose state is frozen and must still become a checkpoint.
struct Frozen<'a> {
    /// Time for which the guest was paused.
    time: Duration,
    asleep: Asleep<'a>,
    /// `true` if another VMM runs the guest, over an overlay of its memory.
    is_adopted: bool,
    lock: Exclusive,
}

/// Syncs the memory's file, which is not written any more, and records that the memory is an overlay over it,
/// also if the sync fails. Returns the result of the sync.
fn adopt(home: &Home, memory: &File) -> Outcome {
    let durable = sync_memory(home, memory);
    retry(|| chain::write_down_memory(home));
    durable
}

/// Waits until a server has made its frozen layer durable, gives the draft its final name, and updates the
/// server's layers. If a layer cannot be made durable, its server fails all later flushes.
fn settle(home: &Home, draft: &Draft<'_>, channel: &mut Channel) -> Outcome {
    channel.answer(None)?;
    retry(|| draft.take_its_name());
    renew(home, channel)
}

/// Passes a server the present layers below its top overlay, in place of merged ones, which are then no
/// longer in use, and makes it answer flushes again.
fn renew(home: &Home, channel: &mut Channel) -> Outcome {
    let layers = chain::open_layers(home, channel.what);
    let passed = layers.as_ref().map_or(Ok(()), |layers| {
        layers.iter().try_for_each(|(_, file)| channel.ask(LAYER, Some(file), None))
    });
    channel.ask(GO_ON, None, None)?;
    passed?;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    for (path, file) in layers? {
        // The server has the same open file descriptions, so these locks last as long as its use: programs
        // that respect the locks do not write to the layers.
        if let Err(error) = lock_open_image(&path, &file, &options) {
            tracing::warn!(%error, "cannot lock an overlay of a checkpoint");
        }
    }
    Ok(())
}

/// Repeats a change of the VM's directory until it succeeds.
fn retry<E: Display>(change: impl Fn() -> Result<(), E>) {
    while let Err(error) = change() {
        tracing::error!(%error, "cannot write the VM's directory: retrying");
        thread::sleep(AGAIN);
    }
}

/// Pause between two attempts.
const AGAIN: Duration = Duration::from_secs(1);
