//! scp(1) over the WAN link, from an sshd(8) at its far end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tombolo_wan::Side as End;

use super::host::ended_well;
use crate::error::{Doing, Error, Result};
use crate::peer::{Server, is_listening_in};

const PORT: u16 = 2022;
const SSHD: &str = "/usr/sbin/sshd";

/// A server with its own key.
pub struct Scp<'a> {
    _server: Server,
    near: &'a End,
    from: String,
    place: TempDir,
}

impl<'a> Scp<'a> {
    pub fn new(far: &End, near: &'a End, beside: &Path) -> Result<Self> {
        if !Path::new(SSHD).exists() {
            return Err(Error::Absent("no sshd: apt-get install openssh-server".to_owned()));
        }
        let place = crate::table::folder(beside)?;
        let key = place.path().join("key");
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).stdin(Stdio::null());
        ended_well("ssh-keygen", keygen.spawn().doing(|| "start ssh-keygen".to_owned())?)?;
        fs::create_dir_all("/run/sshd").doing_to("make", Path::new("/run/sshd"))?;
        let mut sshd = far.command(SSHD);
        let set = |name: &str, value: String| format!("{name}={value}");
        let known = place.path().join("key.pub").display().to_string();
        let options = [
            set("HostKey", key.display().to_string()),
            set("AuthorizedKeysFile", known),
            set("StrictModes", "no".to_owned()),
            set("UsePAM", "no".to_owned()),
            set("PermitRootLogin", "prohibit-password".to_owned()),
            set("PidFile", "none".to_owned()),
            set("Subsystem", "sftp internal-sftp".to_owned()),
        ];
        sshd.args(["-D", "-e", "-f", "/dev/null", "-p", &PORT.to_string()]);
        for option in &options {
            sshd.args(["-o", option]);
        }
        let mut server = Server::start("sshd", &mut sshd)?;
        let network = server.id().to_string();
        server.wait_until("answer", || is_listening_in(&network, PORT))?;
        Ok(Self { _server: server, near, from: format!("root@{}", far.address()), place })
    }

    /// Returns the time to copy `bytes` incompressible bytes: at most `measured` are copied, and the
    /// remainder is extrapolated.
    pub fn scaled(&self, bytes: u64, measured: u64) -> Result<Duration> {
        let begin = self.copy(1)?;
        let measured = measured.min(bytes);
        let all = self.copy(measured)?;
        let rest = all.saturating_sub(begin).as_secs_f64() * bytes as f64 / (measured.max(1) as f64);
        Ok(begin + Duration::from_secs_f64(rest))
    }

    fn copy(&self, bytes: u64) -> Result<Duration> {
        let [file, copy] = ["file", "copy"].map(|name| self.place.path().join(name));
        self.fill(&file, bytes)?;
        let begun = Instant::now();
        let mut scp = self.near.command("scp");
        scp.args(["-q", "-B", "-F", "/dev/null", "-P", &PORT.to_string(), "-i"])
            .arg(self.place.path().join("key"));
        scp.args([
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "LogLevel=ERROR",
        ]);
        scp.arg(format!("{}:{}", self.from, file.display()))
            .arg(&copy)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        ended_well("scp", scp.spawn().doing(|| "start scp".to_owned())?)?;
        Ok(begun.elapsed())
    }

    fn fill(&self, file: &PathBuf, bytes: u64) -> Result<()> {
        let made = || {
            let mut random = std::io::Read::take(File::open("/dev/urandom")?, bytes);
            std::io::copy(&mut random, &mut File::create(file)?)
        };
        made().doing_to("write", file).map(drop)
    }
}
