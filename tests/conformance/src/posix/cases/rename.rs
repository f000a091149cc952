//! Renaming.

use std::fs;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::cases;
use crate::posix::World;
use crate::report::{Skip, Verdict};

cases! { "rename":
    no_replace_refuses_what_exists,
    exchange_swaps_both_ways,
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
