//! Mounter of a sandboxed server, as driven by a compromised server.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, mount};
use serde_json::{Value, json};
use tombolo_host_service::sandbox::helper::Helper;

use crate::common::{MountPlace, Mounted, Scratch, is_mounted};

/// A mounter with one mount point, mounted.
struct Mounter {
    helper: Helper,
    /// Keeps the mount alive.
    _device: OwnedFd,
}

impl Mounter {
    fn prepared(scratch: &Scratch, target: &Path) -> Helper {
        let place = json!({
            "target": target, "source": "test", "allow_other": false, "read_only": false, "devices": false, "set_id": false,
            "exec": false,
        });
        let mut command = scratch.tombolo(format!("mounter -- {}", place));
        let helper = Helper::start(&mut command, 1).expect("a mounter");
        assert!(ask(&helper, &json!("Prepare")).0["Prepared"].is_object());
        helper
    }

    fn mounted(scratch: &Scratch, target: &Path) -> Self {
        let helper = Self::prepared(scratch, target);
        let (mounted, device) = ask(&helper, &json!({"Mount": {"kernel_checks": true}}));
        assert_eq!(mounted, json!({"Mounted": {"by_helper": false}}));
        assert!(is_mounted(target));
        Self { helper, _device: device.expect("the connection") }
    }

    fn unmount(&self, detach: bool) -> Value {
        ask(&self.helper, &json!({"Unmount": {"by_helper": false, "detach": detach}})).0
    }
}

fn ask(helper: &Helper, request: &Value) -> (Value, Option<OwnedFd>) {
    let request = serde_json::to_vec(&json!([0, request])).expect("JSON");
    let (answer, descriptor) = helper.ask(&request, &[]).expect("an answer");
    (serde_json::from_slice(&answer).expect("JSON"), descriptor)
}

/// Mounts of others, removed on drop with everything mounted over them.
struct Others(Vec<Mounted>);

impl Others {
    fn mount(&mut self, at: PathBuf) {
        fs::create_dir_all(&at).expect("made");
        mount("other", &at, "tmpfs", MountFlags::empty(), c"").expect("mounted: the tests need root");
        self.0.push(Mounted(at));
    }
}

#[test]
fn mounter_attempts_mount_once() {
    let Some(place) = MountPlace::new() else { return };
    let target = place.0.path("own");
    fs::create_dir(&target).expect("made");
    let helper = Mounter::prepared(&place.0, &target);
    fs::remove_dir(&target).expect("removed");
    let mount = || ask(&helper, &json!({"Mount": {"kernel_checks": true}})).0["Failed"]["errno"].clone();
    assert_eq!(mount(), 2, "ENOENT");
    fs::create_dir(&target).expect("made");
    assert_eq!(mount(), 1, "EPERM");
    assert!(!is_mounted(&target));
}

#[test]
fn mounter_unmounts_only_its_own_mount() {
    let Some(place) = MountPlace::new() else { return };
    let scratch = &place.0;
    let mut others = Others(Vec::new());
    // A symbolic link on the path.
    others.mount(scratch.path("other/mnt"));
    fs::create_dir_all(scratch.path("own/mnt")).expect("made");
    let mounter = Mounter::mounted(scratch, &scratch.path("own/mnt"));
    fs::rename(scratch.path("own"), scratch.path("moved")).expect("moved");
    symlink("other", scratch.path("own")).expect("a link");
    assert_eq!(mounter.unmount(false), json!("Done"));
    assert!(is_mounted(&scratch.path("other/mnt")) && !is_mounted(&scratch.path("moved/mnt")));
    assert!(mounter.unmount(true)["Failed"].is_object(), "once");
    // Another mount, moved over the mount point from elsewhere.
    others.mount(scratch.path("dir/other"));
    others.0.extend(["dir/mnt", "dir/moved"].map(|name| Mounted(scratch.path(name))));
    fs::create_dir(scratch.path("dir/mnt")).expect("made");
    let mounter = Mounter::mounted(scratch, &scratch.path("dir/mnt"));
    let script = "import ctypes, os
for name in 'mnt', 'other': assert ctypes.CDLL(None).umount2(name.encode(), 2) == 0
os.rename('mnt', 'moved'), os.rename('other', 'mnt')";
    let mut moving = Command::new("unshare");
    moving.args(["--mount", "python3", "-c", script]).current_dir(scratch.path("dir"));
    assert!(moving.status().expect("unshare").success());
    for detach in [false, true] {
        assert_eq!(mounter.unmount(detach)["Failed"]["errno"], 22, "EINVAL");
        assert!(is_mounted(&scratch.path("dir/mnt")) && is_mounted(&scratch.path("dir/moved")));
    }
}
