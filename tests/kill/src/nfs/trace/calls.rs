//! The calls traced, one after the other.

use tombolo_nfs_tests::client::mode;
use tombolo_wire_nfs3::args::{
    CommitArgs, CreateArgs, CreateHow, DirOpArgs, LinkArgs, MkdirArgs, MknodArgs, MknodKind, RenameArgs,
    SetattrArgs, StableHow, SymlinkArgs, WriteArgs,
};
use tombolo_wire_nfs3::results::{
    CommitReply, CreateReply, LinkReply, RemoveReply, RenameReply, SetattrReply, WriteReply,
};
use tombolo_wire_nfs3::{
    Call, CreateVerifier, Data, FileHandle, FileHandleBuf, Reply, Sattr3, SetTime3, Status,
};

use super::Wanted;
use crate::failure::{Failure, Result, refused};
use crate::nfs::client::{Answer, Client};

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
    client: Client,
    root: FileHandleBuf,
    made: Vec<Made>,
}

impl Calls {
    /// Creates the sequence for a client that has mounted the root already.
    pub fn new(client: Client, root: FileHandleBuf) -> Self {
        Self { client, root, made: vec![Made { what: "MNT", wanted: Wanted::Nothing }] }
    }

    /// Returns all answered calls.
    pub fn made(&self) -> &[Made] {
        &self.made
    }

    /// Makes all calls.
    pub fn make_all(&mut self) -> Result<()> {
        let root = self.root;
        let root = root.as_handle();
        let dir = self.new_node(
            "MKDIR",
            "/",
            &Call::Mkdir(MkdirArgs { location: at(root, "dir"), attributes: mode(0o755) }),
        )?;
        let other = self.new_node(
            "MKDIR",
            "/",
            &Call::Mkdir(MkdirArgs { location: at(root, "other"), attributes: mode(0o755) }),
        )?;
        let (dir, other) = (dir.as_handle(), other.as_handle());
        let how = CreateHow::Guarded(mode(0o755));
        let file =
            self.new_node("CREATE", "/dir", &Call::Create(CreateArgs { location: at(dir, "file"), how }))?;
        self.contents(file.as_handle())?;
        self.names(dir, other, file.as_handle())
    }

    fn contents(&mut self, file: FileHandle<'_>) -> Result<()> {
        let writes = [
            ("WRITE, unstable", StableHow::Unstable, Wanted::Nothing),
            ("WRITE, data sync", StableHow::DataSync, Wanted::Data("/dir/file")),
            ("WRITE, file sync", StableHow::FileSync, Wanted::Whole("/dir/file")),
            ("WRITE, unstable", StableHow::Unstable, Wanted::Nothing),
        ];
        for (number, (what, stable, wanted)) in writes.into_iter().enumerate() {
            let bytes = [number as u8; 5000];
            let (count, offset) = (bytes.len() as u32, 4000 * number as u64);
            let call = Call::Write(WriteArgs { file, offset, count, stable, data: Data::to_send(count) });
            let answer = self.answered(what, wanted, &call, &bytes)?;
            done(what, &answer.results::<WriteReply>()?)?;
        }
        let call = Call::Commit(CommitArgs { file, offset: 0, count: 0 });
        let answer = self.answered("COMMIT", Wanted::Data("/dir/file"), &call, &[])?;
        done("COMMIT", &answer.results::<CommitReply>()?)?;

        let changes = [
            ("SETATTR of the mode", Sattr3 { mode: Some(0o600), ..Sattr3::default() }),
            ("SETATTR of the size", Sattr3 { size: Some(100), ..Sattr3::default() }),
        ];
        for (what, attributes) in changes {
            let call = Call::Setattr(SetattrArgs { object: file, attributes, guard: None });
            let answer = self.answered(what, Wanted::Whole("/dir/file"), &call, &[])?;
            done(what, &answer.results::<SetattrReply>()?)?;
        }
        Ok(())
    }

    fn names(&mut self, dir: FileHandle<'_>, other: FileHandle<'_>, file: FileHandle<'_>) -> Result<()> {
        self.attributes_of_new(dir)?;
        let symlink =
            SymlinkArgs { location: at(dir, "symlink"), attributes: Sattr3::default(), target: b"target" };
        self.new_node("SYMLINK", "/dir", &Call::Symlink(symlink))?;
        let fifo = MknodArgs { location: at(dir, "fifo"), what: MknodKind::Fifo(mode(0o755)) };
        self.new_node("MKNOD", "/dir", &Call::Mknod(fifo))?;
        self.new_node(
            "MKDIR",
            "/dir",
            &Call::Mkdir(MkdirArgs { location: at(dir, "sub"), attributes: mode(0o755) }),
        )?;

        let call = Call::Link(LinkArgs { file, link: at(other, "link") });
        let answer = self.answered("LINK", Wanted::Whole("/other"), &call, &[])?;
        done("LINK", &answer.results::<LinkReply>()?)?;
        let renames = [
            ("RENAME", "renamed", dir, Wanted::Whole("/dir")),
            ("RENAME to another directory", "own", other, Wanted::Both("/dir", "/other")),
        ];
        let mut name = "own";
        for (what, new_name, to, wanted) in renames {
            let call = Call::Rename(RenameArgs { from: at(dir, name), to: at(to, new_name) });
            let answer = self.answered(what, wanted, &call, &[])?;
            done(what, &answer.results::<RenameReply>()?)?;
            name = new_name;
        }
        let answer =
            self.answered("REMOVE", Wanted::Whole("/other"), &Call::Remove(at(other, "own")), &[])?;
        done("REMOVE", &answer.results::<RemoveReply>()?)?;
        let answer = self.answered("RMDIR", Wanted::Whole("/dir"), &Call::Rmdir(at(dir, "sub")), &[])?;
        done("RMDIR", &answer.results::<RemoveReply>()?)
    }

    /// Makes calls that set attributes of a new node, which must be as stable as its name.
    fn attributes_of_new(&mut self, dir: FileHandle<'_>) -> Result<()> {
        let attributes = Sattr3 { mtime: SetTime3::Server, ..mode(0o755) };
        let sized = Sattr3 { size: Some(100), ..mode(0o755) };
        let verifier = CreateHow::Exclusive(CreateVerifier(*b"verifier"));
        let create = |name, how| Call::Create(CreateArgs { location: at(dir, name), how });
        let calls = [
            ("CREATE, exclusive", "/dir/own", create("own", verifier)),
            ("CREATE with a size", "/dir/sized", create("sized", CreateHow::Unchecked(sized))),
            ("CREATE with a time", "/dir/timed", create("timed", CreateHow::Guarded(attributes))),
            (
                "MKDIR with a time",
                "/dir/day",
                Call::Mkdir(MkdirArgs { location: at(dir, "day"), attributes }),
            ),
            (
                "SYMLINK with a time",
                "/dir/way",
                Call::Symlink(SymlinkArgs { location: at(dir, "way"), attributes, target: b"target" }),
            ),
            (
                "MKNOD with a time",
                "/dir/pipe",
                Call::Mknod(MknodArgs { location: at(dir, "pipe"), what: MknodKind::Fifo(attributes) }),
            ),
        ];
        for (what, path, call) in calls {
            self.made_node(what, Wanted::Both("/dir", path), &call)?;
        }
        Ok(())
    }

    /// Makes something in `parent`, which must be synced.
    fn new_node(
        &mut self,
        what: &'static str,
        parent: &'static str,
        call: &Call<'_>,
    ) -> Result<FileHandleBuf> {
        let parent = if parent == "/" { "" } else { parent };
        self.made_node(what, Wanted::Whole(parent), call)
    }

    fn made_node(&mut self, what: &'static str, wanted: Wanted, call: &Call<'_>) -> Result<FileHandleBuf> {
        let answer = self.answered(what, wanted, call, &[])?;
        match answer.results::<CreateReply<'_>>()? {
            Reply::Ok(made) => {
                let handle = made.object.map(FileHandle::to_owned);
                handle.ok_or_else(|| Failure::Wrong(format!("{what} returns no handle")))
            }
            Reply::Failed(status, _) => refused(what, status),
        }
    }

    fn answered(
        &mut self,
        what: &'static str,
        wanted: Wanted,
        call: &Call<'_>,
        data: &[u8],
    ) -> Result<Answer> {
        let message = self.client.nfs(call, data);
        let answer = self.client.exchange(&message)?;
        self.made.push(Made { what, wanted });
        Ok(answer)
    }
}

fn at<'a>(dir: FileHandle<'a>, name: &'a str) -> DirOpArgs<'a> {
    DirOpArgs { dir, name: name.as_bytes() }
}

fn done<T, F>(what: &str, reply: &Reply<T, F, Status>) -> Result<()> {
    match reply.status() {
        None => Ok(()),
        Some(&status) => refused(what, status),
    }
}
