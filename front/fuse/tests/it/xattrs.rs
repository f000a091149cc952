//! Missing extended attributes, and how often the kernel requests them.

use crate::common::Mounted;
use crate::push::soon;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_front_fuse::dev::Options;
use tombolo_front_fuse::session::Coherence;
use tombolo_test_support::Session;
use tombolo_wire_fuse::Opcode;
use tombolo_wire_fuse::init::Capabilities;

const LABEL: &str = "security.selinux";
const ACCESS_ACL: &str = "system.posix_acl_access";

fn get(path: &Path, name: &str) -> Result<usize, rustix::io::Errno> {
    rustix::fs::getxattr(path, name, &mut [0; 256])
}

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).expect("set");
}

/// Returns an access list that allows user 1234 to read (acl(5), `struct posix_acl_xattr_header`).
fn list() -> Vec<u8> {
    const UNDEFINED: u32 = u32::MAX;
    let entries = [
        (0x01_u16, 6_u16, UNDEFINED),
        (0x02, 4, 1234),
        (0x04, 0, UNDEFINED),
        (0x10, 4, UNDEFINED),
        (0x20, 0, UNDEFINED),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn listing_a_kept_tree_again_asks_for_no_attribute() {
    const FILES: u64 = 50;
    for allow_other in [true, false] {
        let beneath = tempfile::tempdir_in("/dev/shm").expect("a directory");
        (0..FILES)
            .for_each(|number| fs::write(beneath.path().join(number.to_string()), b"x").expect("write"));
        let watched = DirOptions { watch_host: true, ..DirOptions::default() };
        let export = LocalDir::open(beneath.path(), watched).expect("served");
        let options =
            Options { coherence: Coherence::Push, allow_other, labels: false, ..Options::default() };
        let mounted = Mounted::new(&export, &options);
        let session = mounted.mount.session();
        let asked = || session.counters().requests(Opcode::Getxattr);
        let ls = || Command::new("ls").arg("-l").arg(mounted.path()).output().expect("ls(1)");
        assert_eq!(ls().stdout.split(|byte| *byte == b'\n').count() as u64, FILES + 2);
        let first = asked();
        assert!(session.negotiated().contains(Capabilities::POSIX_ACL));
        // Each file's access list, and those of the directory; only its label is requested.
        assert!(first <= FILES + 3, "{first}");
        // The directory's attributes and its label, after which it stops. A watch begins with an invalidation
        // of everything.
        let asks = || {
            let before = asked();
            ls();
            asked() - before
        };
        soon("each is asked again", || asks() <= 3);
        // A list set by another client becomes visible.
        let path = mounted.at("7");
        assert_eq!(get(&path, ACCESS_ACL), Err(rustix::io::Errno::NODATA));
        Session::attach(&export).set_xattr("7", ACCESS_ACL, &list()).expect("set");
        soon("there is no list", || get(&path, ACCESS_ACL) == Ok(list().len()));
    }
}

#[test]
fn missing_label_stops_requests_until_one_is_found() {
    let beneath = tempfile::tempdir_in("/dev/shm").expect("a directory");
    for name in ["without", "with"] {
        fs::write(beneath.path().join(name), b"x").expect("write");
    }
    set(&beneath.path().join("with"), LABEL, b"label");
    let export = LocalDir::open(beneath.path(), DirOptions::default()).expect("served");
    for labels in [false, true] {
        let mounted = Mounted::new(&export, &Options { labels, ..Options::default() });
        let missing = if labels { rustix::io::Errno::NODATA } else { rustix::io::Errno::OPNOTSUPP };
        assert_eq!(get(&mounted.at("without"), LABEL), Err(missing));
        assert_eq!(get(&mounted.at("with"), LABEL), Ok(5));
        assert_eq!(get(&mounted.at("without"), LABEL), Err(rustix::io::Errno::NODATA));
    }
}

/// Expects no error, which a kernel that checks access lists would treat as a refusal.
#[test]
fn files_without_acl_support_are_usable_by_others() {
    let beneath = tempfile::tempdir().expect("a directory");
    let mount = |words: &[&str]| Command::new(words[0]).args(&words[1..]).arg(beneath.path()).status();
    assert!(mount(&["mount", "-t", "ramfs", "none"]).expect("mount(8)").success());
    fs::set_permissions(beneath.path(), fs::Permissions::from_mode(0o775)).expect("chmod");
    fs::write(beneath.path().join("file"), b"x").expect("write");
    fs::set_permissions(beneath.path().join("file"), fs::Permissions::from_mode(0o664)).expect("chmod");
    let used = {
        let export = LocalDir::open(beneath.path(), DirOptions::default()).expect("served");
        let mounted = Mounted::new(&export, &Options::default());
        let words = ["--reuid", "1234", "--regid", "1234", "--clear-groups", "cat"];
        Command::new("setpriv").args(words).arg(mounted.at("file")).output()
    };
    assert!(mount(&["umount", "-l"]).expect("umount(8)").success());
    let used = used.expect("setpriv(1)");
    assert_eq!(used.stdout, b"x", "{used:?}");
}
