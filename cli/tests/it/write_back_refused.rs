//! Write-back proxies of an origin that refuses some changes.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;

use crate::common::far::Far;
use crate::common::{Mounted, until};

/// User to which the origin maps squashed users.
const NOBODY: u32 = 65534;

fn owner(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").uid()
}

fn temporary_names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).expect("list").map(|entry| entry.expect("an entry").file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    names.filter(|name| name.starts_with(".tombolo-wb-")).collect()
}

#[test]
fn squashing_origin_receives_all_but_set_owners() {
    for squash in ["root", "all"] {
        let Some(mut far) = Far::squashing(squash) else { return };
        let (tree, mnt) = (far.path("tree"), far.place.mnt());
        fs::set_permissions(&tree, Permissions::from_mode(0o777)).expect("chmod");
        let url = far.url("?retry=1&soft");
        let mut command = far.tombolo(far.words(&url));
        command.stderr(File::create(far.path("log")).expect("a file"));
        let mut proxy = far.started(command, "ready control");
        let log = fs::read_to_string(far.path("log")).expect("read");
        assert!(log.contains("assigns files created by user 0 to user 65534"), "{log}");

        fs::create_dir(mnt.join("dir")).expect("mkdir");
        fs::create_dir(mnt.join("dir/deep")).expect("mkdir");
        for name in ["dir/one", "dir/deep/two", "three"] {
            fs::write(mnt.join(name), name).expect("write");
        }
        fs::set_permissions(mnt.join("three"), Permissions::from_mode(0o640)).expect("chmod");
        far.session("flush").succeeded();
        far.session("wait --remote --timeout 60").succeeded();
        assert_eq!(fs::read_to_string(tree.join("dir/deep/two")).expect("read"), "dir/deep/two");
        assert_eq!(fs::metadata(tree.join("three")).expect("there").mode() & 0o7777, 0o640);
        for name in ["dir", "dir/deep", "dir/one", "three"] {
            assert_eq!(owner(&tree.join(name)), NOBODY, "{name}");
            until("it is shown as the origin has it", || owner(&mnt.join(name)) == NOBODY);
        }

        chown(mnt.join("three"), Some(1000), None).expect("chown");
        fs::write(mnt.join("dir/four"), "four").expect("write");
        let refusal = "the origin refuses to set the owner of three";
        far.session("wait --remote --timeout 60").failed(1, &[refusal, "session flush"]);
        far.session("flush").failed(1, &[refusal, "unsent changes are kept"]);
        far.session("wait --remote").failed(1, &[refusal]);
        let shown = far.session("show");
        assert!(shown.out.contains("refused    1\n") && shown.out.contains(refusal), "{}", shown.out);
        assert_eq!(fs::read_to_string(tree.join("dir/four")).expect("read"), "four");
        for dir in [tree.clone(), tree.join("dir")] {
            assert_eq!(temporary_names(&dir), [""; 0]);
        }
        proxy.signal("TERM");
        assert_eq!(proxy.wait().code(), Some(1));
        let log = fs::read_to_string(far.path("log")).expect("read");
        assert!(log.contains(refusal), "{log}");

        far.stop_origin();
        far.squash = "none";
        far.start_origin();
        far.write_back().stop();
        assert_eq!(owner(&tree.join("three")), 1000);
    }
}

#[test]
fn refused_device_is_reported_retained_and_blocks_nothing() {
    let Some(mut far) = Far::squashing("root") else { return };
    let (tree, mnt) = (far.path("tree"), far.place.mnt());
    fs::set_permissions(&tree, Permissions::from_mode(0o777)).expect("chmod");
    let proxy = far.write_back();
    far.sh("mknod mnt/null c 1 3");
    fs::write(mnt.join("other"), "other").expect("write");
    let refusal = "the origin refuses what was done to null";
    far.session("flush").failed(1, &[refusal, "unsent changes are kept"]);
    assert_eq!(fs::read_to_string(tree.join("other")).expect("read"), "other");
    assert_eq!(temporary_names(&tree), [""; 0]);
    // Nothing is under way: it ends at once.
    far.session("wait --remote --timeout 60").failed(1, &[refusal, "session flush"]);
    let shown = far.session("show");
    assert!(shown.out.contains("refused    1\n") && shown.out.contains(refusal), "{}", shown.out);

    fs::write(mnt.join("later"), "later").expect("write");
    until("it does not wait for the device", || tree.join("later").exists());
    proxy.kill();
    far.place.take_away(&mnt);
    let mut proxy = far.write_back();
    assert!(fs::symlink_metadata(mnt.join("null")).expect("retained").file_type().is_char_device());
    proxy.signal("TERM");
    assert_eq!(proxy.wait().code(), Some(1));

    far.stop_origin();
    far.squash = "none";
    far.start_origin();
    far.write_back().stop();
    assert!(fs::symlink_metadata(tree.join("null")).expect("there").file_type().is_char_device());
}

#[test]
fn unwritable_origin_is_refused_at_start() {
    let Some(mut far) = Far::new() else { return };
    far.stop_origin();
    let address = far.address.to_string();
    let words = format!("serve tree --read-only --nfs {address} --state origin-state --control origin.sock");
    far.origin = Some(far.serve(&words));
    let proxy = format!(
        "proxy {} --cache cache --mode write-back --contract exclusive --no-lease --nfs 0",
        far.url("")
    );
    far.run(proxy).failed(1, &["user 0 cannot create files", "--mode write-back"]);
}

/// A file system of 2 MiB at the origin's tree.
struct Small(Mounted);

impl Small {
    fn at(far: &mut Far) -> Self {
        far.stop_origin();
        far.sh("mount -t tmpfs -o size=2M none tree");
        let small = Self(Mounted(far.path("tree")));
        far.start_origin();
        small
    }

    /// Fills the file system.
    fn fill(&self) {
        let filled = fs::write(self.0.0.join("filler"), vec![1; 4 << 20]);
        assert_eq!(filled.expect_err("it is full").raw_os_error(), Some(28), "ENOSPC");
    }
}

#[test]
fn a_proxy_starts_again_on_a_full_origin() {
    let Some(mut far) = Far::new() else { return };
    let small = Small::at(&mut far);
    let proxy = far.write_back();
    small.fill();
    fs::write(far.mnt("waits"), vec![7; 100_000]).expect("write");
    far.session("wait --local --timeout 60").succeeded();
    proxy.kill();
    far.place.take_away(&far.place.mnt());

    // The lease file exists, and cannot be replaced.
    let mut proxy = far.write_back();
    far.session("flush").failed(1, &["unsent changes are kept"]);
    proxy.signal("TERM");
    assert_eq!(proxy.wait().code(), Some(1));
    assert!(!small.0.0.join(".tombolo-lease").exists(), "it is given back");

    // The lease file is missing, and cannot be created.
    let proxy = far.write_back();
    assert_eq!(fs::read(far.mnt("waits")).expect("read"), vec![7; 100_000]);
    fs::remove_file(small.0.0.join("filler")).expect("removed");
    far.session("flush").succeeded();
    assert_eq!(fs::read(small.0.0.join("waits")).expect("read"), vec![7; 100_000]);
    until("it has its lease", || small.0.0.join(".tombolo-lease").exists());
    proxy.stop();
    drop(far.origin.take());
}
