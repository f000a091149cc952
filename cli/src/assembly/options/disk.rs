//! Options of a disk, on the command line and in the configuration file alike, and of a disk server.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::address::ListenAddress;
use super::file::{list, one};
use super::nbd::{NbdListen, NbdUrl};
use super::virtiofs::SocketMode;
use crate::assembly::plan::tree::Tree;
use tombolo_host_service::sandbox::Strictness;

use crate::setting::Setting;

/// Options of a disk: keys of a `[[disk]]` table are the option names.
#[derive(Args, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DiskOptions {
    /// Disk to serve: an image (raw, qcow2 or an overlay, see --format), a block device, a disk of an NBD
    /// server (nbd[s]://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH), or a file on an NFS server
    /// (nfs://HOST/NAME/FILE, nfs+ssh://HOST/PATH) or over shared memory (shm:SOCKET/NAME/FILE).
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Name for NBD clients and tools (by default the file name).
    #[arg(long, value_name = "NAME", value_parser = name)]
    #[serde(default, deserialize_with = "file_name")]
    pub name: Option<String>,
    /// Image format (by default from the file name: .qcow2, .overlay, otherwise raw). It is never guessed
    /// from the contents, which a guest controls.
    #[arg(long, value_name = "FORMAT")]
    #[serde(default)]
    pub format: Option<ImageFormat>,
    /// Directory that may contain backing files of a qcow2 image and recorded bases of an overlay, besides
    /// the directory of each image itself.
    #[arg(long, value_name = "DIR")]
    #[serde(default)]
    pub backing_dir: Option<PathBuf>,
    /// Base of an overlay, a file or a URL as for the disk, instead of the one recorded in it. Repeat for the
    /// base of a base that is an overlay itself.
    #[arg(long, value_name = "DISK")]
    #[serde(default, deserialize_with = "one_or_more")]
    pub base: Vec<PathBuf>,
    /// Refuse a --base behind a symbolic link.
    #[arg(long, hide = true)]
    #[serde(default)]
    pub base_no_links: bool,
    /// Listen on a vhost-user-blk socket for VMMs; repeatable. One guest at a time uses the disk, and others
    /// wait until it disconnects or has migrated; a read-only disk is shared by many.
    #[arg(long, value_name = "SOCKET")]
    #[serde(default)]
    pub vhost_user: Vec<PathBuf>,
    /// Present the disk as a file, DIR/NAME, to this user only, for programs that need one. Writes to the
    /// file are visible to guests and NBD clients only after a sync.
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    pub mount: Option<PathBuf>,
    /// Serve the disk over NBD: on a socket (./NAME, /PATH), or PORT on this host only, :PORT on all
    /// IPv4 interfaces, IP:PORT or NAME:PORT on one; repeatable. Every client that reaches the address has
    /// access.
    #[arg(long, value_name = "ADDR")]
    #[serde(default, deserialize_with = "list")]
    pub nbd: Vec<NbdListen>,
    /// Serve the disk over NBD with TLS: clients need a certificate of the CA in --tls-dir; repeatable.
    #[arg(long, value_name = "ADDR")]
    #[serde(default, deserialize_with = "list")]
    pub nbd_tls: Vec<NbdListen>,
    /// Directory of ca.pem, cert.pem and key.pem for --nbd-tls (by default tls in
    /// $XDG_CONFIG_HOME/tombolo, for root /etc/tombolo/tls). tombolo keys issue creates one.
    #[arg(long, value_name = "DIR", requires = "nbd_tls")]
    #[serde(default)]
    pub tls_dir: Option<PathBuf>,
    /// Give the --vhost-user sockets to this group (name or number), so that VMMs of its users can connect.
    #[arg(long, value_name = "GROUP")]
    #[serde(default)]
    pub socket_group: Option<String>,
    /// Permission bits of the sockets of --vhost-user and --nbd, in octal (by default 0600; of --vhost-user
    /// with a group 0660).
    #[arg(long, value_name = "MODE")]
    #[serde(default, deserialize_with = "one")]
    pub socket_mode: Option<SocketMode>,
    /// Number of queues available to a guest, from 1 to 64; best is one per virtual CPU.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = queues)]
    #[serde(default = "one_queue", deserialize_with = "file_queues")]
    pub queues: u16,
    /// Serial number, as in the guest's /dev/disk/by-id/virtio-SERIAL: 1 to 20 visible ASCII characters (by
    /// default from the name).
    #[arg(long, value_name = "SERIAL", value_parser = serial)]
    #[serde(default, deserialize_with = "file_serial")]
    pub serial: Option<String>,
    /// Block size in bytes: a power of two from 512 to 64K.
    #[arg(long, value_name = "SIZE", default_value = "512", value_parser = block_bytes)]
    #[serde(default = "one_sector", deserialize_with = "file_block_bytes")]
    pub block_size: u32,
    /// Use of the host's page cache: host, or none (direct I/O, for raw images and block devices).
    #[arg(long, value_name = "CACHE", default_value = "host")]
    #[serde(default)]
    pub cache: HostCache,
    /// Refuse all changes. Several servers may then share the disk.
    #[arg(long, alias = "readonly")]
    #[serde(default, alias = "readonly")]
    pub read_only: bool,
}

/// Options of the process that serves one disk.
#[derive(Args, Clone, Debug)]
pub struct DiskServerOptions {
    /// Keep guests connected if the server dies: a second process holds their connections and starts a new
    /// server, so guests see only a pause.
    ///
    /// For VMMs that do not reconnect, and for overlays: without it, a kill of the server loses unflushed
    /// writes to an overlay or a qcow2 image, and the guest must be restarted. Refused with qcow2 images and
    /// --mount. `tombolo upgrade NAME` replaces the program of the server. SIGTERM to the first process ends
    /// both.
    #[arg(long)]
    pub keep: bool,
    /// End at once after a failed write to the file of --mount: programs that have it mapped would continue
    /// with lost data.
    #[arg(long, requires = "mount", hide = true)]
    pub end_at_failed_write: bool,
    /// Run as the server of a keeper, with the sockets of its guests at these descriptors.
    #[arg(long, value_name = "FD", hide = true)]
    pub kept: Vec<i32>,
    /// Keep the states of an overlay's unflushed blocks in the memory of this descriptor, which a keeper
    /// holds.
    #[arg(long, value_name = "FD", hide = true)]
    pub kept_states: Option<i32>,
    /// Append a line to this file for each part of the overlay's base when it is first read. The file of
    /// --mount is then read by single pages.
    #[arg(long, value_name = "FILE", hide = true)]
    pub record: Option<PathBuf>,
    /// Accept messages on the socket at standard input that change the layers below an overlay while it is
    /// served; N overlays lie between it and the base that never changes.
    #[arg(long, value_name = "N", hide = true)]
    pub layers: Option<u32>,
    /// Accept a base that is still written to, without verifying its mark (docs/formats/overlay.md). The
    /// process that starts the server must record the mark before anything depends on the overlay.
    #[arg(long, requires = "layers", hide = true)]
    pub base_in_use: bool,
    /// Confinement of the running server: off, auto (as much of strict as the kernel and the user allow), or
    /// strict (no privilege it does not need; fail to start otherwise).
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub sandbox: Strictness,
    /// Control socket for `tombolo top` and other tools (by default NAME.sock in $XDG_RUNTIME_DIR/tombolo, in
    /// /run/tombolo for root, otherwise in /tmp/tombolo-UID).
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Serve Prometheus metrics over HTTP, to anyone who can connect: PORT on this host only, :PORT on all
    /// IPv4 interfaces, IP:PORT or NAME:PORT on one.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<ListenAddress>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageFormat {
    /// The disk's bytes.
    Raw,
    /// QEMU's sparse format, possibly over a backing file.
    Qcow2,
    /// Changes to a base disk of any kind.
    Overlay,
}

/// Options of an image besides its name.
#[derive(Args, Clone, Debug, Default)]
pub struct ImageOptions {
    /// Image format (by default from the file name: .qcow2, .overlay, otherwise raw). It is never guessed
    /// from the contents, which a guest controls.
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<ImageFormat>,
    /// Directory that may contain backing files of a qcow2 image and recorded bases of an overlay, besides
    /// the directory of each image itself.
    #[arg(long, value_name = "DIR")]
    pub backing_dir: Option<PathBuf>,
    /// Base of an overlay, a file or a URL as for the disk, instead of the one recorded in it. Repeat for the
    /// base of a base that is an overlay itself.
    #[arg(long, value_name = "DISK")]
    pub base: Vec<PathBuf>,
    /// Refuse a --base behind a symbolic link.
    #[arg(long, hide = true)]
    pub base_no_links: bool,
}

impl ImageFormat {
    /// Returns the format that the extension of a file name implies; raw for unknown ones.
    pub fn of_name(path: &Path) -> Self {
        match path.extension().and_then(OsStr::to_str) {
            Some("qcow2" | "qcow") => Self::Qcow2,
            Some("overlay") => Self::Overlay,
            _ => Self::Raw,
        }
    }
}

/// Parses the disk's name, which also names a control socket and an NBD export.
fn name(text: &str) -> Result<String, String> {
    let is_good = !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0']);
    if is_good && text.len() <= 128 {
        Ok(text.into())
    } else {
        Err("up to 128 bytes, without /, not beginning with .".into())
    }
}

/// Use of the host's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostCache {
    /// Host page cache.
    #[default]
    Host,
    /// None (O_DIRECT).
    None,
}

/// VIRTIO 1.2 §5.2.6: the serial number has 20 bytes.
const SERIAL_BYTES_MAX: usize = 20;

fn serial(text: &str) -> Result<String, String> {
    let is_plain = text.chars().all(|c| c.is_ascii_graphic());
    if is_plain && (1..=SERIAL_BYTES_MAX).contains(&text.len()) {
        Ok(text.into())
    } else {
        Err(format!("1 to {SERIAL_BYTES_MAX} visible ASCII characters"))
    }
}

fn block_bytes(text: &str) -> Result<u32, String> {
    let bytes = size(text).and_then(|bytes| u32::try_from(bytes).ok());
    let bytes = bytes.filter(|bytes| bytes.is_power_of_two() && (512..=64 << 10).contains(bytes));
    bytes.ok_or_else(|| "a power of two from 512 to 64K".into())
}

const fn one_queue() -> u16 {
    1
}

const fn one_sector() -> u32 {
    512
}

/// Parses a value of the configuration file, a string or a number, with the check of the command line.
fn checked<'de, T, D: Deserializer<'de>>(
    key: &str,
    check: fn(&str) -> Result<T, String>,
    deserializer: D,
) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Word {
        Number(u64),
        Text(String),
    }
    let word = match Word::deserialize(deserializer) {
        Ok(Word::Number(number)) => Ok(number.to_string()),
        Ok(Word::Text(text)) => Ok(text),
        Err(_) => Err("neither a string nor a number".to_owned()),
    };
    word.and_then(|word| check(&word)).map_err(|reason| D::Error::custom(format!("{key}: {reason}")))
}

/// Decodes a path or a list of paths from the configuration file.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Words {
        One(PathBuf),
        More(Vec<PathBuf>),
    }
    Words::deserialize(deserializer).map(|words| match words {
        Words::One(path) => vec![path],
        Words::More(paths) => paths,
    })
}

fn file_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    checked("name", name, deserializer).map(Some)
}

fn file_serial<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    checked("serial", serial, deserializer).map(Some)
}

fn file_block_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    checked("block-size", block_bytes, deserializer)
}

fn file_queues<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    checked("queues", queues, deserializer)
}

fn queues(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=QUEUES_MAX).contains(number));
    number.ok_or_else(|| format!("a number from 1 to {QUEUES_MAX}"))
}

const QUEUES_MAX: u16 = 64;

/// Parses a number of bytes: `N`, or `NK`, `NM`, `NG`, `NT` for powers of 1024; `None` for other texts.
pub fn size(text: &str) -> Option<u64> {
    Setting { text, name: "size", value: Some(text) }.bytes()
}

impl DiskOptions {
    /// Resolves relative paths against `base`, the directory of the configuration file.
    pub fn count_from(&mut self, base: &Path) {
        // Locations such as `nbd:` and `nfs:` are not plain paths.
        let words = [&mut self.file].into_iter().chain(&mut self.base);
        let files = words.filter(|word| NbdUrl::parse(word).is_none() && !Tree::is_location(word));
        let nbd = self.nbd.iter_mut().filter_map(|listen| match listen {
            NbdListen::Unix(path) => Some(path),
            NbdListen::Tcp(_) => None,
        });
        let paths = files.chain(nbd).chain(&mut self.vhost_user);
        for path in paths.chain(&mut self.backing_dir).chain(&mut self.tls_dir) {
            *path = base.join(&path);
        }
    }

    /// Returns the options needed to open the disk, which commands that do not serve it have too.
    pub fn image(&self) -> ImageOptions {
        let Self { format, backing_dir, base, base_no_links, .. } = self.clone();
        ImageOptions { format, backing_dir, base, base_no_links }
    }

    /// Returns the serial number: that of the option, by default the first visible ASCII characters of the
    /// name.
    pub fn serial_of(&self, name: &str) -> String {
        let of_name = || name.chars().filter(char::is_ascii_graphic).take(SERIAL_BYTES_MAX).collect();
        self.serial.clone().unwrap_or_else(of_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_and_block_size_are_validated() {
        assert_eq!((serial("root-1").as_deref(), block_bytes("4K")), (Ok("root-1"), Ok(4096)));
        for bad in ["", "a b", "é", "123456789012345678901"] {
            assert!(serial(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "0", "256", "3K", "128K", "8G", "x"] {
            assert!(block_bytes(bad).is_err(), "{bad:?}");
        }
    }
}
