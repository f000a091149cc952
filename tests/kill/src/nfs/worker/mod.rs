//! One client's load: random operations in its own part of the tree, each answer compared with what was
//! acknowledged before. Double execution of a retried operation shows in its answer (a second `mkdir` fails
//! with EXIST), in later look-ups, and in the final tree.

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

/// Number of a worker's permanent directories.
const DIRS: usize = 3;
/// Number of names in each; few, so that removed names soon exist again and a repeated removal does harm.
const NAMES: usize = 10;
/// Mean number of steps between repetitions of an older call.
const REPEAT_ONCE_IN: usize = 25;

/// A client with its model of the tree.
#[derive(Debug)]
pub struct Worker {
    /// The name of its directory in the export.
    pub name: String,
    client: Client,
    random: Rng,
    dirs: Vec<Dir>,
    files: Vec<Option<File>>,
    history: History,
    /// Count of repeated older calls.
    pub repeated: u64,
}

impl Worker {
    /// Creates its directories below `root`.
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

    /// Performs steps until `stop` is set; then makes everything stable.
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

    /// Returns the permanent directories, for the final comparison.
    pub fn dirs(&self) -> &[Dir] {
        &self.dirs
    }

    /// Returns a file by its number.
    pub fn file(&self, file: FileId) -> Result<&File> {
        self.files
            .get(file.0)
            .and_then(Option::as_ref)
            .ok_or_else(|| Failure::Wrong(format!("{file:?} does not exist")))
    }

    fn file_mut(&mut self, file: FileId) -> Result<&mut File> {
        let slot = self.files.get_mut(file.0).and_then(Option::as_mut);
        slot.ok_or_else(|| Failure::Wrong(format!("{file:?} does not exist")))
    }

    /// Checks that every handle still leads to its node: fetches the attributes, and returns file numbers
    /// with paths.
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

    /// Returns the client, for its counters.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the most recent calls and their answers.
    pub fn story(&self) -> String {
        let mut text = format!("the last calls of {}:\n", self.name);
        for line in self.history.lines() {
            writeln!(text, "  {line}").ok();
        }
        text
    }

    /// Makes a call and records it.
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

/// Returns the handle of a new object. The protocol allows a server to omit it; Tombolo never does.
fn handle_of(object: Option<FileHandle<'_>>) -> Result<FileHandleBuf> {
    match object {
        Some(handle) => Ok(handle.to_owned()),
        None => wrong("no handle of the new object"),
    }
}
