//! Byte streams of bells, the doorbells of links without a common kernel: a pair of FIFOs on the host, a
//! serial line or virtio port in a guest. [`BellSource`] opens a stream; `rendezvous` attaches it to links.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tombolo_core::lock;
use tombolo_shm::doorbell::{Bell, BellStream};
use tombolo_shm::link::{DoorbellKind, Ends};
use tombolo_sys::lock::{LockKind, try_flock};
use tombolo_sys::{Errno, creds, stream, terminal};

use super::shared_memory::MemoryLocation;

/// Prefix of the name that marks a guest's virtio port as a bell.
pub const PORT: &str = "tombolo.bell";
/// Directory of sysfs that lists the virtio ports.
pub const PORTS: &str = "/sys/class/virtio-ports";
/// Serial line that a UML guest uses as a bell.
pub const SERIAL_LINE: &str = "/dev/ttyS1";

/// Location of a bell's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BellLocation {
    /// At a host: the FIFOs PATH.in, which the guest reads, and PATH.out, which it writes, named as by QEMU's
    /// pipe devices.
    Fifos(PathBuf),
    /// In a guest: a serial line or a virtio port.
    Device(PathBuf),
}

/// A bell's stream, opened when it is first needed and not closed between links: a virtio port can be open
/// only once.
#[derive(Debug)]
pub struct BellSource {
    location: BellLocation,
    state: Mutex<SourceState>,
}

#[derive(Debug, Default)]
enum SourceState {
    #[default]
    Closed,
    Open(Arc<BellStream>),
    /// Opening has failed. Links are made without a bell.
    Failed,
}

impl BellLocation {
    /// Returns the device of the bell that belongs to the memory at `memory`: the serial line in a UML
    /// guest, the virtio port in any other. Returns `None` if the memory is a file, as on a host; if the
    /// serial line is missing; and unless there is exactly one port for a bell and one PCI device with shared
    /// memory. `ports` is [`PORTS`], except in tests.
    pub fn find(memory: &MemoryLocation, ports: &Path) -> Option<BellLocation> {
        let device = match memory {
            MemoryLocation::File(_) => return None,
            MemoryLocation::Mmapper(_) => SERIAL_LINE.into(),
            // With several PCI devices it is unknown to which of them the port belongs.
            MemoryLocation::Pci(_) => {
                MemoryLocation::Pci(None).file().ok()?;
                Path::new("/dev").join(only_port(ports)?)
            }
        };
        Path::exists(&device).then_some(BellLocation::Device(device))
    }

    /// Opens the stream, and locks it against other processes. Fails if another one has the lock.
    fn open(&self) -> io::Result<BellStream> {
        let (input, output) = match self {
            BellLocation::Fifos(path) => {
                (fifo(&with_suffix(path, ".out"))?, fifo(&with_suffix(path, ".in"))?)
            }
            BellLocation::Device(path) => device(path)?,
        };
        // Two readers would take each other's bytes. The VMM, at the other end of the stream, takes no lock.
        match try_flock(input.as_fd(), LockKind::Exclusive) {
            Ok(()) => Ok(BellStream::new(input.into(), output.into())),
            Err(Errno::AGAIN) => Err(io::Error::other("another link uses it")),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the files of the stream.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            BellLocation::Fifos(path) => [".in", ".out"].map(|end| with_suffix(path, end)).into(),
            BellLocation::Device(path) => vec![path.clone()],
        }
    }
}

/// Returns the device file's name (such as `vport1p1`) of the port that the VMM gave a name that begins with
/// [`PORT`]. Returns `None` unless there is exactly one such port.
fn only_port(ports: &Path) -> Option<PathBuf> {
    let is_bell =
        |port: &PathBuf| std::fs::read_to_string(port.join("name")).is_ok_and(|name| name.starts_with(PORT));
    let mut found = std::fs::read_dir(ports).ok()?.flatten().map(|entry| entry.path()).filter(is_bell);
    let port = found.next()?;
    found.next().is_none().then(|| port.file_name().map(PathBuf::from))?
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl BellSource {
    /// Returns a source for the stream at `location`; opens nothing.
    pub fn new(location: BellLocation) -> Arc<BellSource> {
        Arc::new(BellSource { location, state: Mutex::default() })
    }

    /// Returns the location.
    pub fn location(&self) -> &BellLocation {
        &self.location
    }

    /// Opens the stream, unless it is open. Missing FIFOs are made, for this user only. After a failure
    /// links have no bell until another call succeeds.
    ///
    /// # Errors
    /// The files cannot be opened, are of another type (FIFOs of this user or root are required at a host, a
    /// character device in a guest), or another source reads the same stream.
    pub fn open(&self) -> io::Result<Arc<BellStream>> {
        let mut state = lock(&self.state);
        if let SourceState::Open(stream) = &*state {
            return Ok(Arc::clone(stream));
        }
        let opened = self.location.open().map(Arc::new);
        *state = opened.as_ref().map_or(SourceState::Failed, |stream| SourceState::Open(Arc::clone(stream)));
        opened
    }

    /// Returns `true` if links can have a bell. Opens the stream, unless opening was tried before.
    pub(super) fn is_usable(&self) -> bool {
        match &*lock(&self.state) {
            SourceState::Open(_) => return true,
            SourceState::Failed => return false,
            SourceState::Closed => {}
        }
        let opened = self.open();
        if let Err(error) = &opened {
            tracing::warn!(%error, bell = ?self.location, "cannot open the bell; polling at intervals");
        }
        opened.is_ok()
    }

    /// Opens the bell and adds it to `ends`, if client and server agreed on a bell as the link's doorbell.
    pub(super) fn attached(source: Option<&Arc<BellSource>>, ends: Ends) -> io::Result<Ends> {
        match source {
            Some(source) if ends.doorbell == DoorbellKind::Bell => {
                Ok(Ends { bell: Some(Arc::new(Bell::new(source.open()?)?)), ..ends })
            }
            _ => Ok(ends),
        }
    }
}

/// Opens a FIFO that belongs to this user or to root, and makes it if it is missing. If `path` is a symbolic
/// link, the link has to belong to this user or to root as well.
fn fifo(path: &Path) -> io::Result<File> {
    match stream::make_fifo(path) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    check_owner(path, &path.symlink_metadata()?)?;
    // Files of other types are not even opened, because opening a device may have side effects.
    check_fifo(path, &path.metadata()?)?;
    let file = stream::open(path)?;
    // The path may name another file by now.
    check_fifo(path, &file.metadata()?)?;
    Ok(file)
}

fn check_fifo(path: &Path, metadata: &Metadata) -> io::Result<()> {
    if !metadata.file_type().is_fifo() {
        return Err(io::Error::other(format!("{} is not a FIFO", path.display())));
    }
    check_owner(path, metadata)
}

fn check_owner(path: &Path, metadata: &Metadata) -> io::Result<()> {
    if metadata.uid() != 0 && metadata.uid() != creds::own_ids().0 {
        return Err(io::Error::other(format!("{} belongs to another user", path.display())));
    }
    Ok(())
}

/// Opens a guest's device, in raw mode if it is a terminal. Returns it for reading and for writing.
fn device(path: &Path) -> io::Result<(File, File)> {
    let file = stream::open(path)?;
    if !file.metadata()?.file_type().is_char_device() {
        return Err(io::Error::other(format!("{} is not a character device", path.display())));
    }
    match terminal::make_raw(file.as_fd()) {
        // A virtio port is no terminal.
        Ok(()) | Err(Errno::NOTTY) => Ok((file.try_clone()?, file)),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifos_are_made_once_for_one_user() {
        let dir = tempfile::tempdir().expect("a directory");
        let location = BellLocation::Fifos(dir.path().join("vm1.bell"));
        for _ in 0..2 {
            BellSource::new(location.clone()).open().expect("a stream");
        }
        for file in location.files() {
            let metadata = std::fs::metadata(file).expect("made");
            assert!(metadata.file_type().is_fifo() && metadata.mode() & 0o777 == 0o600, "{metadata:?}");
        }
        let plain = dir.path().join("plain");
        std::fs::write(dir.path().join("plain.out"), "").expect("a file");
        let refused = BellSource::new(BellLocation::Fifos(plain)).open().expect_err("not a FIFO");
        assert!(refused.to_string().ends_with("is not a FIFO"), "{refused}");
    }

    #[test]
    fn fifo_or_link_of_another_user_is_refused() {
        if creds::own_ids().0 != 0 {
            tombolo_skip::skip!("only root can give files away");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let bell = |name: &str| BellSource::new(BellLocation::Fifos(dir.path().join(name)));
        bell("theirs").open().expect("made");
        std::os::unix::fs::lchown(dir.path().join("theirs.out"), Some(65_534), None).expect("given away");
        bell("ours").open().expect("made");
        let link = dir.path().join("link.out");
        std::os::unix::fs::symlink("ours.out", &link).expect("a link");
        bell("link").open().expect("root's own link");
        std::os::unix::fs::lchown(&link, Some(65_534), None).expect("given away");
        for name in ["theirs", "link"] {
            let refused = bell(name).open().expect_err(name).to_string();
            assert!(refused.ends_with("belongs to another user"), "{refused}");
        }
    }

    #[test]
    fn second_reader_of_stream_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let [first, second] = [(); 2].map(|()| BellSource::new(BellLocation::Fifos(dir.path().join("bell"))));
        assert!(first.is_usable());
        let refused = second.open().expect_err("in use");
        assert_eq!(refused.to_string(), "another link uses it");
        assert!(!second.is_usable(), "a failure is remembered");
        drop(first);
        second.open().expect("free again");
        assert!(second.is_usable());
    }

    #[test]
    fn only_one_port_of_that_name_is_a_bell() {
        let dir = tempfile::tempdir().expect("a directory");
        let add = |port: &str, name: &str| {
            std::fs::create_dir(dir.path().join(port)).expect("a directory");
            std::fs::write(dir.path().join(port).join("name"), format!("{name}\n")).expect("a file");
        };
        add("vport0p1", "org.qemu.guest_agent.0");
        assert_eq!(only_port(dir.path()), None);
        add("vport0p2", "tombolo.bell.0");
        assert_eq!(only_port(dir.path()), Some("vport0p2".into()));
        add("vport0p3", "tombolo.bell.1");
        assert_eq!(only_port(dir.path()), None);
        assert_eq!(only_port(Path::new("/nonexistent")), None);
    }
}
