//! Renaming.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::cases;
use crate::posix::World;
use crate::posix::world::{errno, names_in};
use crate::report::{Skip, Verdict};

cases! { "rename":
    a_name_moves,
    a_file_replaces_a_file,
    a_directory_replaces_an_empty_one,
    unlike_things_do_not_replace_each_other,
    a_directory_does_not_move_into_itself,
    two_names_of_one_file_stay,
    no_replace_refuses_what_exists,
    exchange_swaps_both_ways,
    a_moved_directory_knows_its_new_parent,
    open_files_follow_their_directory,
}

fn a_name_moves(w: &World) -> Verdict {
    let ino = fs::metadata(w.file_with("old", b"contents")).expect("stat").ino();
    let dir = w.mkdir("dir");
    fs::rename(w.path("old"), w.path("new")).expect("rename");
    assert_eq!(w.names(), ["dir", "new"]);
    fs::rename(w.path("new"), dir.join("newer")).expect("rename");
    assert_eq!((w.names(), names_in(&dir)), (vec!["dir".to_owned()], vec!["newer".to_owned()]));
    assert_eq!(fs::read(dir.join("newer")).expect("read"), b"contents");
    assert_eq!(fs::metadata(dir.join("newer")).expect("stat").ino(), ino);
    assert_eq!(errno(fs::rename(w.path("new"), w.path("x"))), Errno::NOENT.raw_os_error());
    Ok(())
}

fn a_file_replaces_a_file(w: &World) -> Verdict {
    let (new, old) = (w.file_with("new", b"new"), w.file_with("old", b"old"));
    fs::hard_link(&old, w.path("kept")).expect("link");
    fs::rename(&new, &old).expect("rename");
    assert_eq!(w.names(), ["kept", "old"]);
    assert_eq!(fs::read(&old).expect("read"), b"new");
    assert_eq!(fs::read(w.path("kept")).expect("read"), b"old");
    assert_eq!(fs::metadata(w.path("kept")).expect("stat").nlink(), 1);
    Ok(())
}

fn a_directory_replaces_an_empty_one(w: &World) -> Verdict {
    let (from, to) = (w.mkdir("from"), w.mkdir("to"));
    fs::write(from.join("inner"), b"").expect("write");
    fs::rename(&from, &to).expect("rename");
    assert_eq!((w.names(), names_in(&to)), (vec!["to".to_owned()], vec!["inner".to_owned()]));
    let other = w.mkdir("other");
    let refused = errno(fs::rename(&other, &to));
    assert!([Errno::NOTEMPTY, Errno::EXIST].map(Errno::raw_os_error).contains(&refused));
    Ok(())
}

fn unlike_things_do_not_replace_each_other(w: &World) -> Verdict {
    let (file, dir) = (w.file_with("file", b""), w.mkdir("dir"));
    assert_eq!(errno(fs::rename(&file, &dir)), Errno::ISDIR.raw_os_error());
    assert_eq!(errno(fs::rename(&dir, &file)), Errno::NOTDIR.raw_os_error());
    assert_eq!(w.names(), ["dir", "file"]);
    Ok(())
}

fn a_directory_does_not_move_into_itself(w: &World) -> Verdict {
    let outer = w.mkdir("outer");
    let inner = outer.join("inner");
    fs::create_dir(&inner).expect("mkdir");
    assert_eq!(errno(fs::rename(&outer, inner.join("x"))), Errno::INVAL.raw_os_error());
    let refused = errno(fs::rename(&inner, &outer));
    assert!([Errno::NOTEMPTY, Errno::EXIST].map(Errno::raw_os_error).contains(&refused));
    Ok(())
}

fn two_names_of_one_file_stay(w: &World) -> Verdict {
    let one = w.file_with("one", b"");
    fs::hard_link(&one, w.path("two")).expect("link");
    fs::rename(&one, w.path("two")).expect("rename does nothing");
    assert_eq!(w.names(), ["one", "two"]);
    Ok(())
}

fn rename_with(w: &World, from: &str, to: &str, flags: RenameFlags) -> Result<rustix::io::Result<()>, Skip> {
    match rustix::fs::renameat_with(CWD, w.path(from), CWD, w.path(to), flags) {
        // Flags unknown to the file system; the cases pass no contradictory ones.
        Err(Errno::INVAL | Errno::NOSYS) => Err(Skip("no such rename here".into())),
        outcome => Ok(outcome),
    }
}

fn no_replace_refuses_what_exists(w: &World) -> Verdict {
    w.file_with("old", b"old");
    w.file_with("other", b"other");
    let refused = rename_with(w, "old", "other", RenameFlags::NOREPLACE)?;
    assert_eq!(refused.expect_err("it exists"), Errno::EXIST);
    assert_eq!(fs::read(w.path("other")).expect("read"), b"other");
    rename_with(w, "old", "new", RenameFlags::NOREPLACE)?.expect("nothing is in the way");
    assert_eq!(w.names(), ["new", "other"]);
    Ok(())
}

fn exchange_swaps_both_ways(w: &World) -> Verdict {
    w.file_with("file", b"contents");
    fs::write(w.mkdir("dir").join("inner"), b"inner").expect("write");
    rename_with(w, "file", "dir", RenameFlags::EXCHANGE)?.expect("exchange");
    assert_eq!(fs::read(w.path("dir")).expect("read"), b"contents");
    assert_eq!(fs::read(w.path("file/inner")).expect("read"), b"inner");
    let missing = rename_with(w, "file", "missing", RenameFlags::EXCHANGE)?;
    assert_eq!(missing.expect_err("both are needed"), Errno::NOENT);
    Ok(())
}

fn a_moved_directory_knows_its_new_parent(w: &World) -> Verdict {
    let (from, to) = (w.mkdir("from"), w.mkdir("to"));
    fs::create_dir(from.join("dir")).expect("mkdir");
    fs::metadata(from.join("dir/..")).expect("stat");
    fs::rename(from.join("dir"), to.join("dir")).expect("rename");
    let parent = fs::metadata(to.join("dir/..")).expect("stat").ino();
    assert_eq!(parent, fs::metadata(&to).expect("stat").ino());
    Ok(())
}

fn open_files_follow_their_directory(w: &World) -> Verdict {
    use std::os::unix::fs::FileExt;
    let dir = w.mkdir("dir");
    let file = w.file("dir/file");
    let handle = fs::File::open(&dir).expect("open");
    fs::rename(&dir, w.path("renamed")).expect("rename");
    file.write_all_at(b"after", 0).expect("write");
    assert_eq!(fs::read(w.path("renamed/file")).expect("read"), b"after");
    rustix::fs::mkdirat(&handle, "new", rustix::fs::Mode::RWXU).expect("mkdirat");
    assert_eq!(names_in(&w.path("renamed")), ["file", "new"]);
    Ok(())
}
