//! Network namespaces of a run, and links of a given speed between them.
//!
//! [`run_inside`] runs the program in a new network namespace, in which callers, and servers at the loopback,
//! run. nfs-ganesha registers with rpcbind, of which there is one per network: in a namespace of the run it
//! conflicts with no other rpcbind, and ends with the run. [`Network`] adds a second namespace for the
//! servers at the other end of a [`Link`]; it must be used inside [`run_inside`], to disappear with the run.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use serde::Deserialize;

use crate::error::{Doing, Error, Result};
use crate::measure::go_on;
use crate::peer::{completed, this_program};

/// Link between a caller and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// Loopback of this network.
    Loopback,
    /// Pair of virtual Ethernet devices, each shaped to 10 Gbit/s.
    TenGigabit,
    /// Pair of virtual Ethernet devices, each shaped to 1 Gbit/s.
    Gigabit,
}

impl Link {
    pub const ALL: [Link; 3] = [Link::Loopback, Link::TenGigabit, Link::Gigabit];

    pub fn label(self) -> &'static str {
        match self {
            Link::Loopback => "loopback",
            Link::TenGigabit => "10 Gbit/s",
            Link::Gigabit => "1 Gbit/s",
        }
    }

    /// Returns the address of servers of this link.
    pub fn server(self) -> IpAddr {
        self.shaper().map_or(Ipv4Addr::LOCALHOST, |shaper| Ipv4Addr::new(10, 77, shaper.net, 2)).into()
    }

    fn shaper(self) -> Option<Shaper> {
        match self {
            Link::Loopback => None,
            Link::TenGigabit => {
                Some(Shaper { name: "ten", net: 10, megabits: 10_000.0, burst_kilobytes: 256 })
            }
            Link::Gigabit => Some(Shaper { name: "one", net: 1, megabits: 1_000.0, burst_kilobytes: 128 }),
        }
    }
}

/// A token bucket (tc-tbf(8)). A bucket below 64 KiB would cut the kernel's large segments.
struct Shaper {
    name: &'static str,
    net: u8,
    megabits: f64,
    burst_kilobytes: u32,
}

/// Maximum delay of a packet in a shaper before it is dropped.
const LATENCY_MS: u32 = 5;
/// Name of the second network namespace.
const FAR: &str = "far";
/// Congestion control of both networks, set because the default differs between hosts.
const CONGESTION: &str = "reno";
/// Shell command that sets it in the present network.
const SET_CONGESTION: &str = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control";

/// The second network and its links, created when a link is first needed.
pub struct Network;

impl Network {
    /// Fails, with the reason, if there is no such link. Without a second network only the loopback exists.
    pub fn check(link: Link) -> Result<()> {
        static ABSENT: LazyLock<Option<String>> =
            LazyLock::new(|| build().err().map(|error| error.to_string()));
        match &*ABSENT {
            Some(reason) if link != Link::Loopback => {
                Err(Error::Absent(format!("{}: {reason}", link.label())))
            }
            _ => Ok(()),
        }
    }

    /// Returns a command that runs in the network of a link's servers.
    pub fn command(link: Link, program: PathBuf) -> Command {
        if link == Link::Loopback {
            return Command::new(program);
        }
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{FAR}")).arg("--").arg(program);
        command
    }

    /// Describes the links for the report.
    pub fn condition() -> String {
        let shaped = Link::ALL.into_iter().filter_map(Link::shaper);
        let buckets: Vec<_> = shaped
            .map(|it| format!("{} Mbit/s with a bucket of {} KB", it.megabits, it.burst_kilobytes))
            .collect();
        format!(
            "links: the loopback of a network namespace, and veth pairs from there to another with a token bucket (tbf) on either \
             end: {}; packets wait {LATENCY_MS} ms at most. Senders' congestion control: {CONGESTION}",
            buckets.join(", ")
        )
    }
}

fn build() -> Result<()> {
    run("ip", &["netns", "add", FAR])?;
    run("ip", &["-n", FAR, "link", "set", "lo", "up"])?;
    run("sh", &["-c", SET_CONGESTION])?;
    run("ip", &["netns", "exec", FAR, "sh", "-c", SET_CONGESTION])?;
    for shaper in Link::ALL.into_iter().filter_map(Link::shaper) {
        let (near, far) = (format!("{}0", shaper.name), format!("{}1", shaper.name));
        run("ip", &["link", "add", &near, "type", "veth", "peer", "name", &far, "netns", FAR])?;
        let (rate, burst) = (format!("{}mbit", shaper.megabits), format!("{}kb", shaper.burst_kilobytes));
        let latency = format!("{LATENCY_MS}ms");
        let bucket = ["root", "tbf", "rate", &rate, "burst", &burst, "latency", &latency];
        for (end, device, before) in [(1, &near, &[][..]), (2, &far, &["-n", FAR][..])] {
            let address = format!("10.77.{}.{end}/24", shaper.net);
            let with = |program, rest: &[&str]| run(program, &[before, rest].concat());
            with("ip", &["address", "add", &address, "dev", device])?;
            with("ip", &["link", "set", device, "up"])?;
            with("tc", &[&["qdisc", "add", "dev", device], &bucket[..]].concat())?;
        }
    }
    Ok(())
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let done =
        completed(&format!("{program} {}", arguments.join(" ")), Command::new(program).args(arguments));
    done.map(drop).map_err(|error| Error::Absent(error.to_string()))
}

/// Shell commands that prepare the namespaces: rpcbind writes below /run, and its files must not remain.
const PREPARE: &str =
    "ip link set lo up && mount -t tmpfs -o mode=755 tombolo-bench /run && exec \"$0\" \"$@\"";
const LOOK: Duration = Duration::from_millis(20);

/// Runs this program again with `arguments` in new network and mount namespaces, with the same output. Fails
/// with [`Error::Absent`] if that is not permitted.
pub fn run_inside(arguments: &[impl AsRef<OsStr>]) -> Result<()> {
    allowed()?;
    let mut child =
        isolated(&this_program()?).args(arguments).spawn().doing(|| "start unshare".to_owned())?;
    let status = loop {
        if let Some(status) = child.try_wait().doing(|| "wait for the run".to_owned())? {
            break status;
        }
        if let Err(interrupted) = go_on() {
            // The child ends its servers.
            let _gone = tombolo_sys::process::terminate(child.id());
            let _ended = child.wait();
            return Err(interrupted);
        }
        std::thread::sleep(LOOK);
    };
    if status.success() {
        return Ok(());
    }
    let what = format!("ended with {status} in its own network");
    Err(Error::Server { program: "tombolo-bench".to_owned(), what })
}

fn allowed() -> Result<()> {
    let tried = completed("unshare (of util-linux)", &mut isolated(Path::new("true")));
    let refused =
        |error| Error::Absent(format!("a new network namespace requires root, unshare and ip: {error}"));
    tried.map(drop).map_err(refused)
}

/// Returns a command that runs `program` in new namespaces, as the same process.
fn isolated(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--", "sh", "-c", PREPARE]).arg(program).stdin(Stdio::null());
    command
}
