//! Names, creation and opening.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::cases;
use crate::posix::World;
use crate::report::{Skip, Verdict};

cases! { "names":
    names_are_any_bytes,
    an_unnamed_file_can_be_given_a_name,
    an_exclusive_unnamed_file_cannot,
    many_files_are_open_at_once,
}

fn names_are_any_bytes(w: &World) -> Verdict {
    for bytes in [&b"a b"[..], b"\xff\xfe\x01", b"...", b"-rf", b"new\nline", b"\\"] {
        let path = w.dir.join(std::ffi::OsStr::from_bytes(bytes));
        File::create(&path).expect("create");
        assert!(fs::metadata(&path).expect("stat").is_file());
        let listed = fs::read_dir(&w.dir).expect("readdir");
        assert!(listed.map(|entry| entry.expect("an entry")).any(|entry| entry.path() == path));
        fs::remove_file(&path).expect("unlink");
    }
    Ok(())
}

fn unnamed(w: &World, flags: OFlags) -> Result<File, Skip> {
    let mode = Mode::from_bits_retain(0o644);
    match rustix::fs::open(&w.dir, OFlags::TMPFILE | OFlags::RDWR | flags, mode) {
        Ok(fd) => Ok(File::from(fd)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => Err(Skip("no O_TMPFILE here".into())),
        Err(error) => panic!("{error}"),
    }
}

fn link_by_descriptor(w: &World, file: &File, name: &str) -> rustix::io::Result<()> {
    use std::os::fd::AsRawFd;
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, from, CWD, w.path(name), AtFlags::SYMLINK_FOLLOW)
}

fn an_unnamed_file_can_be_given_a_name(w: &World) -> Verdict {
    let mut file = unnamed(w, OFlags::empty())?;
    file.write_all(b"prepared").expect("write");
    assert_eq!(file.metadata().expect("stat").nlink(), 0);
    assert!(w.names().is_empty());
    link_by_descriptor(w, &file, "name").expect("linkat");
    assert_eq!(fs::read(w.path("name")).expect("read"), b"prepared");
    assert_eq!(fs::metadata(w.path("name")).expect("stat").nlink(), 1);
    Ok(())
}

fn an_exclusive_unnamed_file_cannot(w: &World) -> Verdict {
    let file = unnamed(w, OFlags::EXCL)?;
    assert_eq!(link_by_descriptor(w, &file, "name").expect_err("exclusive"), Errno::NOENT);
    assert!(w.names().is_empty());
    Ok(())
}

fn many_files_are_open_at_once(w: &World) {
    let files: Vec<File> = (0..500)
        .map(|index| {
            let mut file = w.file(&format!("file-{index}"));
            file.write_all(index.to_string().as_bytes()).expect("write");
            file
        })
        .collect();
    for (index, file) in files.iter().enumerate() {
        let mut text = [0; 8];
        let count = file.read_at(&mut text, 0).expect("read");
        assert_eq!(&text[..count], index.to_string().as_bytes());
    }
}
