//! scp(1) over the WAN link, from an sshd(8) at its far end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tombolo_wan::Side as End;

use crate::error::{Doing, Error, Result};
use crate::peer::{Server, completed};

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
        completed("ssh-keygen", keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key))?;
        fs::create_dir_all("/run/sshd").doing_to("make", Path::new("/run/sshd"))?;
        let mut sshd = far.command(SSHD);
        sshd.args(["-D", "-e", "-f", "/dev/null", "-p", &PORT.to_string()]);
        for option in [
            &format!("HostKey={}", key.display()),
            &format!("AuthorizedKeysFile={}.pub", key.display()),
            "StrictModes=no",
            "UsePAM=no",
            "PermitRootLogin=prohibit-password",
            "PidFile=none",
            "Subsystem=sftp internal-sftp",
        ] {
            sshd.args(["-o", option]);
        }
        let server = Server::listening("sshd", &mut sshd, &[PORT])?;
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
        scp.args(["-q", "-B", "-F", "/dev/null", "-P", &PORT.to_string(), "-i"]);
        scp.arg(self.place.path().join("key"));
        for option in ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"] {
            scp.args(["-o", option]);
        }
        completed("scp", scp.arg(format!("{}:{}", self.from, file.display())).arg(&copy))?;
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
