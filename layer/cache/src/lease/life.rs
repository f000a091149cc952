//! Identification of a process's life, by which others on its host detect its end.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Machine, boot and start of a process. Unknown fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Machine id (machine-id(5)).
    pub machine: String,
    /// Boot id of the kernel.
    pub boot: String,
    /// PID namespace in which the process number is valid.
    pub namespace: String,
    /// Start time, in ticks since the boot.
    pub started: String,
    /// Device and inode number of the process's cache directory, which differ for a copy.
    pub place: String,
}

/// Result of a check of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Dead,
    Living,
    /// Unknown: the process runs or ran on another machine or in another PID namespace.
    Nothing,
}

impl Life {
    /// Returns the life of this process, on a machine with this id.
    pub fn of_this_process(machine: String) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let started = started(Path::new("/proc/self/stat")).ok().flatten().unwrap_or_default();
        let (boot, namespace) = (boot.trim().to_owned(), namespace.display().to_string());
        Self { machine, boot, namespace, started, place: String::new() }
    }

    /// Returns the id of this machine; empty if it has none.
    pub fn machine() -> String {
        fs::read_to_string("/etc/machine-id").unwrap_or_default().trim().to_owned()
    }

    /// Adds the process's cache directory, which the process has locked.
    pub(super) fn at(self, dir: &Path) -> Self {
        let place = dir.metadata().map(|dir| format!("{}:{}", dir.dev(), dir.ino()));
        Self { place: place.unwrap_or_default(), ..self }
    }

    /// Checks whether the process with number `process` and life `other` is alive. Its cache directory is
    /// that of this process, or the one is a copy of the other. If the directory is the same, the other
    /// process is dead, as this one has locked the directory.
    pub(super) fn knows(&self, process: &str, other: &Self, is_same_host: bool) -> Known {
        // A process of an earlier version, which records no boot id, counts as ended.
        if self.boot.is_empty() || other.boot.is_empty() {
            return Known::Dead;
        }
        let is_same_place = !self.place.is_empty() && self.place == other.place;
        if self.boot != other.boot {
            let is_same_machine = self.machine == other.machine && (is_same_host || is_same_place);
            return if is_same_machine { Known::Dead } else { Known::Nothing };
        }
        if is_same_place {
            return Known::Dead;
        }
        if self.namespace != other.namespace {
            return Known::Nothing;
        }
        let Ok(process) = process.parse::<u32>() else { return Known::Dead };
        match started(Path::new(&format!("/proc/{process}/stat"))) {
            Ok(Some(now)) if now == other.started => Known::Living,
            Ok(_) => Known::Dead,
            Err(_) => Known::Nothing,
        }
    }
}

/// Reads the start time of a process from proc_pid_stat(5). Returns `None` if the process has ended.
fn started(stat: &Path) -> std::io::Result<Option<String>> {
    let text = match fs::read(stat) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // The process name before the last parenthesis may contain anything.
    let mut fields = text.rsplit(") ").next().unwrap_or_default().split(' ');
    let state = fields.next().unwrap_or_default();
    let started = fields.nth(18).map(str::to_owned);
    Ok(started.filter(|_| !matches!(state, "Z" | "X")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(fields: [&str; 5]) -> Life {
        let [machine, boot, namespace, started, place] = fields.map(str::to_owned);
        Life { machine, boot, namespace, started, place }
    }

    #[test]
    fn process_is_identified_by_boot_number_and_start_time() {
        let own = Life::of_this_process("m".into());
        let of = |fields: [&str; 5]| life(fields);
        let (boot, namespace, started) = (&*own.boot, &*own.namespace, &*own.started);
        let own = Life { place: "1:1".into(), ..own.clone() };
        let number = std::process::id().to_string();
        let other = |boot, started, place| of(["m", boot, namespace, started, place]);
        assert_eq!(own.knows(&number, &other(boot, started, "1:2"), true), Known::Living);
        assert_eq!(own.knows(&number, &other(boot, "1", "1:2"), true), Known::Dead, "another of its number");
        assert_eq!(own.knows("4194305", &other(boot, started, "1:2"), true), Known::Dead);
        assert_eq!(
            own.knows(&number, &other(boot, started, "1:1"), true),
            Known::Dead,
            "its directory is ours"
        );
        assert_eq!(own.knows(&number, &other("earlier", started, "1:2"), true), Known::Dead);
        assert_eq!(own.knows(&number, &other("earlier", started, "1:2"), false), Known::Nothing);
        let elsewhere = of(["n", "earlier", namespace, started, "1:1"]);
        assert_eq!(own.knows(&number, &elsewhere, true), Known::Nothing);
        let contained = of(["m", boot, "pid:[1]", started, "1:2"]);
        assert_eq!(own.knows(&number, &contained, true), Known::Nothing);
        assert_eq!(own.knows(&number, &Life::default(), false), Known::Dead, "of an earlier version");
    }
}
