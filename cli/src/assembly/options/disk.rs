//! What can be asked of a disk, on the command line and in the configuration file alike, and of a server of
//! one.

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

/// What is asked of a disk: a key of a `[[disk]]` is the option's name.
#[derive(Args, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DiskOptions {
    /// The disk: an image (raw, or qcow2 or an overlay if it is called so), a block device of this host, one
    /// of an NBD server (nbd[s]://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH), or a file on an NFS
    /// server (nfs://HOST/NAME/FILE, nfs+ssh://HOST/PATH) or behind shared memory (shm:SOCKET/NAME/FILE).
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What it is called, by clients of NBD and tools (by default the file's name).
    #[arg(long, value_name = "NAME", value_parser = name)]
    #[serde(default, deserialize_with = "file_name")]
    pub name: Option<String>,
    /// What kind of image it is (by default as its name ends: .qcow2, .overlay, else raw).
    #[arg(long, value_name = "FORMAT")]
    #[serde(default)]
    pub format: Option<ImageFormat>,
    /// Where images may lie that a qcow2 image or an overlay stands on, besides its own directory.
    #[arg(long, value_name = "DIR")]
    #[serde(default)]
    pub backing_dir: Option<PathBuf>,
    /// What an overlay stands on, wherever that is: a file, or a URL as for the disk. Without, it says so
    /// itself. Once more: what that stands on, if it is an overlay too.
    #[arg(long, value_name = "DISK")]
    #[serde(default, deserialize_with = "one_or_more")]
    pub base: Vec<PathBuf>,
    /// Refuse a --base that lies behind a symbolic link.
    #[arg(long, hide = true)]
    #[serde(default)]
    pub base_no_links: bool,
    /// A socket for VMMs (vhost-user-blk); repeatable. One guest at a time has the disk, and others wait
    /// until it has left or migrated; many have one that is read-only.
    #[arg(long, value_name = "SOCKET")]
    #[serde(default)]
    pub vhost_user: Vec<PathBuf>,
    /// Show it to this user as a file, DIR/NAME, as long as the disk: for programs that want a file. Nothing
    /// else sees what they write before they make it durable.
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    pub mount: Option<PathBuf>,
    /// Serve it over NBD: at a socket (./NAME, /PATH), or PORT on this host only, :PORT on all interfaces,
    /// IP:PORT or NAME:PORT on one; repeatable. All that reach an address have the disk.
    #[arg(long, value_name = "ADDR")]
    #[serde(default, deserialize_with = "list")]
    pub nbd: Vec<NbdListen>,
    /// The same over TLS, at an address: clients must show a certificate of the CA in --tls-dir; repeatable.
    #[arg(long, value_name = "ADDR")]
    #[serde(default, deserialize_with = "list")]
    pub nbd_tls: Vec<NbdListen>,
    /// The directory of ca.pem, cert.pem and key.pem for --nbd-tls (by default tls in /etc/tombolo for root,
    /// else in ~/.config/tombolo).
    #[arg(long, value_name = "DIR", requires = "nbd_tls")]
    #[serde(default)]
    pub tls_dir: Option<PathBuf>,
    /// Give the sockets of --vhost-user to this group, by its name or number, so that VMMs of its users may
    /// connect.
    #[arg(long, value_name = "GROUP")]
    #[serde(default)]
    pub socket_group: Option<String>,
    /// The permission bits of the sockets of --vhost-user, in octal (by default 0600, or 0660 for a group).
    #[arg(long, value_name = "MODE")]
    #[serde(default, deserialize_with = "one")]
    pub socket_mode: Option<SocketMode>,
    /// Queues that a guest may use: one for each of its processors is best.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = queues)]
    #[serde(default = "one_queue", deserialize_with = "file_queues")]
    pub queues: u16,
    /// What guests find the disk by, in /dev/disk/by-id/virtio-SERIAL: 1 to 20 visible ASCII characters (by
    /// default the file's name).
    #[arg(long, value_name = "SERIAL", value_parser = serial)]
    #[serde(default, deserialize_with = "file_serial")]
    pub serial: Option<String>,
    /// The block size, in bytes: a power of two from 512 to 64K.
    #[arg(long, value_name = "SIZE", default_value = "512", value_parser = block_bytes)]
    #[serde(default = "one_sector", deserialize_with = "file_block_bytes")]
    pub block_size: u32,
    /// Whether the host's page cache keeps what is read and written: host, or none, past it, of a raw image
    /// or a block device.
    #[arg(long, value_name = "CACHE", default_value = "host")]
    #[serde(default)]
    pub cache: HostCache,
    /// Refuse all changes. Several servers may have the disk then.
    #[arg(long)]
    #[serde(default)]
    pub read_only: bool,
}

/// What is asked of the process that serves one disk.
#[derive(Args, Clone, Debug)]
pub struct DiskServerOptions {
    /// Let guests notice nothing of the server's death but a pause: a second process holds their connections,
    /// and starts another server when this one is killed. For VMMs that do not connect again.
    #[arg(long)]
    pub keep: bool,
    /// End at once when a write to the file of --mount has failed: what has it mapped would go on with what
    /// is lost.
    #[arg(long, requires = "mount", hide = true)]
    pub end_at_failed_write: bool,
    /// This is such a server, and has the sockets of its guests as these descriptors.
    #[arg(long, value_name = "FD", hide = true)]
    pub kept: Vec<i32>,
    /// Where an overlay's states are kept, as this descriptor.
    #[arg(long, value_name = "FD", hide = true)]
    pub kept_states: Option<i32>,
    /// Append to this file what is read of what an overlay stands on, a line for each part when it is read
    /// first. The file of --mount is read by single pages then.
    #[arg(long, value_name = "FILE", hide = true)]
    pub record: Option<PathBuf>,
    /// Standard input is a socket of messages by which what lies beneath an overlay is changed while it is
    /// served. So many overlays lie between it and what is never changed.
    #[arg(long, value_name = "N", hide = true)]
    pub layers: Option<u32>,
    /// The base of the overlay is still written to, and is marked before anything depends on the overlay.
    #[arg(long, requires = "layers", hide = true)]
    pub base_in_use: bool,
    /// What the server may still do once it is ready: off, auto (what kernel and user allow of strict), or
    /// strict: nothing that it does not need, or it does not start.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub sandbox: Strictness,
    /// Where to listen for `tombolo top` and other tools (by default NAME.sock in $XDG_RUNTIME_DIR/tombolo,
    /// in /run/tombolo for root, else in /tmp/tombolo-UID).
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Serve metrics for Prometheus over HTTP: PORT on this host only, :PORT on all interfaces, IP:PORT or
    /// NAME:PORT on one.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<ListenAddress>,
}

/// The formats of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageFormat {
    /// The disk's bytes as they are.
    Raw,
    /// QEMU's, with room for what was written alone, over other images.
    Qcow2,
    /// What was written since a disk began as another one, of any kind.
    Overlay,
}

/// What may be said of an image besides its name.
#[derive(Args, Clone, Debug, Default)]
pub struct ImageOptions {
    /// What kind of image it is (by default as its name ends: .qcow2, .overlay, else raw).
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<ImageFormat>,
    /// Where images may lie that a qcow2 image or an overlay stands on, besides its own directory.
    #[arg(long, value_name = "DIR")]
    pub backing_dir: Option<PathBuf>,
    /// What an overlay stands on, wherever that is: a file, or a URL as for the disk. Without, it says so
    /// itself. Once more: what that stands on, if it is an overlay too.
    #[arg(long, value_name = "DISK")]
    pub base: Vec<PathBuf>,
    /// Refuse a --base that lies behind a symbolic link.
    #[arg(long, hide = true)]
    pub base_no_links: bool,
}

impl ImageFormat {
    /// What the name of a file says.
    pub fn of_name(path: &Path) -> Self {
        match path.extension().and_then(OsStr::to_str) {
            Some("qcow2" | "qcow") => Self::Qcow2,
            Some("overlay") => Self::Overlay,
            _ => Self::Raw,
        }
    }
}

/// A control socket and an export of NBD are called so.
fn name(text: &str) -> Result<String, String> {
    let is_good = !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0']);
    if is_good && text.len() <= 128 {
        Ok(text.into())
    } else {
        Err("up to 128 bytes, without /, not beginning with .".into())
    }
}

/// What the host keeps of an image in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostCache {
    /// What it has room for.
    #[default]
    Host,
    /// Nothing (O_DIRECT).
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

/// A value of the file, as the command line checks it.
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

/// A path, or a list of some.
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

/// A number of bytes: `N`, or `NK`, `NM`, `NG` for powers of 1024.
pub fn size(text: &str) -> Option<u64> {
    Setting { text, name: "size", value: Some(text) }.bytes()
}

impl DiskOptions {
    /// Has relative paths count from a directory.
    pub fn count_from(&mut self, base: &Path) {
        // `nbd:`, `nfs:` and their kin are no paths alone.
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

    /// What is said of the image.
    pub fn image(&self) -> ImageOptions {
        let Self { format, backing_dir, base, base_no_links, .. } = self.clone();
        ImageOptions { format, backing_dir, base, base_no_links }
    }

    /// What guests find the disk of this name by.
    pub fn serial_of(&self, name: &str) -> String {
        let of_name = || name.chars().filter(char::is_ascii_graphic).take(SERIAL_BYTES_MAX).collect();
        self.serial.clone().unwrap_or_else(of_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_number_and_a_block_size_are_what_guests_can_have() {
        assert_eq!((serial("root-1").as_deref(), block_bytes("4K")), (Ok("root-1"), Ok(4096)));
        for bad in ["", "a b", "é", "123456789012345678901"] {
            assert!(serial(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "0", "256", "3K", "128K", "8G", "x"] {
            assert!(block_bytes(bad).is_err(), "{bad:?}");
        }
    }
}
