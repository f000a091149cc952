//! One client's load: random operations in a part of the tree of its own, each answer held against what was
//! acknowledged before. That a retried operation took effect once shows in its answer (a second `mkdir` would
//! say EXIST), in what is looked up later, and in the tree in the end.

mod data;
mod history;
mod model;
mod names;

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_nfs_tests::client::mode;
use tombolo_wire_nfs3::args::{DirOpArgs, MkdirArgs};
use tombolo_wire_nfs3::results::{CreateReply, GetattrReply};
use tombolo_wire_nfs3::{Call, FileHandle, FileHandleBuf, Reply};
use tombolo_wire_xdr::Decode;

use crate::failure::{Failure, Result, refused, wrong};
use crate::nfs::client::{Answer, Client};
use fastrand::Rng;
use history::History;
pub use model::{Dir, Entry, File, FileId};

/// Directories of a worker that stay.
const DIRS: usize = 3;
/// Names in each, few, so that what is removed soon is there again: a removal that runs twice then does harm.
const NAMES: usize = 10;
/// One in so many steps repeats an older call.
const REPEAT_ONCE_IN: usize = 25;

/// A client and what it knows.
#[derive(Debug)]
pub struct Worker {
    /// The name of its directory in the export.
    pub name: String,
    client: Client,
    random: Rng,
    dirs: Vec<Dir>,
    files: Vec<Option<File>>,
    history: History,
    /// Older calls that were repeated.
    pub repeated: u64,
}

impl Worker {
    /// Makes its directories below `root`.
    pub fn new(number: usize, root: FileHandle<'_>, client: Client, random: Rng) -> Result<Self> {
        let name = format!("worker-{number}");
        let history = History::default();
        let mut worker =
            Self { name, client, random, dirs: Vec::new(), files: Vec::new(), history, repeated: 0 };
        let name = worker.name.clone();
        let own = worker.make_dir(root, &name)?;
        for number in 0..DIRS {
            let name = format!("d{number}");
            let handle = worker.make_dir(own.as_handle(), &name)?;
            worker.dirs.push(Dir { name, handle, entries: Default::default() });
        }
        Ok(worker)
    }

    /// Works until told to stop; then makes everything stable.
    pub fn run(&mut self, stop: &Arc<AtomicBool>) -> Result<()> {
        let steps = |worker: &mut Self| {
            while !stop.load(Ordering::Relaxed) {
                worker.step()?;
            }
            (0..worker.files.len()).try_for_each(|file| worker.commit(FileId(file)))
        };
        steps(self).inspect_err(|_| stop.store(true, Ordering::Relaxed))
    }

    fn step(&mut self) -> Result<()> {
        if self.random.usize(..REPEAT_ONCE_IN) == 0 {
            return self.repeat_older_call();
        }
        let (dir, name) = self.place();
        match self.dirs[dir].entries.get(&name).cloned() {
            None => self.fill(dir, name),
            Some(Entry::File(file)) => self.use_file(dir, name, file),
            Some(entry) => self.use_other(dir, &name, &entry),
        }
    }

    fn place(&mut self) -> (usize, String) {
        (self.random.usize(..DIRS), format!("n{}", self.random.usize(..NAMES)))
    }

    /// The directories that stay, for the comparison in the end.
    pub fn dirs(&self) -> &[Dir] {
        &self.dirs
    }

    /// A file by its number.
    pub fn file(&self, file: FileId) -> Result<&File> {
        self.files
            .get(file.0)
            .and_then(Option::as_ref)
            .ok_or_else(|| Failure::Wrong(format!("{file:?} is gone")))
    }

    fn file_mut(&mut self, file: FileId) -> Result<&mut File> {
        let slot = self.files.get_mut(file.0).and_then(Option::as_mut);
        slot.ok_or_else(|| Failure::Wrong(format!("{file:?} is gone")))
    }

    /// Every handle that it holds still leads to the node it was given for: asks for the attributes, and
    /// returns the nodes' numbers with their paths.
    pub fn numbers(&mut self) -> Result<Vec<(String, u64)>> {
        let mut nodes = Vec::new();
        for dir in &self.dirs {
            nodes.push((dir.name.clone(), dir.handle));
            for (name, entry) in &dir.entries {
                let handle = match entry {
                    Entry::File(file) => self.file(*file)?.handle,
                    Entry::Symlink(handle, _) | Entry::Dir(handle) => *handle,
                };
                nodes.push((format!("{}/{name}", dir.name), handle));
            }
        }
        let mut numbers = Vec::new();
        for (path, handle) in nodes {
            let answer = self.call(&Call::Getattr(handle.as_handle()), &[])?;
            match answer.results::<GetattrReply>()? {
                Reply::Ok(attributes) => numbers.push((format!("{}/{path}", self.name), attributes.fileid)),
                Reply::Failed(status, ()) => {
                    return refused(format!("GETATTR {path}"), status);
                }
            }
        }
        Ok(numbers)
    }

    /// The client, for its counters.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// The last calls and what was answered.
    pub fn story(&self) -> String {
        let mut text = format!("the last calls of {}:\n", self.name);
        for line in self.history.lines() {
            writeln!(text, "  {line}").ok();
        }
        text
    }

    /// Makes a call, and writes it down.
    fn call(&mut self, call: &Call<'_>, data: &[u8]) -> Result<Answer> {
        let message = self.client.nfs(call, data);
        self.history.begin(&message, call);
        let answer = self.client.exchange(&message)?;
        self.history.end(&answer)?;
        Ok(answer)
    }

    /// Makes a call that must succeed. It may be repeated later.
    fn change<'a, T: Decode<'a> + 'a, F: Decode<'a> + 'a>(
        &mut self,
        call: &Call<'_>,
        answer: &'a mut Option<Answer>,
    ) -> Result<T> {
        let message = self.client.nfs(call, &[]);
        self.history.begin(&message, call);
        let received = answer.insert(self.client.exchange(&message)?);
        self.history.end(received)?;
        match received.results::<Reply<T, F>>()? {
            Reply::Ok(results) => {
                self.history.keep(message, call.procedure());
                Ok(results)
            }
            Reply::Failed(status, _) => {
                let doing = format!("{:?}, sent {} times", call.procedure(), received.sends);
                refused(doing, status)
            }
        }
    }

    fn make_dir(&mut self, dir: FileHandle<'_>, name: &str) -> Result<FileHandleBuf> {
        let location = DirOpArgs { dir, name: name.as_bytes() };
        let call = Call::Mkdir(MkdirArgs { location, attributes: mode(0o755) });
        let answer = self.call(&call, &[])?;
        match answer.results::<CreateReply<'_>>()? {
            Reply::Ok(made) => handle_of(made.object),
            Reply::Failed(status, _) => refused(format!("MKDIR, sent {} times", answer.sends), status),
        }
    }
}

/// The handle of what was made. A server may leave it out; ours never does.
fn handle_of(object: Option<FileHandle<'_>>) -> Result<FileHandleBuf> {
    match object {
        Some(handle) => Ok(handle.to_owned()),
        None => wrong("no handle of what was made"),
    }
}
