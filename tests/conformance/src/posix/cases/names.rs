//! Names, creation and opening.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::cases;
use crate::posix::World;
use crate::posix::world::errno;
use crate::report::{Skip, Verdict};

cases! { "names":
    created_names_are_found_and_removed_ones_are_not,
    names_are_any_bytes,
    a_name_of_255_bytes_is_a_name_and_one_of_256_is_none,
    a_file_is_no_directory,
    a_deep_path_resolves,
    exclusive_create_refuses_what_exists,
    open_flags_are_honoured,
    the_umask_is_taken_off,
    a_read_only_mode_does_not_bind_its_creator,
    an_unnamed_file_can_be_given_a_name,
    an_exclusive_unnamed_file_cannot,
    a_directory_that_is_not_empty_stays,
    a_directory_is_opened_for_reading_only,
    many_files_are_open_at_once,
}

fn created_names_are_found_and_removed_ones_are_not(w: &World) -> Verdict {
    let (file, dir) = (w.file_with("file", b"x"), w.mkdir("dir"));
    assert!(fs::metadata(&file).expect("stat").is_file());
    assert!(fs::metadata(&dir).expect("stat").is_dir());
    assert_eq!(w.names(), ["dir", "file"]);
    fs::remove_file(&file).expect("unlink");
    fs::remove_dir(&dir).expect("rmdir");
    assert_eq!(errno(fs::metadata(&file)), Errno::NOENT.raw_os_error());
    assert_eq!(errno(fs::metadata(&dir)), Errno::NOENT.raw_os_error());
    assert_eq!(errno(fs::remove_file(&file)), Errno::NOENT.raw_os_error());
    assert!(w.names().is_empty());
    Ok(())
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

fn a_name_of_255_bytes_is_a_name_and_one_of_256_is_none(w: &World) -> Verdict {
    let long = "x".repeat(255);
    w.file_with(&long, b"");
    assert_eq!(w.names(), std::slice::from_ref(&long));
    // FUSE passes names of up to 4,095 bytes to the server.
    for longer in [256, 2000].map(|len| "x".repeat(len)) {
        assert_eq!(errno(File::create(w.path(&longer))), Errno::NAMETOOLONG.raw_os_error());
        assert_eq!(errno(fs::metadata(w.path(&longer))), Errno::NAMETOOLONG.raw_os_error());
        assert_eq!(errno(fs::rename(w.path(&long), w.path(&longer))), Errno::NAMETOOLONG.raw_os_error());
    }
    Ok(())
}

fn a_file_is_no_directory(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    assert_eq!(errno(fs::metadata(file.join("name"))), Errno::NOTDIR.raw_os_error());
    assert_eq!(errno(File::create(file.join("name"))), Errno::NOTDIR.raw_os_error());
    assert_eq!(errno(fs::remove_dir(&file)), Errno::NOTDIR.raw_os_error());
    assert_eq!(errno(fs::remove_file(w.mkdir("dir"))), Errno::ISDIR.raw_os_error());
    Ok(())
}

fn a_deep_path_resolves(w: &World) -> Verdict {
    let mut path = w.dir.clone();
    for level in 0..60 {
        path.push(format!("level-{level}"));
        fs::create_dir(&path).expect("mkdir");
    }
    fs::write(path.join("file"), b"deep").expect("write");
    assert_eq!(fs::read(path.join("file")).expect("read"), b"deep");
    assert_eq!(fs::read(path.join("../level-59/./file")).expect("read"), b"deep");
    Ok(())
}

fn exclusive_create_refuses_what_exists(w: &World) -> Verdict {
    let file = w.file_with("file", b"kept");
    symlink("nowhere", w.path("link")).expect("symlink");
    for path in [&file, &w.path("link")] {
        let again = OpenOptions::new().write(true).create_new(true).open(path);
        assert_eq!(errno(again), Errno::EXIST.raw_os_error());
    }
    assert_eq!(errno(fs::create_dir(&file)), Errno::EXIST.raw_os_error());
    assert_eq!(fs::read(&file).expect("read"), b"kept");
    Ok(())
}

fn open_flags_are_honoured(w: &World) -> Verdict {
    let path = w.file_with("file", b"contents");
    let open = |flags: OFlags| rustix::fs::open(&path, flags, Mode::empty());
    assert_eq!(open(OFlags::RDONLY | OFlags::DIRECTORY).expect_err("no directory"), Errno::NOTDIR);
    let mut reader = File::from(open(OFlags::RDONLY).expect("open"));
    assert_eq!(errno(reader.write(b"x")), Errno::BADF.raw_os_error());
    let mut writer = File::from(open(OFlags::WRONLY).expect("open"));
    assert_eq!(errno(writer.read(&mut [0])), Errno::BADF.raw_os_error());
    symlink("file", w.path("link")).expect("symlink");
    let link = rustix::fs::open(w.path("link"), OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty());
    assert_eq!(link.expect_err("a link"), Errno::LOOP);
    let mut text = String::new();
    File::open(w.path("link")).expect("open").read_to_string(&mut text).expect("read");
    assert_eq!(text, "contents");
    open(OFlags::WRONLY | OFlags::TRUNC).expect("open");
    assert_eq!(fs::metadata(&path).expect("stat").len(), 0);
    Ok(())
}

fn the_umask_is_taken_off(w: &World) -> Verdict {
    let before = rustix::process::umask(Mode::from_bits_retain(0o027));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o777).open(w.path("file"));
    let dir = fs::create_dir(w.path("dir"));
    rustix::process::umask(before);
    assert_eq!(file.expect("create").metadata().expect("stat").mode() & 0o7777, 0o750);
    dir.expect("mkdir");
    assert_eq!(fs::metadata(w.path("dir")).expect("stat").mode() & 0o7777, 0o750);
    Ok(())
}

fn a_read_only_mode_does_not_bind_its_creator(w: &World) -> Verdict {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o400).open(w.path("file"));
    let mut file = file.expect("create");
    file.write_all(b"written").expect("write");
    assert_eq!(fs::read(w.path("file")).expect("read"), b"written");
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

fn a_directory_that_is_not_empty_stays(w: &World) -> Verdict {
    let dir = w.mkdir("dir");
    fs::write(dir.join("file"), b"").expect("write");
    let refused = errno(fs::remove_dir(&dir));
    assert!([Errno::NOTEMPTY, Errno::EXIST].map(Errno::raw_os_error).contains(&refused));
    fs::remove_file(dir.join("file")).expect("unlink");
    fs::remove_dir(&dir).expect("rmdir");
    Ok(())
}

fn a_directory_is_opened_for_reading_only(w: &World) -> Verdict {
    let dir = w.mkdir("dir");
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC] {
        let refused = rustix::fs::open(&dir, flags, Mode::empty()).expect_err("a directory");
        assert!(refused == Errno::ISDIR, "{refused}");
    }
    let mut file = File::open(&dir).expect("open");
    assert_eq!(errno(file.read(&mut [0])), Errno::ISDIR.raw_os_error());
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("chmod");
    Ok(())
}

fn many_files_are_open_at_once(w: &World) -> Verdict {
    let files: Vec<File> = (0..500)
        .map(|index| {
            let mut file = w.file(&format!("file-{index}"));
            file.write_all(index.to_string().as_bytes()).expect("write");
            file
        })
        .collect();
    for (index, file) in files.iter().enumerate() {
        use std::os::unix::fs::FileExt;
        let mut text = [0; 8];
        let count = file.read_at(&mut text, 0).expect("read");
        assert_eq!(&text[..count], index.to_string().as_bytes());
    }
    Ok(())
}
