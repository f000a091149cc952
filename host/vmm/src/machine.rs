//! What a machine is, and QEMU's command line for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::processor::unknown_part;

/// A machine, as far as its device state depends on it. What is saved of one machine only an equal one takes
/// in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The type, such as `q35`, or with its version `pc-q35-7.2`.
    pub machine: String,
    /// What executes the guest: `kvm` or `tcg`.
    pub accelerator: String,
    /// The model of its processors, as QEMU names them.
    pub cpu: String,
    /// How many processors.
    pub cpus: u32,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// What it boots without its disk, if it does. One that waits for a device state is not told: what is
    /// loaded of these files is memory.
    pub boot: Option<Boot>,
}

/// A kernel that QEMU loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// The kernel.
    pub kernel: PathBuf,
    /// Its first file system.
    pub initrd: Option<PathBuf>,
    /// Its command line.
    pub append: String,
}

/// How a machine is started.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// What people call it.
    pub name: &'a str,
    /// The file that is its memory: as long as that.
    pub memory: &'a Path,
    /// The socket of its disk, a vhost-user-blk device.
    pub disk: &'a Path,
    /// Where QEMU makes its monitor's socket.
    pub monitor: &'a Path,
    /// Where what the guest writes to its first serial port is added to.
    pub console: &'a Path,
    /// The machine's generation (`vmgenid`): a guest that finds another one than before knows that it was
    /// cloned, and makes its random numbers anew.
    pub generation: &'a str,
    /// Whether it waits for a device state.
    pub incoming: bool,
}

/// The ports that the network card, and the disk with the guest's identity, are plugged into.
pub(crate) const NETWORK_SLOT: &str = "network-slot";
pub(crate) const IDENTITY_SLOT: &str = "identity-slot";

impl Machine {
    /// Whether all of it can be said to QEMU: nothing that comes from elsewhere becomes an option of its own.
    ///
    /// # Errors
    /// The word that cannot.
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

/// What is no word of QEMU's command line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} names no machine, accelerator or processor, nor a feature that a processor has or lacks")]
pub struct UnknownWord(String);

impl Launch<'_> {
    /// QEMU's arguments, of a machine that was checked ([`Machine::check`]), for
    /// [`process::spawn`](crate::process::spawn). The guest does not run until the monitor says so, and its
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
        // Its standard input: see `process`.
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
    /// Words without blanks in them.
    fn plain(&mut self, words: &str) {
        self.0.extend(words.split(' ').map(OsString::from));
    }

    fn text(&mut self, option: &str, text: impl AsRef<OsStr>) {
        self.0.extend([OsString::from(option), text.as_ref().to_owned()]);
    }

    /// An option with a part in which a comma would begin the next part, and so stands twice.
    fn file(&mut self, option: &str, before: &str, file: impl AsRef<OsStr>, behind: &str) {
        let escape = |&byte: &u8| std::iter::repeat_n(byte, 1 + usize::from(byte == b','));
        let file = file.as_ref().as_bytes().iter().flat_map(escape);
        let whole = before.bytes().chain(file).chain(behind.bytes()).collect();
        self.0.extend([OsString::from(option), OsString::from_vec(whole)]);
    }
}
