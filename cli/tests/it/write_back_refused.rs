//! A proxy that keeps changes back from an origin that refuses some of them.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use crate::common::far::Far;
use crate::common::until;

/// The user that an origin takes those for that it squashes.
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
fn an_origin_that_squashes_root_gets_all_but_asked_owners() {
    for squash in ["root", "all"] {
        let Some(mut far) = Far::squashing(squash) else { return };
        let (tree, mnt) = (far.place.0.path("tree"), far.place.mnt());
        fs::set_permissions(&tree, Permissions::from_mode(0o777)).expect("chmod");
        let url = far.url("?retry=1&soft");
        let mut command = far.place.0.tombolo(&far.words(&url));
        command.stderr(File::create(far.place.0.path("log")).expect("a file"));
        let mut proxy = far.place.0.started(command, "ready control");
        let log = fs::read_to_string(far.place.0.path("log")).expect("read");
        assert!(log.contains("gives files that user 0 makes to user 65534"), "{log}");

        fs::create_dir(mnt.join("dir")).expect("mkdir");
        fs::create_dir(mnt.join("dir/deep")).expect("mkdir");
        for name in ["dir/one", "dir/deep/two", "three"] {
            fs::write(mnt.join(name), name).expect("write");
        }
        fs::set_permissions(mnt.join("three"), Permissions::from_mode(0o640)).expect("chmod");
        far.session(&["flush"]).succeeded();
        far.session(&["wait", "--remote", "--timeout", "60"]).succeeded();
        assert_eq!(fs::read_to_string(tree.join("dir/deep/two")).expect("read"), "dir/deep/two");
        assert_eq!(fs::metadata(tree.join("three")).expect("there").mode() & 0o7777, 0o640);
        for name in ["dir", "dir/deep", "dir/one", "three"] {
            assert_eq!(owner(&tree.join(name)), NOBODY, "{name}");
            until("it is shown as the origin has it", || owner(&mnt.join(name)) == NOBODY);
        }

        chown(mnt.join("three"), Some(1000), None).expect("chown");
        fs::write(mnt.join("dir/four"), "four").expect("write");
        let refusal = "the origin refuses the owner that three was given";
        far.session(&["wait", "--remote", "--timeout", "60"]).failed(1, &[refusal, "session flush"]);
        far.session(&["flush"]).failed(1, &[refusal, "kept"]);
        far.session(&["wait", "--remote"]).failed(1, &[refusal]);
        let shown = far.session(&["show"]);
        assert!(shown.out.contains("refused    1\n") && shown.out.contains(refusal), "{}", shown.out);
        assert_eq!(fs::read_to_string(tree.join("dir/four")).expect("read"), "four");
        for dir in [tree.clone(), tree.join("dir")] {
            assert_eq!(temporary_names(&dir), [""; 0]);
        }
        proxy.signal("TERM");
        assert_eq!(proxy.wait().code(), Some(1));
        let log = fs::read_to_string(far.place.0.path("log")).expect("read");
        assert!(log.contains(refusal), "{log}");

        far.stop_origin();
        far.squash = "none";
        far.start_origin();
        far.write_back().stop();
        assert_eq!(owner(&tree.join("three")), 1000);
    }
}

#[test]
fn an_origin_that_takes_nothing_is_refused_at_the_start() {
    let Some(mut far) = Far::new() else { return };
    far.stop_origin();
    let address = far.address.to_string();
    let words = [
        "serve",
        "tree",
        "--readonly",
        "--nfs",
        &address,
        "--state",
        "origin-state",
        "--control",
        "origin.sock",
    ];
    far.origin = Some(far.place.0.serve(&words, "ready control"));
    let proxy = format!(
        "proxy {} --cache cache --mode write-back --contract exclusive --no-lease --nfs 0",
        far.url("")
    );
    let tried = far.place.0.run(&proxy.split(' ').collect::<Vec<_>>());
    tried.failed(1, &["lets user 0 make no file", "--mode write-back"]);
}
