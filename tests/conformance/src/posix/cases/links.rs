//! Hard links, symbolic links, fifos, sockets, devices.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

use super::cases;
use crate::posix::World;
use crate::posix::world::errno;
use crate::report::Verdict;

cases! { "links":
    two_names_are_one_file,
    the_last_name_takes_the_file_along,
    a_directory_has_one_name,
    an_open_file_survives_its_name,
    an_open_file_survives_being_replaced,
    an_open_directory_survives_its_name,
    a_symbolic_link_keeps_its_target,
    a_symbolic_link_leads_on,
    a_loop_of_links_ends,
    a_fifo_carries_bytes_between_processes,
    a_socket_accepts;
    root: a_device_keeps_its_number,
}

fn two_names_are_one_file(w: &World) -> Verdict {
    let first = w.file_with("first", b"shared");
    let second = w.mkdir("dir").join("second");
    fs::hard_link(&first, &second).expect("link");
    let (a, b) = (fs::metadata(&first).expect("stat"), fs::metadata(&second).expect("stat"));
    assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
    fs::write(&second, b"changed").expect("write");
    assert_eq!(fs::read(&first).expect("read"), b"changed");
    assert_eq!(errno(fs::hard_link(&first, &second)), Errno::EXIST.raw_os_error());
    Ok(())
}

fn the_last_name_takes_the_file_along(w: &World) -> Verdict {
    let first = w.file_with("first", b"still here");
    fs::hard_link(&first, w.path("second")).expect("link");
    fs::remove_file(&first).expect("unlink");
    assert_eq!(fs::metadata(w.path("second")).expect("stat").nlink(), 1);
    assert_eq!(fs::read(w.path("second")).expect("read"), b"still here");
    Ok(())
}

fn a_directory_has_one_name(w: &World) -> Verdict {
    let dir = w.mkdir("dir");
    assert_eq!(errno(fs::hard_link(dir, w.path("again"))), Errno::PERM.raw_os_error());
    Ok(())
}

fn an_open_file_survives_its_name(w: &World) -> Verdict {
    let file = w.file("file");
    file.write_all_at(b"before", 0).expect("write");
    fs::remove_file(w.path("file")).expect("unlink");
    assert!(w.names().is_empty());
    file.write_all_at(b" and after", 6).expect("write");
    let mut bytes = [0; 32];
    let count = file.read_at(&mut bytes, 0).expect("read");
    assert_eq!(&bytes[..count], b"before and after");
    let stat = file.metadata().expect("fstat");
    assert_eq!((stat.nlink(), stat.len()), (0, 16));
    file.set_len(3).expect("ftruncate");
    file.sync_all().expect("fsync");
    assert_eq!(file.metadata().expect("fstat").len(), 3);
    // A new file of that name is another node.
    w.file_with("file", b"new");
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), 3);
    assert_eq!(&bytes[..3], b"bef");
    Ok(())
}

fn an_open_file_survives_being_replaced(w: &World) -> Verdict {
    let old = w.file("file");
    old.write_all_at(b"old", 0).expect("write");
    let new = w.file_with("new", b"new");
    fs::rename(new, w.path("file")).expect("rename");
    let mut bytes = [0; 8];
    assert_eq!(old.read_at(&mut bytes, 0).expect("read"), 3);
    assert_eq!(&bytes[..3], b"old");
    assert_eq!(fs::read(w.path("file")).expect("read"), b"new");
    Ok(())
}

fn an_open_directory_survives_its_name(w: &World) -> Verdict {
    let dir = w.mkdir("dir");
    let open = File::open(&dir).expect("open");
    fs::remove_dir(&dir).expect("rmdir");
    assert!(open.metadata().expect("fstat").is_dir());
    let made = rustix::fs::mkdirat(&open, "inner", Mode::RWXU);
    assert_eq!(made.expect_err("a removed directory"), Errno::NOENT);
    Ok(())
}

fn a_symbolic_link_keeps_its_target(w: &World) -> Verdict {
    for (index, target) in ["../else/where", "/", &"t".repeat(4000)].into_iter().enumerate() {
        let link = w.path(&format!("link-{index}"));
        symlink(target, &link).expect("symlink");
        assert_eq!(fs::read_link(&link).expect("readlink").to_str(), Some(target));
        let stat = fs::symlink_metadata(&link).expect("lstat");
        assert!(stat.is_symlink());
        assert_eq!(stat.len(), target.len() as u64);
    }
    assert_eq!(errno(fs::read_link(&w.dir)), Errno::INVAL.raw_os_error());
    Ok(())
}

fn a_symbolic_link_leads_on(w: &World) -> Verdict {
    let dir = w.mkdir("dir");
    fs::write(dir.join("file"), b"through").expect("write");
    symlink("dir", w.path("to-dir")).expect("symlink");
    symlink("to-dir/file", w.path("to-file")).expect("symlink");
    assert_eq!(fs::read(w.path("to-file")).expect("read"), b"through");
    fs::write(w.path("to-file"), b"written").expect("write");
    assert_eq!(fs::read(dir.join("file")).expect("read"), b"written");
    fs::remove_file(w.path("to-file")).expect("unlink removes the link");
    assert!(dir.join("file").exists());
    symlink("nowhere", w.path("dangling")).expect("symlink");
    assert_eq!(errno(File::open(w.path("dangling"))), Errno::NOENT.raw_os_error());
    Ok(())
}

fn a_loop_of_links_ends(w: &World) -> Verdict {
    symlink("b", w.path("a")).expect("symlink");
    symlink("a", w.path("b")).expect("symlink");
    assert_eq!(errno(fs::metadata(w.path("a"))), Errno::LOOP.raw_os_error());
    Ok(())
}

fn a_fifo_carries_bytes_between_processes(w: &World) -> Verdict {
    let path = w.path("fifo");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("mkfifo");
    assert!(fs::symlink_metadata(&path).expect("lstat").file_type().is_fifo());
    let writer = w.background(&["fifo-write", &path.to_string_lossy(), "through the fifo"]);
    let mut text = String::new();
    File::open(&path).expect("open").read_to_string(&mut text).expect("read");
    writer.finish();
    assert_eq!(text, "through the fifo");
    Ok(())
}

fn a_socket_accepts(w: &World) -> Verdict {
    // Socket paths are limited in length; the directory's is not.
    let name = w.path("socket");
    if name.as_os_str().len() > 100 {
        return Err(crate::report::Skip("the directory's path is too long for a socket".into()));
    }
    let listener = UnixListener::bind(&name).expect("bind");
    assert!(fs::symlink_metadata(&name).expect("lstat").file_type().is_socket());
    let _client = UnixStream::connect(&name).expect("connect");
    listener.accept().expect("accept");
    Ok(())
}

fn a_device_keeps_its_number(w: &World) -> Verdict {
    let rdev = rustix::fs::makedev(259, 70_000);
    let path = w.path("device");
    match rustix::fs::mknodat(CWD, &path, FileType::BlockDevice, Mode::RUSR, rdev) {
        Ok(()) => {}
        Err(Errno::PERM) => return Err(crate::report::Skip("no devices may be made here".into())),
        Err(error) => panic!("{error}"),
    }
    let stat = fs::symlink_metadata(&path).expect("lstat");
    assert!(stat.file_type().is_block_device());
    assert_eq!(stat.rdev(), rdev);
    Ok(())
}
