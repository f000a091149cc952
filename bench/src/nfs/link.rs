//! Links of a stated speed between two networks of the run's own: the callers are in this one, the servers in
//! the other. It has to be run inside [`run_inside`](super::run_inside), so that all of it is gone with the
//! run.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::{Doing, Error, Result};

/// Between a caller and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The loopback of this network.
    Loopback,
    /// A pair of virtual Ethernet devices, each with a shaper of 10 Gbit/s.
    TenGigabit,
    /// The same with 1 Gbit/s.
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

    /// Where servers of this link listen.
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

/// A token bucket (tc-tbf(8)). A bucket of less than 64 KiB would cut the kernel's large segments.
struct Shaper {
    name: &'static str,
    net: u8,
    megabits: f64,
    burst_kilobytes: u32,
}

/// How long a packet may wait in a shaper before it is dropped.
const LATENCY_MS: u32 = 5;
const FAR: &str = "far";
/// What senders do about congestion: the one that each network may choose. The default of hosts differs.
const CONGESTION: &str = "reno";
/// Sets it in the network that the shell is in.
const SET_CONGESTION: &str = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control";

/// The other network and the ways to it.
#[derive(Debug)]
pub struct Network {
    /// Why there is no other network.
    absent: Option<String>,
}

impl Network {
    /// Makes it. Without it, only the loopback is there, and [`Network::check`] says why.
    pub fn make() -> Self {
        Self { absent: build().err().map(|error| error.to_string()) }
    }

    pub fn check(&self, link: Link) -> Result<()> {
        match &self.absent {
            Some(reason) if link != Link::Loopback => {
                Err(Error::Absent(format!("{}: {reason}", link.label())))
            }
            _ => Ok(()),
        }
    }

    /// A command that begins in the network where a link's servers are.
    pub fn command(link: Link, program: PathBuf) -> Command {
        if link == Link::Loopback {
            return Command::new(program);
        }
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{FAR}")).arg("--").arg(program);
        command
    }

    /// How the links were made, for the report.
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
