//! Directory mounted by a FUSE server, and request counters of our servers.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tombolo_host_service::control::Client;

use crate::error::{Doing, OrWrong, Result};
use crate::peer::server::beside;
use crate::peer::{PASSTHROUGH_LL, Server, TOMBOLO, find};

/// A FUSE mount with its server, unmounted on drop.
#[derive(Debug)]
pub struct Mount {
    pub server: Server,
    pub point: PathBuf,
    /// Control socket, if there is one.
    control: Option<PathBuf>,
    /// `true` if the server ends with the mount.
    ends_with_mount: bool,
}

impl Mount {
    /// Mounts `source` with libfuse's example, as it comes.
    pub fn by_libfuse(source: &Path, point: &Path) -> Result<Self> {
        let mut command = Command::new(find(PASSTHROUGH_LL)?);
        command.args(["-f", "-o", &format!("source={}", source.display())]).arg(point);
        Self::by(PASSTHROUGH_LL, command, point)
    }

    /// Mounts a URL with a policy, or with Tombolo's defaults: close-to-open, names and attributes for 1 s.
    pub fn of_url(url: &str, policy: Option<&str>, point: &Path) -> Result<Self> {
        let mut command = Command::new(find(TOMBOLO)?);
        command.args(["mount", "-f", url]).arg(point);
        command.args(policy.map(|policy| format!("-ocoherence={policy}")));
        Self::by_command(command, point)
    }

    /// Mounts with a command of ours, adding a control socket. It may run in another network.
    pub fn by_command(mut command: Command, point: &Path) -> Result<Self> {
        let control = beside(point, ".control");
        command.arg("--control").arg(&control);
        let mut mount = Self::by(TOMBOLO, command, point)?;
        mount.control = Some(control);
        Ok(mount)
    }

    /// Mounts with a server that continues after the unmount, as it may have other front ends.
    pub fn of_server(command: Command, point: &Path) -> Result<Self> {
        let mut mount = Self::by_command(command, point)?;
        mount.ends_with_mount = false;
        Ok(mount)
    }

    /// Mounts with a command of any program.
    pub fn by(program: &str, mut command: Command, point: &Path) -> Result<Self> {
        fs::create_dir_all(point).doing_to("make", point)?;
        let before = fs::metadata(point).doing_to("look at", point)?.dev();
        let server = Server::start(program, &mut command)?;
        let mut mount = Self { server, point: point.to_owned(), control: None, ends_with_mount: true };
        let mounted = || fs::metadata(point).is_ok_and(|there| there.dev() != before);
        mount.server.wait_until("mount", mounted)?;
        Ok(mount)
    }

    /// Returns the requests that the mount's server has answered; none without a control socket.
    pub fn requests(&self) -> Result<Requests> {
        self.control.as_deref().map_or_else(|| Ok(Requests::default()), Requests::ask)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The server ends with the unmount; if not, its drop kills it, and a dead mount point may remain.
        for _ in 0..3 {
            let unmount =
                Command::new("fusermount3").arg("-uq").arg(&self.point).stdin(Stdio::null()).status();
            if unmount.is_ok_and(|status| status.success()) || self.server.ended_within(Duration::ZERO) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if !self.ends_with_mount || !self.server.ended_within(Duration::from_secs(2)) {
            self.server.stop();
        }
    }
}

/// Number of requests that a server has answered since its start, by operation of the waist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(BTreeMap<String, u64>);

impl Requests {
    /// Queries the server at its control socket (docs/protocols/control.md, `stats`).
    pub fn ask(control: &Path) -> Result<Self> {
        let mut client = Client::connect(control).doing_to("connect to", control)?;
        let stats = client.ask("stats").or_wrong("ask for requests")?;
        Ok(Self::of(&stats))
    }

    fn of(stats: &Value) -> Self {
        let exports = stats["exports"].as_object().into_iter().flat_map(|exports| exports.values());
        let operations = exports.filter_map(|export| export["operations"].as_array()).flatten();
        let mut counts = BTreeMap::new();
        for operation in operations {
            let name = operation["name"].as_str().unwrap_or_default();
            *counts.entry(name.to_owned()).or_default() += operation["count"].as_u64().unwrap_or_default();
        }
        Self(counts)
    }

    /// Returns the requests since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let more = |(name, count): (&String, &u64)| {
            let before = earlier.0.get(name).copied().unwrap_or_default();
            (*count > before).then(|| (name.clone(), count - before))
        };
        Self(self.0.iter().filter_map(more).collect())
    }

    /// Returns `none`, or the total and the number of each.
    pub fn text(&self) -> String {
        if self.0.is_empty() {
            return "none".to_owned();
        }
        let each: Vec<_> = self.0.iter().map(|(name, count)| format!("{name} {count}")).collect();
        format!("{} ({})", self.0.values().sum::<u64>(), each.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_count_covers_all_exports_since_the_start() {
        let of = |getattr: u64, lookup: u64| {
            let operation = |name: &str, count: u64| serde_json::json!({ "name": name, "count": count });
            let one = [operation("getattr", getattr), operation("lookup", lookup)];
            let other = [operation("getattr", 1)];
            Requests::of(&serde_json::json!({ "exports": {
                "/a": { "operations": one }, "/b": { "operations": other },
            } }))
        };
        assert_eq!(of(5, 2).since(&of(5, 2)).text(), "none");
        assert_eq!(of(7, 2).text(), "10 (getattr 8, lookup 2)");
        assert_eq!(of(7, 2).since(&of(4, 2)).text(), "3 (getattr 3)");
    }
}
