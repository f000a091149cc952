//! Requirements of `tombolo mount`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tombolo_sys::creds;

use super::Finding;
use super::kernel::release;
use super::machine::program;

pub(super) fn findings() -> Vec<Finding> {
    let device = device();
    let (own_uid, _) = creds::own_ids();
    let mut findings = vec![device];
    if own_uid != 0 {
        findings.extend([helper(), allow_other()]);
    }
    findings.push(passthrough(own_uid));
    findings
}

const DEVICE: &str = "/dev/fuse";

fn device() -> Finding {
    match File::options().read(true).write(true).open(DEVICE) {
        Ok(_) => Finding::ok("FUSE", format!("{DEVICE} is usable: `tombolo mount` works")),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Finding::missing("FUSE", format!("{DEVICE}: permission denied"), format!("chmod 666 {DEVICE}"))
        }
        Err(error) => Finding::missing("FUSE", format!("{DEVICE}: {error}"), "modprobe fuse"),
    }
}

/// Checks the set-user-id helper with which users other than root mount.
fn helper() -> Finding {
    match program(&["fusermount3"]) {
        None => Finding::missing("fusermount3", "not found: only root can mount", "apt install fuse3"),
        Some(path) if is_set_uid(&path) => Finding::ok("fusermount3", path.display().to_string()),
        Some(path) => {
            let found = format!("{} is not set-user-id root: only root can mount", path.display());
            Finding::missing("fusermount3", found, format!("chmod u+s {}", path.display()))
        }
    }
}

fn is_set_uid(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o4000 != 0)
}

fn allow_other() -> Finding {
    let allowed = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.lines().any(|l| l.trim() == "user_allow_other"));
    if allowed {
        Finding::ok("allow_other", "users may use allow_other")
    } else {
        let mend = "add user_allow_other to /etc/fuse.conf";
        Finding::warn("allow_other", "users may not use allow_other", mend)
    }
}

fn passthrough(own_uid: u32) -> Finding {
    let (_, version) = release();
    match (version >= (6, 9), own_uid) {
        (true, 0) => Finding::ok(
            "FUSE passthrough",
            "the kernel reads fully cached files of read-only proxies directly",
        ),
        (true, _) => Finding::warn("FUSE passthrough", "requires root", "run as root"),
        (false, _) => {
            Finding::warn("FUSE passthrough", "not supported by this kernel", "run Linux 6.9 or newer")
        }
    }
}
