//! A mount on this host, used by programs that know nothing of it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use tombolo_back_memory::Memory;
use tombolo_core::fs::SessionId;
use tombolo_front_fuse::dev::{Mount, Options};
use tombolo_front_fuse::session::Coherence;

/// A memory file system, mounted for as long as this lives.
struct Mounted {
    mount: Mount,
    dir: TempDir,
}

impl Mounted {
    fn new(coherence: Coherence) -> Mounted {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { coherence, ..Default::default() };
        let mount = Mount::start(&Memory::default(), SessionId(1), dir.path(), &options).unwrap();
        Mounted { mount, dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.mount.unmount().unwrap();
        self.mount.wait();
    }
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_tree_is_copied_in_listed_read_and_removed() {
    for coherence in [Coherence::Strict, Coherence::Auto, Coherence::Always] {
        let mounted = Mounted::new(coherence);
        let tree = mounted.path().join("tree");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        run("cp", &["-a", source.to_str().unwrap(), tree.to_str().unwrap()]);
        run("diff", &["-r", source.to_str().unwrap(), tree.to_str().unwrap()]);
        assert!(run("ls", &["-la", tree.to_str().unwrap()]).contains("session"));
        assert!(run("cat", &[tree.join("lib.rs").to_str().unwrap()]).contains("FUSE front end"));
        run("rm", &["-r", tree.to_str().unwrap()]);
        assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 0);
    }
}

#[test]
fn large_files_come_back_as_they_went() {
    let mounted = Mounted::new(Coherence::Auto);
    let file = mounted.path().join("large");
    let data: Vec<u8> =
        (0..5_000_001u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&file, &data).unwrap();
    assert!(fs::read(&file).unwrap() == data);
    assert_eq!(fs::metadata(&file).unwrap().len(), data.len() as u64);
}

#[test]
fn links_modes_and_names_keep_their_meaning() {
    let mounted = Mounted::new(Coherence::Auto);
    let at = |name: &str| mounted.path().join(name);
    fs::write(at("file"), b"x").unwrap();
    fs::hard_link(at("file"), at("second")).unwrap();
    assert_eq!(fs::metadata(at("second")).unwrap().nlink(), 2);
    symlink("file", at("link")).unwrap();
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("file"));
    assert_eq!(fs::read(at("link")).unwrap(), b"x");
    fs::set_permissions(at("file"), fs::Permissions::from_mode(0o604)).unwrap();
    assert_eq!(fs::metadata(at("second")).unwrap().mode() & 0o7777, 0o604);
    fs::rename(at("second"), at("third")).unwrap();
    assert!(!at("second").exists());
    let long = "x".repeat(256);
    let error = fs::metadata(at(&long)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(36), "ENAMETOOLONG: {error}");
    assert!(fs::create_dir(at(&"x".repeat(255))).is_ok());
}

#[test]
fn a_mount_in_use_is_detached_and_served_to_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let mount = Mount::start(&Memory::default(), SessionId(1), dir.path(), &Options::default()).unwrap();
    fs::write(dir.path().join("file"), b"still here").unwrap();
    let open = fs::File::open(dir.path().join("file")).unwrap();
    assert!(!mount.unmount().unwrap(), "it is in use");
    assert!(!dir.path().join("file").exists());
    assert_eq!(std::io::read_to_string(&open).unwrap(), "still here");
    drop(open);
    mount.wait();
}
