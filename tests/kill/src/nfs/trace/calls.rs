//! The calls traced, one after the other.

use tombolo_nfs_tests::client::{New, Nfs, mode};
use tombolo_wire_nfs3::args::{CreateHow, MknodKind, StableHow};
use tombolo_wire_nfs3::{CreateVerifier, FileHandleBuf, Reply, Sattr3, SetTime3};

use super::Wanted;
use crate::failure::{Result, refused};

/// An answered call.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Description.
    pub what: &'static str,
    /// State that it must have made stable.
    pub wanted: Wanted,
}

/// The sequence of calls.
#[derive(Debug)]
pub struct Calls {
    nfs: Nfs,
    made: Vec<Made>,
}

impl Calls {
    /// Makes all calls; returns them in order.
    pub fn make_all(nfs: Nfs, export: &str) -> Result<Vec<Made>> {
        let root = nfs.root(export);
        let mut calls = Self { nfs, made: vec![Made { what: "MNT", wanted: Wanted::Nothing }] };
        let made = calls.nfs.mkdir(&root, b"dir", mode(0o755));
        let dir = calls.made("MKDIR", Wanted::Whole(""), made)?;
        let made = calls.nfs.mkdir(&root, b"other", mode(0o755));
        let other = calls.made("MKDIR", Wanted::Whole(""), made)?;
        let made = calls.nfs.create(&dir, b"file", CreateHow::Guarded(mode(0o755)));
        let file = calls.made("CREATE", Wanted::Whole("/dir"), made)?;
        calls.contents(&file)?;
        calls.attributes_of_new(&dir)?;
        calls.names(&dir, &other, &file)?;
        Ok(calls.made)
    }

    fn contents(&mut self, file: &FileHandleBuf) -> Result<()> {
        let writes = [
            ("WRITE, unstable", StableHow::Unstable, Wanted::Nothing),
            ("WRITE, data sync", StableHow::DataSync, Wanted::Data("/dir/file")),
            ("WRITE, file sync", StableHow::FileSync, Wanted::Whole("/dir/file")),
            ("WRITE, unstable", StableHow::Unstable, Wanted::Nothing),
        ];
        for (number, (what, stable, wanted)) in writes.into_iter().enumerate() {
            let written = self.nfs.write(file, 4000 * number as u64, &[number as u8; 5000], stable);
            self.done(what, wanted, written)?;
        }
        let committed = self.nfs.commit(file, 0, 0);
        self.done("COMMIT", Wanted::Data("/dir/file"), committed)?;
        let changes = [
            ("SETATTR of the mode", Sattr3 { mode: Some(0o600), ..Sattr3::default() }),
            ("SETATTR of the size", Sattr3 { size: Some(100), ..Sattr3::default() }),
        ];
        for (what, attributes) in changes {
            let set = self.nfs.setattr(file, attributes, None);
            self.done(what, Wanted::Whole("/dir/file"), set)?;
        }
        Ok(())
    }

    fn names(&mut self, dir: &FileHandleBuf, other: &FileHandleBuf, file: &FileHandleBuf) -> Result<()> {
        let made = self.nfs.symlink(dir, b"symlink", b"target", Sattr3::default());
        self.made("SYMLINK", Wanted::Whole("/dir"), made)?;
        let made = self.nfs.mknod(dir, b"fifo", MknodKind::Fifo(mode(0o755)));
        self.made("MKNOD", Wanted::Whole("/dir"), made)?;
        let made = self.nfs.mkdir(dir, b"sub", mode(0o755));
        self.made("MKDIR", Wanted::Whole("/dir"), made)?;

        let linked = self.nfs.link(file, other, b"link");
        self.done("LINK", Wanted::Whole("/other"), linked)?;
        let renamed = self.nfs.rename(dir, b"own", dir, b"renamed");
        self.done("RENAME", Wanted::Whole("/dir"), renamed)?;
        let renamed = self.nfs.rename(dir, b"renamed", other, b"own");
        self.done("RENAME to another directory", Wanted::Both("/dir", "/other"), renamed)?;
        let removed = self.nfs.remove(other, b"own");
        self.done("REMOVE", Wanted::Whole("/other"), removed)?;
        let removed = self.nfs.rmdir(dir, b"sub");
        self.done("RMDIR", Wanted::Whole("/dir"), removed).map(drop)
    }

    /// Makes calls that set attributes of a new node, which must be as stable as its name.
    fn attributes_of_new(&mut self, dir: &FileHandleBuf) -> Result<()> {
        let attributes = Sattr3 { mtime: SetTime3::Server, ..mode(0o755) };
        let sized = Sattr3 { size: Some(100), ..mode(0o755) };
        let verifier = CreateHow::Exclusive(CreateVerifier(*b"verifier"));
        let creates = [
            ("CREATE, exclusive", "/dir/own", verifier),
            ("CREATE with a size", "/dir/sized", CreateHow::Unchecked(sized)),
            ("CREATE with a time", "/dir/timed", CreateHow::Guarded(attributes)),
        ];
        for (what, path, how) in creates {
            let made = self.nfs.create(dir, &path.as_bytes()["/dir/".len()..], how);
            self.made(what, Wanted::Both("/dir", path), made)?;
        }
        let made = self.nfs.mkdir(dir, b"day", attributes);
        self.made("MKDIR with a time", Wanted::Both("/dir", "/dir/day"), made)?;
        let made = self.nfs.symlink(dir, b"way", b"target", attributes);
        self.made("SYMLINK with a time", Wanted::Both("/dir", "/dir/way"), made)?;
        let made = self.nfs.mknod(dir, b"pipe", MknodKind::Fifo(attributes));
        self.made("MKNOD with a time", Wanted::Both("/dir", "/dir/pipe"), made).map(drop)
    }

    fn made<F>(&mut self, what: &'static str, wanted: Wanted, made: Reply<New, F>) -> Result<FileHandleBuf> {
        self.done(what, wanted, made).map(|made| made.handle())
    }

    fn done<T, F>(&mut self, what: &'static str, wanted: Wanted, reply: Reply<T, F>) -> Result<T> {
        self.made.push(Made { what, wanted });
        match reply {
            Reply::Ok(results) => Ok(results),
            Reply::Failed(status, _) => refused(what, status),
        }
    }
}
