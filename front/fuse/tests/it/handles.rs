//! File handles of the mount (name_to_handle_at(2)), valid after the kernel has forgotten the files.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tombolo_back_local_dir::LocalDir;
use tombolo_front_fuse::dev::Options;
use tombolo_sys::Errno;
use tombolo_sys::handle::FileHandle;
use tombolo_sys::open::OpenFlags;

use crate::common::Mounted;

fn handle(path: &Path) -> FileHandle {
    FileHandle::of(File::open(path).unwrap().as_fd()).unwrap().0
}

fn opened(root: &File, handle: &FileHandle) -> Result<File, Errno> {
    handle.open(root.as_fd(), OpenFlags::RDONLY).map(|descriptor: OwnedFd| File::from(descriptor))
}

/// Makes the kernel forget files that are not open: remounting empties the cache of names.
fn forget(mount: &Path) {
    rustix::mount::mount_remount(mount, rustix::mount::MountFlags::empty(), "").unwrap();
    // Forgets have no replies to wait for.
    std::thread::sleep(std::time::Duration::from_millis(50));
}

#[test]
fn mount_handle_resolves_after_forget_or_is_stale() {
    let beneath = tempfile::tempdir().unwrap();
    let export = LocalDir::open(beneath.path(), Default::default()).unwrap();
    let dir = Mounted::new(&export, &Options::default());
    let at = |name: &str| dir.at(name);
    fs::create_dir_all(at("outer/inner")).unwrap();
    for name in ["kept", "gone", "outer/inner/file"] {
        fs::write(at(name), name).unwrap();
    }
    let names = ["kept", "gone", "outer", "outer/inner", "outer/inner/file"];
    let handles = names.map(|name| handle(&at(name)));
    let number = fs::metadata(at("kept")).unwrap().ino();
    let root = File::open(dir.path()).unwrap();

    for _ in 0..3 {
        forget(dir.path());
        let [kept, gone, _, inner, deep] = &handles;
        for (handle, content) in [(kept, "kept"), (gone, "gone"), (deep, "outer/inner/file")] {
            let mut text = String::new();
            opened(&root, handle).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, content);
        }
        // The directory is connected to the root by names.
        let inner = opened(&root, inner).unwrap();
        let path =
            fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&inner))).unwrap();
        assert_eq!(path, at("outer/inner"));
        assert_eq!(opened(&root, kept).unwrap().metadata().unwrap().ino(), number);
        assert_eq!(fs::read_to_string(at("kept")).unwrap(), "kept");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "the root is what it was");
    }

    // Another file, probably with the same inode number.
    forget(dir.path());
    fs::remove_file(beneath.path().join("gone")).unwrap();
    fs::write(beneath.path().join("other"), "other").unwrap();
    fs::read(at("other")).unwrap();
    forget(dir.path());
    assert_eq!(opened(&root, &handles[1]).unwrap_err(), Errno::STALE);
    opened(&root, &handles[0]).unwrap();
}
