//! Live change of the layers below a served overlay: the top layer is frozen and an empty one is put over it.
//! The process that started the server, a VM's supervisor (`commands::vm::live`), sends messages to the
//! server's standard input. It opens the files too, because the server may be in a sandbox.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

use libtombolo::block_on;
use tombolo_back_image_file::ImageFile;
use tombolo_core::block::{BlockDevice, OpenOptions};
use tombolo_core::{Ctx, SessionId, lock};
use tombolo_front_virtio_blk::VirtioBlk;
use tombolo_host_runtime::thread_pool::ThreadPool;
use tombolo_layer_basic::switch::Switch;
use tombolo_layer_overlay::{Header, Overlay};
use tombolo_sys::packet;

use super::plan::overlay::{Bottom, mark_of_overlay};

/// Message after which flushes are acknowledged at once, until [`GO_ON`] or an undo. As every message, it is
/// answered by [`DONE`] or by an error text. Most messages call the method of [`Switch`] of the same name.
pub const REST: &str = "rest";
/// Message with a file: an empty overlay to be put over the present top layer. Changes wait for [`SETTLE`],
/// [`TAKE_BACK`] or [`ABANDON`].
pub const TOP: &str = "top";
/// Message that undoes [`REST`] and [`TOP`]: waiting changes go to the former top layer.
pub const TAKE_BACK: &str = "take back";
/// Message that waits until only one VMM is connected, and then undoes [`TOP`] as [`TAKE_BACK`] does, but
/// fails the waiting changes.
pub const ABANDON: &str = "abandon";
/// Message that lets changes go to the new top layer, answered once the former one is durable.
pub const SETTLE: &str = "settle";
/// Message with a file: an overlay below the top one, for the next [`GO_ON`]. Sent from the bottom up.
pub const LAYER: &str = "layer";
/// Message after [`SETTLE`] that replaces the lower layers by those sent, if any, and lets flushes proceed.
pub const GO_ON: &str = "go on";
/// Answer to a message that was carried out.
pub const DONE: &str = "done";

/// Interval at which [`ABANDON`] checks that only one VMM is connected.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Maximum length of a message and of an answer.
pub const BYTES_MAX: usize = 1024;

/// Channel for the messages, and the slot of the disk below the changing layers, before [`Layers`] exists.
pub struct PreparedLayers {
    channel: OwnedFd,
    bottom: Bottom,
}

/// Devices of the VMMs connected to a disk.
#[derive(Clone, Default)]
pub struct Devices(Arc<Mutex<Vec<Weak<VirtioBlk>>>>);

impl Devices {
    /// Adds a device, which is dropped when its VMM has disconnected and its queues have stopped.
    pub fn add(&self, device: &Arc<VirtioBlk>) {
        self.connected().push(Arc::downgrade(device));
    }

    fn connected(&self) -> MutexGuard<'_, Vec<Weak<VirtioBlk>>> {
        let mut devices = lock(&self.0);
        devices.retain(|device| device.strong_count() > 0);
        devices
    }
}

/// A served overlay, and the layers below it that can be changed while it is served.
pub struct Layers {
    disk: Switch,
    devices: Devices,
    /// Layer below the top overlay, once [`TOP`] has put an overlay on it.
    below: Option<Switch>,
    /// Value of `below` before the last [`TOP`], until that is undone or followed by [`GO_ON`]; `None`
    /// otherwise.
    before: Option<Option<Switch>>,
    bottom: Bottom,
    /// Layers received by [`LAYER`] for the next [`GO_ON`], from the bottom up.
    passed: Vec<File>,
    pool: Arc<ThreadPool>,
}

impl PreparedLayers {
    pub fn new(bottom: Bottom) -> io::Result<Self> {
        Ok(Self { channel: io::stdin().as_fd().try_clone_to_owned()?, bottom })
    }

    /// Starts a thread that processes messages until the peer disconnects. Returns the disk to serve.
    pub fn start(
        self,
        disk: Arc<dyn BlockDevice>,
        devices: Devices,
        pool: &Arc<ThreadPool>,
    ) -> io::Result<Switch> {
        let Self { channel, bottom } = self;
        let disk = Switch::new(disk);
        let (passed, pool) = (Vec::new(), pool.clone());
        let mut layers =
            Layers { disk: disk.clone(), devices, below: None, before: None, bottom, passed, pool };
        thread::Builder::new().name("layers".into()).spawn(move || layers.serve(&channel))?;
        Ok(disk)
    }
}

impl Layers {
    fn serve(&mut self, channel: &OwnedFd) {
        self.answer_all(channel);
        // Changes may be waiting for `TAKE_BACK`, and flushes for `GO_ON`: the changes proceed, the flushes
        // fail.
        self.take_back();
        self.disk.give_up();
    }

    fn answer_all(&mut self, channel: &OwnedFd) {
        let mut buffer = [0; BYTES_MAX];
        while packet::wait(channel).is_ok() {
            let Ok(packet) = packet::receive(channel, &mut buffer) else { continue };
            if packet.len == 0 {
                return;
            }
            let request = String::from_utf8_lossy(buffer.get(..packet.len).unwrap_or_default()).into_owned();
            let done = self.answer(&request, packet.descriptors.into_iter().next().map(File::from));
            let mut answer = done.err().map_or_else(|| DONE.to_owned(), |reason| reason.to_string());
            answer.truncate(answer.floor_char_boundary(BYTES_MAX));
            if packet::send(channel, answer.as_bytes(), &[]).is_err() {
                return;
            }
        }
    }

    fn answer(&mut self, request: &str, file: Option<File>) -> io::Result<()> {
        // A checkpoint of a disk with lost writes fails at its first message, and so changes nothing.
        if self.disk.is_lost() {
            return Err(io::Error::other("earlier writes cannot be made durable"));
        }
        match (request, file) {
            (REST, None) => self.disk.rest().map_err(io::Error::other)?,
            (TOP, Some(file)) => self.put_on_top(file)?,
            (TAKE_BACK, None) => self.take_back(),
            (ABANDON, None) => {
                // Requests of the VMM that has ended are taken from its queues until its device is dropped.
                while self.devices.connected().len() > 1 {
                    thread::sleep(LOOK_EVERY);
                }
                self.disk.abandon();
                self.take_back();
            }
            (SETTLE, None) => self.disk.settle(&cx()).wait().map_err(io::Error::other)?,
            (LAYER, Some(file)) => self.passed.push(file),
            (GO_ON, None) => {
                let renewed = self.renew();
                self.disk.go_on().map_err(io::Error::other)?;
                renewed?;
            }
            _ => return Err(io::Error::other(format!("unknown request {request:?}"))),
        }
        Ok(())
    }

    fn take_back(&mut self) {
        self.disk.take_back();
        if let Some(before) = self.before.take() {
            self.below = before;
        }
        self.passed.clear();
    }

    fn put_on_top(&mut self, file: File) -> io::Result<()> {
        let old = Switch::new(self.disk.now());
        // The file was created for this base: the mark recorded in it is accepted unchecked.
        let top = self.overlay(old.disk(), file, None, &OpenOptions::default())?;
        self.disk.replace(top).map_err(io::Error::other)?;
        self.before = Some(self.below.replace(old));
        Ok(())
    }

    /// Switches reads to the received layers: a chain with the same content, possibly of fewer and other
    /// files.
    fn renew(&mut self) -> io::Result<()> {
        let passed = std::mem::take(&mut self.passed);
        self.before = None;
        let (Some(below), Some(bottom)) = (&self.below, self.bottom.disk()) else { return Ok(()) };
        if passed.is_empty() {
            return Ok(());
        }
        let (mut disk, mut mark) = (bottom, None);
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        for file in passed {
            let own = mark_of_overlay(&file)?;
            disk = self.overlay(disk, file, mark, &options)?;
            mark = Some(own);
        }
        below.renew(disk);
        Ok(())
    }

    fn overlay(
        &self,
        base: Arc<dyn BlockDevice>,
        file: File,
        mark: Option<Vec<u8>>,
        options: &OpenOptions,
    ) -> io::Result<Arc<Overlay>> {
        let log = ImageFile::passed(Path::new("the next layer"), file, options, self.pool.lane());
        let log = log.map_err(io::Error::other)?;
        let overlay = async {
            let mark = match mark {
                Some(mark) => mark,
                None => Header::read_from(&cx(), &*log).await?.base_mark,
            };
            Overlay::open(&cx(), base, &mark, log.clone(), options, None).await
        };
        block_on(overlay).map_err(io::Error::other)
    }
}

fn cx() -> Ctx {
    Ctx::root(SessionId(0))
}
