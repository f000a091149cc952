//! What can be asked of a server of a disk.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::address::ListenAddress;
use super::nbd::NbdListen;
use super::virtiofs::SocketMode;
use tombolo_host_service::sandbox::Strictness;

use crate::setting::Setting;

#[derive(Args, Clone, Debug)]
pub struct DiskOptions {
    /// The disk: an image (raw, or qcow2 if it is called so), a block device of this host, one of an NBD server (nbd[s]://HOST[:PORT]/EXPORT,
    /// nbd+unix:///EXPORT?socket=PATH), or a file on an NFS server (nfs://HOST/NAME/FILE, nfs+ssh://HOST/PATH) or behind shared memory
    /// (shm:SOCKET/NAME/FILE).
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What kind of image it is (by default qcow2 where the name ends in .qcow2, else raw).
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<ImageFormat>,
    /// Where images may lie that a qcow2 image stands on, besides its own directory.
    #[arg(long, value_name = "DIR")]
    pub backing_dir: Option<PathBuf>,
    /// A socket for VMMs (vhost-user-blk); repeatable. One guest at a time has the disk, and others wait until it has left or
    /// migrated; many have one that is read-only.
    #[arg(long, value_name = "SOCKET")]
    pub vhost_user: Vec<PathBuf>,
    /// Serve it over NBD: at a socket (./NAME, /PATH), or PORT on this host only, :PORT on all interfaces, IP:PORT or NAME:PORT
    /// on one; repeatable. All that reach an address have the disk.
    #[arg(long, value_name = "ADDR")]
    pub nbd: Vec<NbdListen>,
    /// The same over TLS, at an address: clients must show a certificate of the CA in --tls-dir; repeatable.
    #[arg(long, value_name = "ADDR")]
    pub nbd_tls: Vec<NbdListen>,
    /// The directory of ca.pem, cert.pem and key.pem for --nbd-tls (by default tls in /etc/tombolo for root, else in
    /// ~/.config/tombolo).
    #[arg(long, value_name = "DIR", requires = "nbd_tls")]
    pub tls_dir: Option<PathBuf>,
    /// Give the sockets of --vhost-user to this group, by its name or number, so that VMMs of its users may connect.
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// The permission bits of the sockets of --vhost-user, in octal (by default 0600, or 0660 for a group).
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<SocketMode>,
    /// Let guests notice nothing of the server's death but a pause: a second process holds their connections, and starts another server
    /// when this one is killed. For VMMs that do not connect again.
    #[arg(long)]
    pub keep: bool,
    /// This is such a server, and has the sockets of its guests as these descriptors.
    #[arg(long, value_name = "FD", hide = true)]
    pub kept: Vec<i32>,
    /// Queues that a guest may use: one for each of its processors is best.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: u16,
    /// What guests find the disk by, in /dev/disk/by-id/virtio-SERIAL: 1 to 20 visible ASCII characters (by default the file's name).
    #[arg(long, value_name = "SERIAL", value_parser = serial)]
    pub serial: Option<String>,
    /// The block size, in bytes: a power of two from 512 to 64K.
    #[arg(long, value_name = "SIZE", default_value = "512", value_parser = block_bytes)]
    pub block_size: u32,
    /// Refuse all changes. Several servers may have the disk then.
    #[arg(long)]
    pub read_only: bool,
    /// What the server may still do once it is ready: off, auto (what kernel and user allow of strict), or strict: nothing that it does
    /// not need, or it does not start.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub sandbox: Strictness,
    /// Where to listen for `tombolo top` and other tools (by default NAME.sock in $XDG_RUNTIME_DIR/tombolo, in
    /// /run/tombolo for root, else in /tmp/tombolo-UID).
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Serve metrics for Prometheus over HTTP: PORT on this host only, :PORT on all interfaces, IP:PORT or NAME:PORT on one.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<ListenAddress>,
}

/// The formats of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImageFormat {
    /// The disk's bytes as they are.
    Raw,
    /// QEMU's, with room for what was written alone, over other images.
    Qcow2,
}

impl ImageFormat {
    /// What the name of a file says.
    pub fn of_name(path: &Path) -> Self {
        match path.extension().and_then(OsStr::to_str) {
            Some("qcow2" | "qcow") => Self::Qcow2,
            _ => Self::Raw,
        }
    }
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

/// A number of bytes: `N`, or `NK`, `NM`, `NG` for powers of 1024.
pub fn size(text: &str) -> Option<u64> {
    Setting { text, name: "size", value: Some(text) }.bytes()
}

impl DiskOptions {
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
