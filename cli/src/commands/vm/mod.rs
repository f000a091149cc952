//! `tombolo vm` and `tombolo clone`: guests with suspendable memory and disk.

mod ahead;
mod chain;
mod changes;
mod channel;
mod checkpoint;
mod config;
mod fetch;
mod home;
mod image;
mod image_cache;
mod ledger;
mod linger;
mod live;
pub mod rehearsal;
mod running;
mod shares;
mod successor;
mod supervisor;
mod watch;

use std::fs;
use std::io;
use std::path::{Path, PathBuf, absolute};

use clap::{Args, Subcommand};
use tombolo_host_vmm::Machine;
use tombolo_host_vmm::network::Network;

use crate::assembly::options::disk::size;
use crate::assembly::plan::disk::DiskSource;
use crate::commands::files::print;
use crate::commands::files::shown::size as size_text;
use crate::commands::image::catalogue::{self, Needs};
use crate::failure::{Failure, OrCannot, Outcome};
use crate::table::table;

use chain::Bases;
use checkpoint::CheckpointArgs;
use config::{BootConfig, DISK, HERE, HostConfig, INITRD, KERNEL, MEMORY, digest_of};
pub use config::{CONFIG, Config, digest_of_open};
pub use fetch::{Bounded, has_changed};
use home::{Home, Phase};
pub use home::{TEXT_BYTES_MAX, checked_name};
use image::{Image, ImageArgs};
use image_cache::{CacheArgs, ImageCache};
use ledger::{LEDGER, Ledger};
use shares::Share;
use supervisor::RunArgs;

/// Run virtual machines that can be suspended, checkpointed and cloned.
///
/// The VMM is QEMU (7.2 or newer). A VM's directory, with its disk changes and memory, is in
/// $XDG_STATE_HOME/tombolo (/var/lib/tombolo for root); tombolo vm show prints it. Its file `log` is that of
/// the VMM and the servers, `console` the output of the guest's first serial port. There is no console input:
/// log in over the network.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct VmArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Start(Box<StartArgs>),
    /// Boot an existing VM from its disk. It must not be running; the contents of its memory are lost.
    ///
    /// For a VM that was powered off, has failed, or died, for example with its host.
    Boot {
        #[command(flatten)]
        vm: Named,
        /// Also boot a suspended VM, for one that cannot be resumed. Its disk is as after a power failure.
        #[arg(short, long)]
        force: bool,
    },
    /// Suspend a VM and detach its network card. It can be resumed, and made into an image.
    ///
    /// The guest must have booted, and support PCI hotplug: if it does not release its network card and
    /// shares within 20 seconds, the command fails and the VM continues.
    Suspend {
        #[command(flatten)]
        vm: Named,
        /// Create an image of the VM in this new directory. The VM may be suspended already.
        ///
        /// The image is complete, and depends on no other (with --changes it needs its base). It contains the
        /// guest's memory, so only its owner can read it: chmod -R a+rX DIR before it is served to others.
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
        #[command(flatten)]
        how: ImageArgs,
    },
    /// Resume a suspended VM, with the network and shares that it was created with.
    Resume(Named),
    Checkpoint(CheckpointArgs),
    /// Restore a VM to a checkpoint, suspended. It must not be running. Later checkpoints, and all changes
    /// since, are lost.
    Restore {
        #[command(flatten)]
        vm: Named,
        /// Number of the checkpoint, as listed by tombolo vm show (by default the latest).
        checkpoint: Option<u32>,
    },
    /// Power off a VM, without a guest shutdown.
    ///
    /// The guest loses what it has not flushed, as in a power failure. To avoid that, shut down inside it.
    Stop(Named),
    /// List the VMs of this user.
    ///
    /// States, and commands for each: `running` (suspend, checkpoint, stop), `suspended` (resume, suspend
    /// --to, checkpoint, restore, boot --force), `off`, `failed: …` and `died` (boot, which loses its memory,
    /// or restore), `starting` (wait, or stop if the command that started it was killed), `incomplete` (rm: a
    /// killed clone).
    List,
    /// Show a VM, and the time and bytes of each step of its last resumption.
    Show(Named),
    /// Remove a VM, with its disk changes, memory and checkpoints. Images made of it remain.
    Rm {
        #[command(flatten)]
        vm: Named,
        /// Also remove a running VM: it is ended first, as by tombolo vm stop.
        #[arg(short, long)]
        force: bool,
    },
    #[command(hide = true)]
    Run(RunArgs),
}

#[derive(Args)]
struct Named {
    /// Name of the VM.
    #[arg(value_parser = checked_name)]
    name: String,
}

const EXAMPLES: &str = "\
Examples:
  tombolo vm start golden --disk debian.img --memory 2G --kernel vmlinuz --initrd initrd.img --append 'root=/dev/vda1'
  tombolo vm suspend golden --to /srv/golden
  tombolo vm suspend one --to /srv/one --changes
  tombolo clone /srv/golden one --net user,hostfwd=tcp:127.0.0.1:8080-:80
  tombolo vm checkpoint one --every 600
  tombolo vm list";

/// Boot a new VM. Its disk is based on DISK, which is not changed.
///
/// Returns once the VMM runs, before the guest has booted. At a logout the VM may end, or can no longer be
/// suspended, unless lingering is enabled (loginctl enable-linger); a warning says so.
#[derive(Args)]
struct StartArgs {
    #[command(flatten)]
    vm: Named,
    /// Base of the VM's disk: a local file or a URL, as for tombolo disk. It must remain, unchanged, as long
    /// as the VM exists. The name decides the format: a qcow2 image must end in .qcow2.
    #[arg(long, value_name = "DISK")]
    disk: PathBuf,
    /// Memory size in bytes; K, M, G and T are powers of 1024.
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    memory: String,
    /// Number of virtual CPUs, from 1 to 256.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    cpus: u32,
    /// CPU model and features, in QEMU's notation: MODEL[,+FEATURE][,-FEATURE]…. For images used on other
    /// hosts choose a model that all hosts support.
    #[arg(long, value_name = "MODEL", default_value = "max")]
    cpu: String,
    /// Accelerator, kvm or tcg (by default kvm if this user may use it).
    #[arg(long, value_name = "NAME")]
    accel: Option<String>,
    /// Kernel to boot, instead of the boot loader on the disk.
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Initial RAM disk of that kernel.
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,
    /// Command line of that kernel.
    #[arg(long, value_name = "WORDS", requires = "kernel", default_value = "")]
    append: String,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Host resources of a VM.
#[derive(Args)]
pub struct PlaceArgs {
    /// Network: user[,hostfwd=tcp:127.0.0.1:PORT-:PORT]… (provided by QEMU), tap=INTERFACE (an existing TAP
    /// that this user may open), or none.
    #[arg(long, value_name = "NETWORK", default_value = "user", value_parser = network)]
    net: String,
    /// Share a tree with the guest through virtio-fs: a local directory, or a URL accepted by tombolo serve.
    /// Up to seven.
    ///
    /// The guest mounts it with `mount -t virtiofs TAG DIR`. It is detached while the VM is suspended or a
    /// checkpoint is made: files open in it are lost.
    #[arg(long, value_name = "TAG=DIR|URL")]
    share: Vec<Share>,
    /// VMM program.
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-x86_64")]
    qemu: PathBuf,
}

fn network(text: &str) -> Result<String, String> {
    if text == NO_NETWORK {
        Ok(text.into())
    } else {
        text.parse::<Network>().map(|network| network.to_string())
    }
}

const NO_NETWORK: &str = "none";

impl PlaceArgs {
    /// Returns the VMM: a name in $PATH, or an absolute path independent of the working directory.
    fn qemu(&self) -> Result<PathBuf, Failure> {
        if self.qemu.components().count() > 1 { whole(&self.qemu) } else { Ok(self.qemu.clone()) }
    }

    fn net(&self) -> Option<String> {
        Some(&self.net).filter(|net| *net != NO_NETWORK).cloned()
    }
}

/// Create a VM that resumes where its image was suspended.
///
/// Nothing is booted or copied: the image's memory and disk are read on demand, and changes are stored in the
/// VM's own directory. The guest gets a new network card with its own address; memory size, CPUs, CPU
/// model and accelerator are those of the image. Prints the time and bytes of each step of the start.
///
/// The guest must have released its network card at the suspension, and configure a new one when it appears,
/// as systemd-networkd and NetworkManager do. Host name, machine id and host keys are the image's until the
/// guest replaces them with the values on its identity disk, a small read-only disk that appears before the
/// network card: install /usr/share/doc/tombolo/examples/guest in it before making the image.
///
/// The image must not change: VMs of a changed image are refused. While the image's server is away, a guest
/// that needs data not cached yet waits. To become independent of the image, make a full one of the clone:
/// tombolo vm suspend NAME --to DIR, without --changes.
#[derive(Args)]
#[command(after_help = CLONE_EXAMPLES)]
pub struct CloneArgs {
    /// Image: a local directory, or a URL such as nfs://HOST/NAME/DIR. With --needs, the directory above several images, with the file
    /// catalogue.toml that lists their properties (see `tombolo image list --help`).
    image: PathBuf,
    #[command(flatten)]
    vm: Named,
    /// Required properties of the image, by the catalogue: minimum mem, disk and cpus, otherwise the value
    /// itself, or one of a list. The smallest image that has all is chosen.
    #[arg(long, value_name = "KEY=VALUE[,KEY=VALUE]…")]
    needs: Option<Needs>,
    /// Location of the base of an incremental image, if the base is not next to the image. Repeat for the
    /// base of the base.
    #[arg(long, value_name = "IMAGE")]
    base: Vec<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    cache: CacheArgs,
}

const CLONE_EXAMPLES: &str = "\
Examples:
  tombolo clone /srv/golden one --net user,hostfwd=tcp:127.0.0.1:8080-:80
  tombolo clone nfs://ship/images/golden two --net tap=vm2
  tombolo clone nfs://ship/images three --needs os=debian,mem=512M,app=gcc";

impl VmArgs {
    pub fn run(&self) -> Outcome {
        match &self.action {
            Action::Start(args) => args.run(),
            Action::Boot { vm, force } => running::boot(&Home::of(&vm.name)?, *force),
            Action::Suspend { vm, to, how } => suspend(&vm.name, to.as_deref(), how),
            Action::Resume(vm) => {
                let home = Home::of(&vm.name)?;
                if home.phase()? == Phase::Suspended {
                    image::check_boot_files(&home)?;
                }
                resume(&home, &mut Ledger::begin())
            }
            Action::Checkpoint(args) => args.run(),
            Action::Restore { vm, checkpoint } => checkpoint::restore(&Home::of(&vm.name)?, *checkpoint),
            Action::Stop(vm) => running::stop(&Home::of(&vm.name)?),
            Action::List => list(),
            Action::Show(vm) => show(&Home::of(&vm.name)?),
            Action::Rm { vm, force } => remove(&Home::of(&vm.name)?, *force),
            Action::Run(args) => args.run(),
        }
    }
}

/// Removes the VM if `make` fails.
fn made(home: &Home, make: impl FnOnce() -> Outcome) -> Outcome {
    make().inspect_err(|_| drop(home.remove()))
}

impl StartArgs {
    fn run(&self) -> Outcome {
        let memory_bytes = size(&self.memory)
            .ok_or_else(|| Failure::usage("--memory must be a number of bytes, such as 512M"))?;
        let machine = Machine {
            machine: "q35".into(),
            accelerator: self.accel.clone().unwrap_or_else(|| accelerator().into()),
            cpu: self.cpu.clone(),
            cpus: self.cpus,
            memory_bytes,
            boot: None,
        };
        let boot = self
            .kernel
            .iter()
            .chain(&self.initrd)
            .map(|file| digest_of(file).map_err(|error| unread(file, &error)));
        let digests = boot.collect::<Result<Vec<_>, _>>()?;
        let (append, has_initrd) = (self.append.clone(), self.initrd.is_some());
        let boot = self.kernel.as_ref().map(|_| BootConfig { append, has_initrd, digests });
        let config = Config::new(machine, boot);
        let text = toml::to_string(&config).or_cannot("write the VM's configuration")?;
        Config::read(&text, Path::new(CONFIG))?;
        let shares = shares::checked(&self.place.share)?;
        let home = Home::create(&self.vm.name)?;
        made(&home, || self.make(&home, &config, shares))?;
        running::boot(&home, false).map_err(|failure| home.not_started(failure))?;
        linger::tell();
        Ok(())
    }

    fn make(&self, home: &Home, config: &Config, shares: Vec<Share>) -> Outcome {
        let disk = if DiskSource::is_elsewhere(&self.disk) { self.disk.clone() } else { whole(&self.disk)? };
        let bases = Bases { files: vec![disk.clone()], no_links: false };
        image::begin_at(&home.file(&image::overlay(DISK)), bases)?;
        let files = [(KERNEL, &self.kernel), (INITRD, &self.initrd)];
        for (name, file) in files.into_iter().filter_map(|(name, file)| Some((name, file.as_ref()?))) {
            image::copy(file, &home.file(name)).map_err(|error| unread(file, &error))?;
        }
        let memory = home.file(MEMORY);
        fs::File::create_new(&memory)
            .and_then(|file| file.set_len(config.memory_bytes))
            .or_cannot(format_args!("make {}", memory.display()))?;
        home.write(CONFIG, config)?;
        let here = HostConfig::new(disk, None, self.place.qemu()?, self.place.net(), CacheArgs::default())?;
        home.write(HERE, &HostConfig { shares, ..here })?;
        home.set_phase(&Phase::Off)
    }
}

fn unread(file: &Path, error: &io::Error) -> Failure {
    Failure::cannot(format_args!("read {}", file.display()), error)
}

fn whole(path: &Path) -> Result<PathBuf, Failure> {
    absolute(path).or_cannot(format_args!("find {}", path.display()))
}

fn accelerator() -> &'static str {
    let kvm = fs::File::options().read(true).write(true).open("/dev/kvm");
    if kvm.is_ok() { "kvm" } else { "tcg" }
}

impl CloneArgs {
    pub fn run(&self) -> Outcome {
        let cache = self.cache.clone().absolute()?;
        let found = self.needs.as_ref().map(|needs| catalogue::find(&self.image, needs)).transpose()?;
        let mut ledger = Ledger::begin();
        let mut image = match found {
            Some(place) => Image::at(place, &self.base, cache)?,
            None => Image::of_word(&self.image, &self.base, cache)?,
        };
        let qemu = self.place.qemu()?;
        let shares = shares::checked(&self.place.share)?;
        let home = Home::create(&self.vm.name)?;
        made(&home, || image.clone_to(&home, &qemu, self.place.net(), shares, &mut ledger))?;
        resume(&home, &mut ledger).map_err(|failure| home.not_started(failure))?;
        linger::tell();
        Ok(())
    }
}

fn suspend(name: &str, to: Option<&Path>, how: &ImageArgs) -> Outcome {
    let home = Home::of(name)?;
    let to = to.map(whole).transpose()?;
    if let Some(dir) = to.as_deref().filter(|dir| dir.exists()) {
        return Err(Failure::cannot(format_args!("create image {}", dir.display()), "it already exists"));
    }
    // An incremental image is checked before the guest is paused.
    to.as_deref().filter(|_| how.changes).map_or(Ok(()), |dir| changes::check(&home, dir))?;
    let is_suspended = home.lock_within(home::GLANCE)?.is_some() && home.phase()? == Phase::Suspended;
    match (&to, is_suspended) {
        (None, true) => return Ok(()),
        (Some(_), true) => {}
        (_, false) => {
            let _turn = checkpoint::Turn::wait(&home)?;
            running::suspend(&home)?;
        }
    }
    to.map_or(Ok(()), |dir| image::make(&home, &dir, how))
}

fn resume(home: &Home, ledger: &mut Ledger) -> Outcome {
    running::resume(home, ledger)?;
    print(&ledger.shown())
}

/// Returns the state of a VM for the user, from its phase and from the lock that its supervisor holds.
fn state_text(home: &Home) -> Result<String, Failure> {
    let runs = home.lock()?.is_none();
    Ok(match (home.phase()?, runs) {
        (Phase::Running, true) => "running".into(),
        (_, true) => "starting".into(),
        (Phase::Suspended, false) => "suspended".into(),
        (Phase::Off, false) => "off".into(),
        (Phase::Incomplete, false) => "incomplete".into(),
        (Phase::Running, false) => "died".into(),
        (Phase::Failed(why), false) => format!("failed: {why}"),
    })
}

fn list() -> Outcome {
    let mut rows = Vec::new();
    for home in Home::all()? {
        let began = home.here().map_or_else(|_| "-".into(), |here| here.disk.display().to_string());
        let memory = home.config().map_or_else(|_| "-".into(), |config| size_text(config.memory_bytes));
        let state = match state_text(&home) {
            Err(_) if !home.path.is_dir() => continue,
            state => state?,
        };
        let checkpoints = chain::checkpoints(&home).map_or(0, |found| found.len()).to_string();
        rows.push(vec![home.name.clone(), state, began, memory, checkpoints]);
    }
    print(&table(&["name", "state", "disk base", "memory", "checkpoints"], rows, 3))
}

fn show(home: &Home) -> Outcome {
    let taken = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(home.file(name)).ok().map(|file| size_text(file.blocks() * 512))
    };
    let mut lines = vec![("state", state_text(home)?), ("directory", home.path.display().to_string())];
    if let (Ok(here), Ok(config)) = (home.here(), home.config()) {
        lines.push(("machine", format!("{} {} {}", config.machine, config.accelerator, config.cpu)));
        lines.push(("memory", size_text(config.memory_bytes)));
        lines.push(("disk base", here.disk.display().to_string()));
        lines.extend(here.bases.iter().map(|image| ("over", image.display().to_string())));
        lines.extend(here.memory.map(|memory| ("memory base", memory.display().to_string())));
        lines.extend(here.shares.iter().map(|share| ("share", share.to_string())));
        lines.extend(here.net.map(|net| ("network", format!("{net} {}", here.mac))));
    }
    let kept = [
        ("disk changes", image::overlay(DISK)),
        ("memory changes", image::overlay(MEMORY)),
        ("memory file", MEMORY.into()),
    ];
    lines.extend(kept.into_iter().filter_map(|(what, name)| Some((what, taken(&name)?))));
    let run = home.run();
    for (what, socket) in
        [("memory read, written", &run.memory_control), ("disk read, written", &run.disk_control)]
    {
        let moved = ledger::moved(socket);
        lines.extend(
            moved.map(|(read, written)| (what, format!("{}, {}", size_text(read), size_text(written)))),
        );
    }
    let cache = home.here().ok().and_then(|here| ImageCache::running(&here.disk, &here.cache));
    let of_cache: Vec<_> = cache.iter().flat_map(|control| ledger::of_cache(control)).collect();
    lines.extend(of_cache.iter().map(|(what, bytes)| (&**what, size_text(*bytes))));
    let ledger: Option<Ledger> = home.toml(LEDGER).ok();
    let rows = lines.into_iter().map(|(what, value)| vec![what.into(), value]);
    let mut shown = table(&["name", &home.name], rows, 2);
    let checkpoints = checkpoint::rows(home)?;
    if !checkpoints.is_empty() {
        shown += &format!("\n\n{}", table(&["checkpoint", "created", "bytes"], checkpoints, 2));
    }
    print(&ledger.map_or_else(|| shown.clone(), |ledger| format!("{shown}\n\n{}", ledger.shown())))
}

fn remove(home: &Home, force: bool) -> Outcome {
    if force || home.lock()?.is_some() {
        running::stop(home)?;
    }
    let _lock = home.locked()?;
    image::remove_unfinished(home);
    home.remove()
}
