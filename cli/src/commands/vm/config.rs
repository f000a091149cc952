//! Machine configuration: `vm.toml` of images and VMs, and `here.toml` with a VM's resources on this host.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tombolo_host_vmm::{Boot, Machine};
use tombolo_wire_image::Digester;

use super::changes::IMAGES_MAX;
use super::image_cache::CacheArgs;
use super::shares::Share;
use crate::failure::{Failure, OrCannot};

/// Version of both files.
const VERSION: u32 = 1;

/// A machine. Its kernel and initial RAM disk are the files [`KERNEL`] and [`INITRD`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    pub version: u32,
    pub machine: String,
    pub accelerator: String,
    pub cpu: String,
    pub cpus: u32,
    pub memory_bytes: u64,
    /// Base images of an incremental one, from the top down: `../NAME` if next to it, otherwise their
    /// location at its creation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootConfig>,
}

/// Command line of a machine's kernel, and digests of its kernel and initial RAM disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BootConfig {
    pub append: String,
    pub has_initrd: bool,
    /// BLAKE3 digests of the boot files in hexadecimal, in the order of [`Config::boot_files`]. Images of
    /// older versions lack them and are refused.
    #[serde(default)]
    pub digests: Vec<String>,
}

/// Configuration of a VM that is specific to this host: paths and addresses that images do not contain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HostConfig {
    pub version: u32,
    /// Base of the VM's disk: a file or a URL. For a clone, the file `disk` in its image, even if the image
    /// is incremental and has only an overlay.
    pub disk: PathBuf,
    /// Base of the overlay that is the VM's memory; `None` while the memory is a plain file. For a clone, the
    /// file `memory` in its image, as for `disk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<PathBuf>,
    /// Image from which the VM was cloned. The kernel is in the last of `bases`, or without bases in this
    /// image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<PathBuf>,
    /// Base images, if the image is incremental, from the top down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<PathBuf>,
    /// VMM program: a name in $PATH, or an absolute path.
    pub qemu: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net: Option<String>,
    pub mac: String,
    /// Trees shared with the guest through virtio-fs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<Share>,
    /// Options of the cache through which an image on an NFS server is read.
    #[serde(default, skip_serializing_if = "CacheArgs::is_default")]
    pub cache: CacheArgs,
    /// The guest's machine-id(5).
    pub machine_id: String,
}

// Names of the files in the directories of VMs; images have no `here.toml` and no identity.
pub const CONFIG: &str = "vm.toml";
pub const HERE: &str = "here.toml";
pub const KERNEL: &str = "kernel";
pub const INITRD: &str = "initrd";
pub const STATE: &str = "state";
pub const MEMORY: &str = "memory";
pub const DISK: &str = "disk";
pub const IDENTITY: &str = "identity";

/// Limits of the memory size, in bytes.
const MEMORY_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 46;

impl Config {
    pub fn new(machine: Machine, boot: Option<BootConfig>) -> Self {
        let Machine { machine, accelerator, cpu, cpus, memory_bytes, .. } = machine;
        Self { version: VERSION, machine, accelerator, cpu, cpus, memory_bytes, bases: Vec::new(), boot }
    }

    /// Parses and validates a `vm.toml`, which may be foreign.
    pub fn read(text: &str, whose: &Path) -> Result<Self, Failure> {
        let reading = format!("use {}", whose.display());
        let config: Self = toml::from_str(text).or_cannot(&reading)?;
        if config.version != VERSION {
            let reason = format!("unsupported version {} (expected {VERSION})", config.version);
            return Err(Failure::cannot(&reading, reason));
        }
        let is_whole = config.memory_bytes.is_multiple_of(1 << 20);
        if !MEMORY_BYTES.contains(&config.memory_bytes) || !is_whole || !(1..=256).contains(&config.cpus) {
            return Err(Failure::cannot(&reading, "invalid memory size or number of CPUs"));
        }
        let digests = config.boot.as_ref().map_or(0, |boot| boot.digests.len());
        if digests == 0 && config.boot.is_some() {
            let reason = "it has no digests of its kernel, because an older version created it";
            return Err(Failure::cannot(&reading, reason)
                .remedy("create the VM and its image again: tombolo vm start, tombolo vm suspend --to DIR"));
        }
        if digests != config.boot_files().count() {
            return Err(Failure::cannot(&reading, "the number of digests does not match its boot files"));
        }
        if config.bases.len() >= IMAGES_MAX {
            let reason = format!("the image chain is longer than {IMAGES_MAX}");
            return Err(Failure::cannot(&reading, reason));
        }
        config.machine(Path::new("")).check().or_cannot(&reading)?;
        Ok(config)
    }

    /// Returns the machine, with files in this directory.
    pub fn machine(&self, dir: &Path) -> Machine {
        let Self { machine, accelerator, cpu, cpus, memory_bytes, boot, .. } = self.clone();
        let boot = boot.map(|BootConfig { append, has_initrd, .. }| Boot {
            kernel: dir.join(KERNEL),
            initrd: has_initrd.then(|| dir.join(INITRD)),
            append,
        });
        Machine { machine, accelerator, cpu, cpus, memory_bytes, boot }
    }

    /// Returns the names of the boot files, in the order of [`BootConfig::digests`].
    pub fn boot_files(&self) -> impl Iterator<Item = &'static str> {
        let boot = self.boot.as_ref();
        let initrd = boot.filter(|boot| boot.has_initrd).map(|_| INITRD);
        boot.map(|_| KERNEL).into_iter().chain(initrd)
    }

    /// Returns the expected digest of a boot file; `None` if the machine has no boot file of that name.
    pub fn digest_of(&self, name: &str) -> Option<&str> {
        let place = self.boot_files().position(|file| file == name)?;
        self.boot.as_ref()?.digests.get(place).map(|digest| &**digest)
    }
}

impl HostConfig {
    pub fn new(
        disk: PathBuf,
        memory: Option<PathBuf>,
        qemu: PathBuf,
        net: Option<String>,
        cache: CacheArgs,
    ) -> Result<Self, Failure> {
        let [a, b, c, d] = random()?;
        // QEMU's range of MAC addresses.
        let mac = format!("52:54:00:{:02x}:{b:02x}:{c:02x}", a ^ d);
        let machine_id = uuid()?.replace('-', "");
        Ok(Self {
            version: VERSION,
            disk,
            memory,
            image: None,
            bases: Vec::new(),
            qemu,
            net,
            mac,
            shares: Vec::new(),
            cache,
            machine_id,
        })
    }

    /// Returns the image that the VM was cloned from and its bases, from the top down.
    pub fn images(&self) -> Vec<PathBuf> {
        self.image.iter().chain(&self.bases).cloned().collect()
    }
}

/// Formats the identity that a guest reads whenever it starts to run: lines of a word and a value, padded to
/// whole sectors.
pub fn identity(name: &str, here: &HostConfig) -> Result<String, Failure> {
    let seed: [u8; 32] = random()?;
    let seed: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let HostConfig { machine_id, .. } = here;
    let mut text =
        format!("tombolo-identity 1\nname {name}\nmachine-id {machine_id}\nseed {seed}\ntime {time}\n");
    text.extend(here.shares.iter().map(|share| format!("share {}\n", share.tag)));
    let padding = text.len().next_multiple_of(SECTOR_BYTES) - text.len();
    Ok(text + &"\n".repeat(padding))
}

const SECTOR_BYTES: usize = 512;

/// Size of the reads of a file whose digest is computed, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Returns `N` bytes of the kernel's random generator.
fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    tombolo_sys::random::fill(&mut bytes).or_cannot("get random bytes")?;
    Ok(bytes)
}

/// Returns the digest of a boot file, as in [`BootConfig::digests`].
pub fn digest_of(file: &Path) -> io::Result<String> {
    digest_of_open(&File::open(file)?)
}

/// Returns the digest of the remainder of an open file, from its position on.
pub fn digest_of_open(mut file: &File) -> io::Result<String> {
    let (mut digester, mut piece) = (Digester::new(), vec![0; PIECE_BYTES]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(digester.finalize().to_hex().to_string()),
            count => digester.update(&piece[..count]),
        };
    }
}

/// Returns a random UUID (RFC 9562 §5.4).
pub fn uuid() -> Result<String, Failure> {
    let number = u128::from_be_bytes(random()?);
    let number = number & !(0xf << 76) & !(0b11 << 62) | 0x4 << 76 | 0b10 << 62;
    let hex = format!("{number:032x}");
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Ok(parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "version = 1\nmachine = \"pc-q35-7.2\"\naccelerator = \"tcg\"\ncpu = \"max,-cx16\"\ncpus = 1\nmemory-bytes = 536870912\n\n[boot]\nappend = \"console=ttyS0\"\nhas-initrd = true\ndigests = [\"00\", \"01\"]\n";

    #[test]
    fn foreign_config_cannot_inject_options_or_files() {
        let read = |text: &str| Config::read(text, Path::new("/g/vm.toml"));
        let good = read(GOOD).expect("good");
        assert_eq!(toml::to_string(&good).expect("written"), GOOD);
        assert_eq!(good.boot_files().collect::<Vec<_>>(), [KERNEL, INITRD]);
        for (from, to) in [
            ("version = 1", "version = 2"),
            ("pc-q35-7.2", "q35 -monitor stdio"),
            ("\"tcg\"", "\"tcg,memory-backend=x\""),
            ("max,-cx16", "max\\n"),
            ("max,-cx16", "max,-cx16,host-cache-info=on"),
            ("max,-cx16", "max,memory=ram"),
            ("536870912", "1000000"),
            ("536870912", "1152921504606846976"),
            ("cpus = 1", "cpus = 0"),
            ("[\"00\", \"01\"]", "[\"00\"]"),
            ("[\"00\", \"01\"]", "[]"),
            ("cpus = 1", "cpus = 1\nkernel = \"/etc/shadow\""),
        ] {
            assert!(GOOD.contains(from));
            read(&GOOD.replace(from, to)).expect_err(to);
        }
        let failure = read(&GOOD.replace("digests = [\"00\", \"01\"]\n", "")).expect_err("of before");
        assert!(failure.to_string().contains("tombolo vm suspend --to DIR"), "{failure}");
    }

    #[test]
    fn identity_is_stable_with_fresh_seed() {
        let here =
            HostConfig::new("disk".into(), None, "qemu".into(), None, CacheArgs::default()).expect("random");
        let [one, two] = [(); 2].map(|()| identity("vm", &here).expect("random"));
        let word =
            |text: &str, key: &str| text.lines().find_map(|line| line.strip_prefix(key).map(str::to_owned));
        assert_eq!(word(&one, "machine-id "), Some(here.machine_id));
        assert_ne!(word(&one, "seed "), word(&two, "seed "));
        assert_eq!((one.len() % 512, word(&one, "name ").as_deref()), (0, Some("vm")));
    }

    #[test]
    fn a_uuid_is_random_and_says_so() {
        let [one, two] = [(); 2].map(|()| uuid().expect("random"));
        assert_ne!(one, two);
        assert_eq!((one.len(), &one[14..15]), (36, "4"), "{one}");
        assert!("89ab".contains(&one[19..20]), "{one}");
    }
}
