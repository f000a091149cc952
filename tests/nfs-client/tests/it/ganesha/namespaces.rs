//! Reruns a test in a network of its own.

use std::process::{Command, Stdio};

/// Set-up inside the namespaces: rpcbind writes below /run, which must not reach the host.
const PREPARE: &str = "ip link set lo up && mount -t tmpfs -o mode=755 none /run && exec \"$0\" \"$@\"";
/// Programs and the Debian packages that contain them.
pub type Needs = &'static [(&'static str, &'static str)];
/// Programs needed for a network namespace.
pub const NETWORK: Needs = &[("unshare", "util-linux"), ("ip", "iproute2")];
/// Programs needed for nfs-ganesha.
pub const GANESHA: Needs = &[("rpcbind", "rpcbind"), ("ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs")];

/// Runs an ignored test of this program in namespaces that end with it, and with them all of its processes.
#[track_caller]
pub fn run_inside(test: &str, needs: Needs) {
    if let Some(why) = missing(needs) {
        tombolo_skip::skip!("{why}");
    }
    let program = std::env::current_exe().expect("this program");
    let status = isolated()
        .arg(program)
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .status()
        .expect("unshare starts");
    assert!(status.success(), "{test} failed in its network");
}

fn missing(needs: Needs) -> Option<String> {
    for (program, packages) in NETWORK.iter().chain(needs) {
        let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|folder| folder.join(program).exists());
        if !found {
            return Some(format!("{program} is not installed (Debian: {packages})"));
        }
    }
    let tried = isolated().arg("true").stderr(Stdio::piped()).output().expect("unshare starts");
    let refused = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
    (!tried.status.success()).then(|| format!("no network of its own, which takes root: {refused}"))
}

fn isolated() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["--", "sh", "-c", PREPARE]).stdin(Stdio::null());
    command
}
