//! Clones that run for a while, to record their reads.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_sys::process;

use super::config::{CONFIG, STATE};
use super::home::Home;
use super::image::Image;
use super::image_cache::CacheArgs;
use super::ledger::Ledger;
use super::{PlaceArgs, running, shares};
use crate::assembly::plan::disk::DiskSource;
use crate::commands::files::stop;
use crate::failure::{Failure, OrCannot};

/// File in the clone's directory, whose presence makes the VM's servers record reads.
pub const RECORD: &str = "read";

/// Interval at which the end of a clone's run is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

const INTERRUPTED: &str = "interrupted";

/// Parameters of a recording.
pub struct Rehearsal<'a> {
    pub image: &'a Path,
    pub place: &'a PlaceArgs,
    pub at_most: Duration,
    /// Shell command that succeeds when the recording is complete.
    pub until: Option<&'a str>,
}

/// The clone, removed when dropped.
struct Clone(Home);

impl Drop for Clone {
    fn drop(&mut self) {
        let removed = running::stop(&self.0).and_then(|()| {
            let _lock = self.0.locked()?;
            self.0.remove()
        });
        if let Err(failure) = removed {
            failure.remedy(format_args!("tombolo vm rm --force {}", self.0.name)).print();
        }
    }
}

impl Rehearsal<'_> {
    /// Runs the clone. Returns its reads: lines of offset, length and file name, in order.
    pub fn run(&self) -> Result<Vec<u8>, Failure> {
        let rehearsing = format!("rehearse {}", self.image.display());
        let shares = shares::checked(&self.place.share)?;
        if DiskSource::is_elsewhere(self.image) {
            return Err(Failure::cannot(&rehearsing, "it is not a local directory")
                .remedy("record on its server, or mount it"));
        }
        let mut image = Image::of_word(self.image, &[], CacheArgs::default())?;
        // Signals are polled, since one may arrive between two clones.
        stop::on_signal(|_| ()).or_cannot(&rehearsing)?;
        if stop::came().is_some() {
            return Err(Failure::cannot(&rehearsing, INTERRUPTED));
        }

        let clone = Clone(Home::create(&format!("rehearsal-{}", std::process::id()))?);
        let home = &clone.0;
        File::create_new(home.file(RECORD)).or_cannot(&rehearsing)?;
        image.clone_to(home, &self.place.qemu()?, self.place.net(), shares, &mut Ledger::begin())?;
        running::resume(home, &mut Ledger::begin())?;
        let over = self.wait();
        running::stop(home)?;
        over.map_err(|reason| Failure::cannot(&rehearsing, reason))?;
        // Every clone first reads these files as a whole.
        let mut read = Vec::new();
        for name in [CONFIG, STATE] {
            let bytes = fs::metadata(self.image.join(name)).or_cannot(&rehearsing)?.len();
            read.extend(format!("0 {bytes} {name}\n").into_bytes());
        }
        read.extend(fs::read(home.file(RECORD)).or_cannot(&rehearsing)?);
        Ok(read)
    }

    /// Waits until the recording may end. Fails with the reason of a premature end.
    fn wait(&self) -> Result<(), String> {
        let end = Instant::now() + self.at_most;
        let is_over = || stop::came().is_some() || Instant::now() > end;
        loop {
            if stop::came().is_some() {
                return Err(INTERRUPTED.into());
            }
            match self.until.map(|command| succeeds(command, is_over)) {
                Some(Ok(true)) => return Ok(()),
                Some(Err(error)) => return Err(format!("the --until command failed: {error}")),
                Some(Ok(false)) if Instant::now() > end => {
                    let seconds = self.at_most.as_secs();
                    return Err(format!("the --until command did not succeed within {seconds} s"));
                }
                None if Instant::now() > end => return Ok(()),
                _ => thread::sleep(POLL_INTERVAL),
            }
        }
    }
}

/// Returns `true` if the command succeeds in time; it may hang on an unresponsive guest, and is then killed.
fn succeeds(command: &str, is_over: impl Fn() -> bool) -> std::io::Result<bool> {
    let mut shell = Command::new("/bin/sh");
    let shell = shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut shell = shell.process_group(0).spawn()?;
    loop {
        match shell.try_wait()? {
            Some(status) => return Ok(status.success()),
            None if is_over() => {
                let _ = process::kill_group(shell.id());
                return shell.wait().map(|_| false);
            }
            None => thread::sleep(POLL_INTERVAL),
        }
    }
}
