//! Names: validity, look-up and removal.

use tombolo_core::Error;
use tombolo_core::fs::{Name, NewMode, OpenFlags};
use tombolo_test_support::{budget, name, plain};

use super::cases;
use crate::refused;
use crate::waist::{Verdict, World};

cases! { "names":
    a_missing_name_is_not_found,
    a_file_has_no_names_in_it,
    names_are_any_bytes,
    a_name_of_255_bytes_is_a_name,
    a_name_exists_once,
    a_removed_name_is_gone,
    unlink_refuses_a_directory,
    rmdir_refuses_what_is_not_an_empty_directory,
    a_removed_directory_takes_no_names,
    case_matters,
}

fn a_missing_name_is_not_found(w: &World) {
    refused!(w.lookup("nothing"), Error::NotFound);
    refused!(w.unlink("nothing"), Error::NotFound);
    refused!(w.rmdir("nothing"), Error::NotFound);
}

fn a_file_has_no_names_in_it(w: &World) {
    let file = w.file_with("file", b"x");
    refused!(w.lookup((file, "name")), Error::NotDirectory);
    refused!(w.mkdir((file, "name")), Error::NotDirectory);
    refused!(w.create((file, "name"), &plain()), Error::NotDirectory);
}

fn names_are_any_bytes(w: &World) -> Verdict {
    let names: [&[u8]; 6] =
        [b"a b", b"\xff\xfe\x01", b"...", b"-rf", "\u{e9}t\u{e9}".as_bytes(), b"new\nline"];
    for bytes in names {
        let name = Name::new(bytes).expect("a good name");
        let made = w.fs.mkdir(&w.cx, w.dir, name, NewMode::default()).wait().expect("mkdir");
        let found = w.fs.lookup(&w.cx, w.dir, name).wait().expect("lookup");
        assert_eq!(found.attr.fileid, made.entry.attr.fileid, "{name:?}");
    }
    let file = w.open(w.dir, OpenFlags::READ | OpenFlags::DIRECTORY).expect("open directory");
    let page = tombolo_core::fs::DirPage::new(budget(8192, false));
    let page = w.fs.readdir(&w.cx, file, tombolo_core::fs::Cookie::START, page).wait().expect("readdir");
    for bytes in names {
        assert!(page.iter().any(|entry| entry.name == bytes), "{} is not listed", bytes.escape_ascii());
    }
    w.release(file);
    Ok(())
}

fn a_name_of_255_bytes_is_a_name(w: &World) {
    let long = "x".repeat(255);
    w.file_with(&long, b"long");
    assert_eq!(w.names(w.dir), std::slice::from_ref(&long));
    w.unlink(&long).expect("unlink");
    assert!(!w.exists(&long));
}

fn a_name_exists_once(w: &World) {
    let file = w.file_with("name", b"");
    refused!(w.mkdir("name"), Error::Exists);
    refused!(w.symlink("name", b"target"), Error::Exists);
    refused!(w.link(file, "name"), Error::Exists);
    let mode = NewMode::default();
    let fifo = tombolo_core::fs::FileType::Fifo;
    refused!(w.fs.mknod(&w.cx, w.dir, name("name"), fifo, mode, Default::default()).wait(), Error::Exists);
    assert_eq!(w.names(w.dir), ["name"]);
}

fn a_removed_name_is_gone(w: &World) {
    w.file_with("file", b"x");
    w.dir("dir");
    w.unlink("file").expect("unlink");
    w.rmdir("dir").expect("rmdir");
    refused!(w.lookup("file"), Error::NotFound);
    refused!(w.lookup("dir"), Error::NotFound);
    assert_eq!(w.names(w.dir), Vec::<String>::new());
}

fn unlink_refuses_a_directory(w: &World) {
    w.dir("dir");
    // One is Linux's error, the other POSIX's.
    refused!(w.unlink("dir"), Error::IsDirectory | Error::NotPermitted);
    assert!(w.exists("dir"));
}

fn rmdir_refuses_what_is_not_an_empty_directory(w: &World) {
    w.file_with("file", b"");
    refused!(w.rmdir("file"), Error::NotDirectory);
    let dir = w.dir("dir");
    w.release(w.file((dir, "inner")));
    refused!(w.rmdir("dir"), Error::NotEmpty | Error::Exists);
    w.unlink((dir, "inner")).expect("unlink");
    w.rmdir("dir").expect("rmdir of an emptied directory");
}

fn a_removed_directory_takes_no_names(w: &World) {
    let dir = w.dir("dir");
    w.rmdir("dir").expect("rmdir");
    refused!(w.mkdir((dir, "late")), Error::NotFound | Error::Stale);
    refused!(w.create((dir, "late"), &plain()), Error::NotFound | Error::Stale);
    refused!(w.lookup((dir, "late")), Error::NotFound | Error::Stale);
}

fn case_matters(w: &World) {
    w.file_with("Name", b"upper");
    let lower = w.file_with("name", b"lower");
    assert_eq!(w.contents(lower), b"lower");
    assert_eq!(w.names(w.dir), ["Name", "name"]);
}
