//! [`Machine`], a machine's properties, on which its device state depends, and [`Launch`], which makes QEMU's
//! command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::processor::unknown_part;

/// Properties of a machine. A device state can be loaded only by a machine that equals the saved one in all
/// of them but `boot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Machine type with a PCI Express root, such as `q35`, or with its version `pc-q35-7.2`.
    pub machine: String,
    /// Accelerator: `kvm` or `tcg`.
    pub accelerator: String,
    /// CPU model, as QEMU names it.
    pub cpu: String,
    /// Number of CPUs.
    pub cpus: u32,
    /// Memory size in bytes.
    pub memory_bytes: u64,
    /// Kernel to boot instead of the disk, if any. Omitted when a device state is loaded, since the loaded
    /// kernel is in memory.
    pub boot: Option<Boot>,
}

/// A kernel loaded by QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// Kernel image.
    pub kernel: PathBuf,
    /// Initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Kernel command line.
    pub append: String,
}

/// Parameters of starting a machine.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// Display name.
    pub name: &'a str,
    /// Memory file, of the memory's size.
    pub memory: &'a Path,
    /// Socket of the VM's disk, a vhost-user-blk device.
    pub disk: &'a Path,
    /// Path of the monitor socket, which QEMU creates.
    pub monitor: &'a Path,
    /// File to which the output of the first serial port is appended.
    pub console: &'a Path,
    /// Generation id (`vmgenid`), a UUID: a guest that finds a new one knows that it was cloned, and reseeds
    /// its random numbers.
    pub generation: &'a str,
    /// `true` if the VMM waits for a device state.
    pub incoming: bool,
}

/// Ids of the PCI Express ports: for the network card, and for the identity disk and the shares, which are
/// functions of one device.
pub(crate) const NETWORK_SLOT: &str = "network-slot";
pub(crate) const IDENTITY_SLOT: &str = "identity-slot";

impl Machine {
    /// Checks machine type, accelerator and CPU description, so that none of them can add an option of QEMU.
    ///
    /// # Errors
    /// The invalid word.
    pub fn check(&self) -> Result<(), UnknownWord> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let checked = |word: &str, is_good: &dyn Fn(char) -> bool| {
            let is_good = !word.is_empty() && word.chars().all(is_good);
            if is_good { Ok(()) } else { Err(UnknownWord(word.into())) }
        };
        checked(&self.machine, &is_name)?;
        checked(&self.accelerator, &is_name)?;
        unknown_part(&self.cpu).map_or(Ok(()), |part| Err(UnknownWord(part.into())))
    }
}

/// A word that is not valid on QEMU's command line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a valid machine type, accelerator, CPU model or CPU feature")]
pub struct UnknownWord(String);

impl Launch<'_> {
    /// Returns QEMU's arguments for a checked machine ([`Machine::check`]), for
    /// [`process::spawn`](crate::process::spawn). The guest does not run until the monitor starts it, and a
    /// reset ends QEMU ([`End::Reset`](crate::End::Reset)).
    pub fn arguments(&self) -> Vec<OsString> {
        let Machine { machine, accelerator, cpu, cpus, memory_bytes, boot } = self.machine;
        let mut words = Words::default();
        words.plain("-nodefaults -no-user-config -no-reboot -S -display none");
        // QEMU confines itself: it starts no other program.
        words.plain("-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
        words.file("-name", "guest=", self.name, "");
        words.text("-machine", format!("{machine},accel={accelerator},memory-backend=memory"));
        words.text("-cpu", cpu);
        words.text("-smp", cpus.to_string());
        words.text("-m", format!("size={memory_bytes}B"));
        let memory = format!("memory-backend-file,id=memory,size={memory_bytes},share=on,mem-path=");
        words.file("-object", &memory, self.memory, "");
        words.file("-chardev", "socket,id=disk,path=", self.disk, "");
        // Addresses and numbers of queues are part of the device state: other ones would make saved images
        // unusable.
        words.plain("-device vhost-user-blk-pci,chardev=disk,num-queues=1,bus=pcie.0,addr=4");
        for (number, slot) in [(1, NETWORK_SLOT), (2, IDENTITY_SLOT)] {
            let at = 4 + number;
            let port =
                format!("pcie-root-port,id={slot},chassis={number},slot={number},bus=pcie.0,addr={at}");
            words.text("-device", port);
        }
        words.text("-device", format!("vmgenid,guid={}", self.generation));
        words.file("-chardev", "file,id=console,append=on,path=", self.console, "");
        words.plain("-serial chardev:console");
        words.file("-qmp", "unix:", self.monitor, ",server=on,wait=off");
        // Monitor at standard input, which reports the end of QEMU (`process::spawn`).
        words.plain("-chardev socket,id=events,fd=0 -mon chardev=events,mode=control");
        if let Some(Boot { kernel, initrd, append }) = boot.as_ref().filter(|_| !self.incoming) {
            words.text("-kernel", kernel);
            if let Some(initrd) = initrd {
                words.text("-initrd", initrd);
            }
            words.text("-append", append);
        }
        if self.incoming {
            words.plain("-incoming defer");
        }
        words.0
    }
}

#[derive(Default)]
struct Words(Vec<OsString>);

impl Words {
    /// Appends the words of a text, which are separated by blanks.
    fn plain(&mut self, words: &str) {
        self.0.extend(words.split(' ').map(OsString::from));
    }

    fn text(&mut self, option: &str, text: impl AsRef<OsStr>) {
        self.0.extend([OsString::from(option), text.as_ref().to_owned()]);
    }

    /// Appends an option whose value is `before`, `file` and `behind`. Commas in `file` are doubled,
    /// because QEMU takes a single one for the end of the name.
    fn file(&mut self, option: &str, before: &str, file: impl AsRef<OsStr>, behind: &str) {
        let escape = |&byte: &u8| std::iter::repeat_n(byte, 1 + usize::from(byte == b','));
        let file = file.as_ref().as_bytes().iter().flat_map(escape);
        let whole = before.bytes().chain(file).chain(behind.bytes()).collect();
        self.0.extend([OsString::from(option), OsString::from_vec(whole)]);
    }
}
