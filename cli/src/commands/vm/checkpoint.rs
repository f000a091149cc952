//! `tombolo vm checkpoint` and `tombolo vm restore`: saved states of a VM that it can return to.

use std::fs::{File, TryLockError};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use clap::Args;
use tombolo_core::fs::Timestamp;

use super::chain;
use super::home::{GLANCE, Home, Phase, checked_name};
use super::{live, running};
use crate::commands::files::shown::{size, time};
use crate::commands::files::{print, stop};
use crate::failure::{Failure, OrCannot, Outcome};

/// Create a checkpoint of a running VM, which continues, or of a suspended one.
///
/// A checkpoint is a consistent copy of device state, memory and disk, for tombolo vm restore. A running
/// guest loses its network card meanwhile, as in a suspension, and with it the connections through --net
/// user. The time for which it was paused is printed.
#[derive(Args)]
pub struct CheckpointArgs {
    /// Name of the VM.
    #[arg(value_parser = checked_name)]
    name: String,
    /// Repeat at this interval, until interrupted or the VM is not running.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    every: Option<u32>,
    /// Number of checkpoints to keep, 1 to 8; older ones are merged into later ones.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=8))]
    keep: u8,
}

/// Exclusive right to change a VM's checkpoints.
pub struct Turn(#[expect(dead_code, reason = "the lock is its open file's")] File);

impl Turn {
    /// Waits for another command to finish, up to a limit.
    pub fn wait(home: &Home) -> Result<Self, Failure> {
        let end = Instant::now() + running::PATIENCE;
        loop {
            match Self::take(home) {
                Err(_) if Instant::now() < end => thread::sleep(LOOK_EVERY),
                taken => return taken,
            }
        }
    }

    pub fn take(home: &Home) -> Result<Self, Failure> {
        let changing = format!("change the checkpoints of VM {}", home.name);
        let file = File::create(home.file("checkpoints.lock")).or_cannot(&changing)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::cannot(&changing, "another command is changing them"))
            }
            Err(TryLockError::Error(error)) => Err(Failure::cannot(&changing, &error)),
        }
    }
}

impl CheckpointArgs {
    pub fn run(&self) -> Outcome {
        let home = Home::of(&self.name)?;
        let (stopping, stopped) = channel();
        // A signal ends the command only after a checkpoint in progress, so that a paused guest resumes.
        let stop = move |_| stopping.send(()).unwrap_or_default();
        stop::on_signal(stop).or_cannot("watch for signals")?;
        loop {
            self.make(&home)?;
            let Some(seconds) = self.every else { break };
            // A VM that is not running would give the same checkpoint again.
            let interval = Duration::from_secs(seconds.into());
            if !is_running(&home)? || has_ended(&stopped, interval) || !is_running(&home)? {
                break;
            }
        }
        stop::came().map_or(Ok(()), |signal| Err(Failure::stopped(signal)))
    }

    fn make(&self, home: &Home) -> Outcome {
        if is_running(home)? {
            let (number, still) = live::ask(home, self.keep.into())?;
            return told(home, number, Some(still));
        }
        let _turn = Turn::take(home)?;
        // Bounds the depth of the overlay chain, in case the previous command was killed before it did.
        if home.phase()? == Phase::Suspended {
            chain::forget_oldest(home, self.keep.into())?;
        }
        told(home, freeze(home)?, None)?;
        chain::forget_oldest(home, self.keep.into())
    }
}

fn told(home: &Home, number: u32, still: Option<Duration>) -> Outcome {
    let still = still.map(|still| format!(": guest paused for {} ms", still.as_millis()));
    print(&format!("checkpoint {number} of {}{}", home.name, still.unwrap_or_default()))
}

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Returns `true` if the VM exists and its supervisor runs.
fn is_running(home: &Home) -> Result<bool, Failure> {
    Ok(home.path.is_dir() && home.lock_within(GLANCE)?.is_none())
}

/// Returns `true` if a stop is requested within that time.
fn has_ended(stopped: &Receiver<()>, within: Duration) -> bool {
    stopped.recv_timeout(within).is_ok() || stop::came().is_some()
}

fn freeze(home: &Home) -> Result<u32, Failure> {
    let _lock = home.locked()?;
    if home.phase()? != Phase::Suspended {
        let reason = "it is neither running nor suspended";
        return Err(Failure::cannot(format_args!("create a checkpoint of VM {}", home.name), reason)
            .remedy("see tombolo vm list"));
    }
    chain::freeze(home)
}

/// Restores a VM that is not running to a suspended state at a checkpoint, by default the latest.
pub fn restore(home: &Home, number: Option<u32>) -> Outcome {
    let _turn = Turn::take(home)?;
    let _lock = home.locked()?;
    let all = chain::checkpoints(home)?;
    let wanted = match number {
        Some(number) => all.iter().find(|checkpoint| checkpoint.number == number),
        None => all.last(),
    };
    let restoring = format!("restore VM {}", home.name);
    let Some(wanted) = wanted.map(|checkpoint| checkpoint.number) else {
        let reason = number.map_or_else(
            || "it has no checkpoints".into(),
            |number| format!("it has no checkpoint {number}"),
        );
        return Err(Failure::cannot(restoring, reason).remedy(format!("see tombolo vm show {}", home.name)));
    };
    // The VM counts as unfinished until device state, memory and disk are all those of the checkpoint.
    let unfinished =
        format!("the restoration is incomplete; repeat tombolo vm restore {} {wanted}", home.name);
    home.set_phase(&Phase::Failed(unfinished))?;
    chain::thaw(home, wanted)?;
    home.set_phase(&Phase::Suspended)?;
    chain::tidy(home)?;
    print(&format!("{0} is suspended at checkpoint {wanted}; continue with tombolo vm resume {0}", home.name))
}

pub fn rows(home: &Home) -> Result<Vec<Vec<String>>, Failure> {
    let row = |checkpoint: chain::Checkpoint| {
        let since = checkpoint.time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let when = Timestamp { secs: since.as_secs() as i64, nanos: 0 };
        vec![checkpoint.number.to_string(), time(when), size(checkpoint.bytes)]
    };
    Ok(chain::checkpoints(home)?.into_iter().map(row).collect())
}
