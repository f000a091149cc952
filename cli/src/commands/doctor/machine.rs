//! Virtual machine monitors on this host.

use std::env;
use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{Finding, wakeups};

pub(super) fn findings() -> Vec<Finding> {
    vec![kvm(), qemu(), uml(), wakeups::finding()]
}

/// Returns the first of these programs found in `PATH`.
pub(super) fn program(names: &[&str]) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let places: Vec<_> = env::split_paths(&path).collect();
    let found = |place: &PathBuf, name: &str| {
        let file = place.join(name);
        let runs = file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
        runs.then_some(file)
    };
    names.iter().find_map(|name| places.iter().find_map(|place| found(place, name)))
}

fn kvm() -> Finding {
    match File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Finding::ok("KVM", "/dev/kvm is usable"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Finding::warn("KVM", "/dev/kvm: permission denied", "add the user to the group kvm")
        }
        Err(error) => Finding::warn(
            "KVM",
            format!("/dev/kvm: {error}: QEMU guests run slowly (TCG)"),
            "enable virtualisation in the firmware or the hypervisor; modprobe kvm",
        ),
    }
}

fn qemu() -> Finding {
    let name = format!("qemu-system-{}", env::consts::ARCH);
    let Some(path) = program(&[&name]) else {
        return Finding::warn(
            "QEMU",
            format!("{name} not found"),
            "apt install qemu-system-x86 (or for your architecture)",
        );
    };
    let output = Command::new(&path).arg("--version").stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = text.split_once("version ").and_then(|(_, rest)| rest.split_whitespace().next());
    match version {
        Some(version) if is_old(version) => Finding::warn(
            "QEMU",
            format!("{version} at {}: too old for tombolo vm", path.display()),
            "install QEMU 7.2 or newer",
        ),
        Some(version) => Finding::ok("QEMU", format!("{version} at {}", path.display())),
        None => {
            Finding::warn("QEMU", format!("{} does not report its version", path.display()), "reinstall it")
        }
    }
}

/// Returns `true` if QEMU is older than `tombolo vm` requires.
fn is_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) < (Some(7), Some(2))
}

fn uml() -> Finding {
    match program(&["linux.uml"]) {
        Some(path) => Finding::ok("UML", path.display().to_string()),
        None => Finding::warn("UML", "linux.uml not found", "apt install user-mode-linux"),
    }
}

#[cfg(test)]
mod tests {
    use super::is_old;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(["6.2.0", "7.1.9", "7"].into_iter().all(is_old));
        assert!(!["7.2.22", "7.10", "10.0.2"].into_iter().any(is_old));
    }
}
