//! `tombolo mount`: a FUSE mount of a directory, an NFS export or an export over shared memory; also
//! `mount.tombolo`, for mount(8) and fstab.

mod background;
mod helper;
mod log;
mod options;
mod remount;
mod server;
mod source;
mod supervisor;

use std::path::{Path, PathBuf, absolute as absolute_path};

use clap::Args;
use tombolo_host_service::logging::Destination;

use crate::assembly::options::address::ListenAddress;
use crate::cli::LogArgs;
use crate::failure::{Failure, OrCannot, Outcome};
use crate::location::Location;

use crate::mount_point::MountPoint;
pub use helper::Helper;
use options::MountOptions;
pub use server::reason;

/// Mount an NFS export, a directory or an export over shared memory.
///
/// Mounts on this host, or in the guest where this program runs, through FUSE. Users other than root need
/// fusermount3 (package fuse3), and mount on directories that they may write to; allow_other requires
/// user_allow_other in /etc/fuse.conf.
///
/// Returns once the mount is ready. Its server runs in the background until it is unmounted or receives
/// SIGTERM, and is restarted if it is killed. For /etc/fstab, link /sbin/mount.tombolo to this program:
/// `nfs://host:2049/src /mnt tombolo allow_other,_netdev,nofail 0 0`.
#[derive(Args)]
#[command(after_help = OPTIONS_HELP)]
pub struct MountArgs {
    /// Source: `nfs://HOST[:PORT]/NAME`, an export of an NFS server; `nfs+ssh://[USER@]HOST/PATH`, a
    /// directory of another host through ssh(1); `shm:SOCKET/NAME`, an export of a local server over shared
    /// memory: the path of its socket, then the export's name (for guests see below; `nfs+shm:` is NFS over
    /// it); or `dir:PATH`, a local directory.
    source: Location,
    /// Mount point: an existing directory.
    mountpoint: PathBuf,
    /// Mount options, as in fstab (see below).
    #[arg(short, value_name = "OPTION[,OPTION]…", value_parser = checked_options)]
    options: Vec<String>,
    /// Stay in the foreground and log to standard error.
    #[arg(short, long)]
    foreground: bool,
    /// Control socket for `tombolo top` and other tools (by default mount-DIR.sock, DIR being the mount point
    /// with `-` for `/`, in $XDG_RUNTIME_DIR/tombolo, in /run/tombolo for root, otherwise in
    /// /tmp/tombolo-UID).
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Serve Prometheus metrics over HTTP, to anyone who can connect: PORT on this host only, :PORT on all
    /// IPv4 interfaces, IP:PORT or NAME:PORT on one.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<ListenAddress>,
    /// Run as the supervisor of a background mount.
    #[arg(long, hide = true)]
    supervisor: bool,
    /// Run as the server of a background mount, logging to this file.
    #[arg(long, hide = true, conflicts_with = "supervisor")]
    background_log: Option<PathBuf>,
    /// Restart the server of an existing mount.
    #[arg(long, hide = true, requires = "background_log")]
    again: bool,
}

const OPTIONS_HELP: &str = "\
Examples:
  tombolo mount nfs://nas.example/export/src /mnt/src
  tombolo mount -o ro,coherence=strict dir:/srv/data /mnt/data
  tombolo mount shm:/run/src.link/src /mnt/src

Mount options:
  ro                    refuse changes
  allow_other           admit users other than the mounting one
  coherence=POLICY      kernel cache policy: strict (no caching), auto (close-to-open, 1 s; the
                        default), always (a day), push (everything until it changes). Over NFS the
                        times of actimeo= (below) are added to these. push is for directories,
                        mounted by root, and for shared-memory servers that have --host-watch,
                        where it is the default unless noperm is given
  locks=shared|local    scope of file locks: all users of the directory or export (the default
                        where the server has locks, so not over NFS), or this mount only, with
                        locks managed by the kernel at a hundredth of the cost
  xattrs=on|off         show extended attributes (the default), or hide them: fewer requests, but
                        no access lists and file capabilities
  threads=N             number of threads that serve requests (default: one per core, 2 to 16)
  sandbox=HOW           confinement of the running server: off, auto (as much of strict as the
                        server, the kernel and the user allow; the default), or strict (no
                        privilege it does not need; fail to start otherwise)
  fsname=NAME           source shown by mount(8) (default: the directory, or HOST:/NAME)
  dev, suid, noexec     honour device nodes and set-user-id bits; refuse execution
  rw, nodev, nosuid, exec, perm: the defaults, the opposites of ro, dev, suid, noexec, noperm.
  remount               change an existing mount: ro, rw, dev, suid, exec and their opposites, and
                        inflight=; others are unchanged
  noperm                over NFS and shared memory, with allow_other: only the server checks
                        permissions, not the kernel too (not in a URL)
  Options handled by mount(8) and systemd (defaults, nofail, _netdev, user, x-…) are ignored.

Options for directories:
  submounts=show|hide   nested mounts are part of the tree (the default), or hidden
  ask=PATTERN           never cache matching files, which other processes change through shared
                        mappings (databases, disk images); repeatable. As in glob(7), except that
                        * also matches /: with a / the path below the directory, otherwise a name

Options for shared-memory servers: shm:SOCKET/NAME on this host; in a guest shm+pci:[BDF]/NAME
(QEMU's ivshmem; BDF is the device's address, if there are several) or shm+mmapper:/NAME (User Mode
Linux); shm+file:FILE/NAME over a file; nfs+shm:, nfs+shm+pci: and so on for NFS instead:
  doorbell=MODE         how to wait for the server: poll (continuously), event (sleep), adaptive
                        (poll while it pays off; the default), umwait (x86 with WAITPKG)
  bell=PATH|off         over a file: wake the server by the FIFOs PATH.in and PATH.out; in a guest:
                        by this device (default: the virtio port tombolo.bell…, or /dev/ttyS1 of
                        UML)

Options for NFS servers, as in nfs(5); also in the URL, as in nfs://host/name?proto=udp&soft:
  proto=tcp|udp         transport (default: tcp)
  port=N, mountport=N   ports of NFS and MOUNT; a port in the URL applies to both, and without any
                        the portmapper is queried
  rsize=N, wsize=N      maximum read and write size in bytes (default: the server's maximum, at
                        most 1M)
  inflight=N|auto       maximum number of outstanding reads and writes (default: auto; see tombolo
                        tune)
  nconnect=N            number of connections, 1 to 16 (default: 1)
  readahead=N           read-ahead in bytes (default: 4M)
  hard, soft            retry for ever (the default), or fail with an I/O error after timeo= times
                        one more than retrans= (by default 180 s in all; over UDP the time-outs
                        follow the round-trip times)
  timeo=TENTHS          time-out of a request in tenths of a second (default: 600; over UDP 11);
                        also the wait of a soft mount over shared memory
  retrans=N             number of time-outs that soft tolerates (default: 2; over UDP 3)
  intr, nointr          calls of a killed program end at once, or never (default: after a wait of
                        2 s)
  ac, noac, actimeo=S   attribute cache time in seconds, to which the kernel's (coherence=) is
                        added; with noac and 0 the kernel does not cache either. acregmin=,
                        acregmax=, acdirmin=, acdirmax=: individually (default: 3, 60, 30, 60)
  retry=N               minutes to retry if the server is not reachable yet (default: 2; nfs+shm:
                        0; with bg 10000)
  bg, fg                return if the server is not reachable yet, and retry in the background; or
                        not (the default)
  xprtsec=HOW           none (the default), mtls (TLS with a certificate, as serve --nfs-tls
                        requires), or tls (without one)
  tlsdir=DIR            directory of ca.pem, cert.pem and key.pem (default: tls in
                        $XDG_CONFIG_HOME/tombolo, for root /etc/tombolo/tls)
  resvport, noresvport  call from a port below 1024, as many servers require (default: if
                        permitted)
  ssh=COMMAND           for nfs+ssh://: command to reach the other host (default: ssh), may
                        include arguments
  tombolo=PROGRAM       for nfs+ssh://: path of tombolo on the other host (default: tombolo)
  vers=3, sec=sys, nolock always apply: locks apply within this mount only.";

impl MountArgs {
    /// Returns the log destination: processes of a background mount also log to the system log once they
    /// have left the terminal.
    pub fn log_destination(&self) -> Destination {
        if self.supervisor || self.background_log.is_some() {
            Destination::Background
        } else {
            Destination::StandardError
        }
    }

    pub fn run(self, log: LogArgs) -> Outcome {
        let options: MountOptions = self.options.join(",").parse().map_err(Failure::usage)?;
        if options.remount {
            return remount::remount(&self.mountpoint, &options);
        }
        let mut mount = Mount::checked(self.source, &self.mountpoint, options, self.control)?;
        mount.metrics = self.metrics;
        if self.supervisor {
            supervisor::supervise(&mount, &self.options, log)
        } else if self.foreground || self.background_log.is_some() {
            server::serve(&mount, self.background_log.as_deref(), self.again)
        } else {
            background::start(&mount, &self.options, log)
        }
    }
}

/// A requested mount, validated as far as possible before anything is changed.
#[derive(Debug)]
struct Mount {
    source: Location,
    point: MountPoint,
    options: MountOptions,
    control: Option<PathBuf>,
    metrics: Option<ListenAddress>,
}

impl Mount {
    fn checked(
        source: Location,
        mountpoint: &Path,
        options: MountOptions,
        control: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let source = source::checked(source, &options)?;
        let point = MountPoint::checked(mountpoint)?;
        if let Location::Dir(dir) = &source {
            point.is_apart_from(dir, options.submounts.unwrap_or_default())?;
        }
        // A restarted server has another working directory.
        let control = control.map(absolute_path).transpose();
        let control = control.or_cannot("resolve the path of the control socket")?;
        Ok(Self { source, point, options, control, metrics: None })
    }
}

fn checked_options(list: &str) -> Result<String, String> {
    list.parse::<MountOptions>().map(|_| list.to_owned())
}
