//! Links of a given speed between two network namespaces of the run: callers are in this one, servers in the
//! other. Use inside [`run_inside`](super::run_inside), so that all disappears with the run.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde::Deserialize;

use crate::error::{Doing, Error, Result};

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
const FAR: &str = "far";
/// Congestion control, which each network may choose, because the default of hosts differs.
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
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.output().doing(|| format!("start {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Absent(format!("{program} {}: {}", arguments.join(" "), said.trim())))
}
