//! A directory at the target while something is copied into it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use tombolo_core::fs::{Attr, Create, Exclusive, FileType, Mode, Name, NameBuf, NewMode, NodeId, OpenFlags};
use tombolo_core::{Error, lock};

use crate::above::contains_itself;
use crate::node::Node;
use crate::path::joined;
use crate::tree::is_same_file;

use super::Work;
use super::attributes;
use super::event::{Event, Failure, Step};

/// Permission bits of the owner while a directory is filled: without them it could not be searched or
/// written.
const OWNER_ALL: u32 = 0o700;

/// A directory at the target. Dropping the last reference finishes it: its attributes are set after those of
/// all its descendants, as each new name in it changes its time.
pub(super) struct Directory {
    work: Arc<Work>,
    /// `None` for the directory that the copy was given.
    up: Option<Arc<Directory>>,
    /// Last part of the source's path in reports: the user's path for the top directory of a source, the name
    /// for those below it, empty for the directory that the copy was given.
    from: Vec<u8>,
    /// Last part of the target's path in reports: the user's path for the directory that the copy was given,
    /// else the name.
    to: Vec<u8>,
    /// Target directory; `None` once it is being finished.
    node: Option<Node>,
    /// `true` if this copy made the target directory, so that nothing existed in it before.
    pub is_new: bool,
    /// Attributes of the source, if the target gets attributes when it is finished.
    attr: Option<Attr>,
    /// Name of the file in the target that marks it as unfinished, if there may be one.
    unfinished: Option<NameBuf>,
    /// Attributes of the target of this source's top directory. A source that contains its target is
    /// recognised by them: the walk of the source meets a directory with the same file number.
    first: Arc<OnceLock<Attr>>,
    /// The source's directory, if any.
    source: Option<Source>,
    pub depth: u32,
}

/// The source directories that are being copied, with the number of copies of each in progress.
#[derive(Debug, Default)]
pub(super) struct Entered(Mutex<HashMap<NodeId, u32>>);

/// Registration of a source directory in [`Entered`], until dropped. `dir` keeps the directory's number from
/// being reused.
struct Source {
    work: Arc<Work>,
    dir: Node,
}

impl Directory {
    /// Returns a directory for `node`, an existing one that a source is copied into.
    pub fn top(work: Arc<Work>, node: Node, path: Vec<u8>) -> Self {
        Self {
            work,
            up: None,
            from: Vec::new(),
            to: path,
            node: Some(node),
            is_new: false,
            attr: None,
            unfinished: None,
            first: Arc::default(),
            source: None,
            depth: 0,
        }
    }

    /// Changes this directory into the copy of `from` itself, for copying the contents of a directory.
    pub async fn for_contents(mut self, from: &Node, path: Vec<u8>) -> Self {
        self.from = path;
        self.source = Some(self.work.begin_directory(from).0);
        if let Some(node) = &self.node
            && let Ok(attr) = node.attr().await
        {
            let _ = self.first.set(attr);
        }
        self
    }

    /// Returns the target directory's node; `None` once the directory is being finished.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Makes a directory for the copy of `from` in this one, or enters the existing one.
    pub async fn make(
        self: &Arc<Self>,
        from: &Node,
        attr: Attr,
        from_path: Option<&[u8]>,
        name: Name<'_>,
        unfinished: Option<NameBuf>,
    ) -> Result<Arc<Self>, Failure> {
        let from_name = from_path.unwrap_or(name.as_bytes());
        let fail = |step| move |error| self.failure(from_name, name, step, error);
        let dir = self.node.as_ref().ok_or(Error::Stale).map_err(fail(Step::Make))?;
        if self.first.get().is_some_and(|first| is_same_file((from.tree(), &attr), (dir.tree(), first))) {
            return Err(self.failure(from_name, name, Step::IntoItself, Error::InvalidArgument));
        }
        let (source, is_met) = self.work.begin_directory(from);
        if is_met && self.is_in(from) {
            return Err(self.failure(from_name, name, Step::Read, contains_itself()));
        }
        let mode = Mode::new(attr.mode.bits() & 0o777 | OWNER_ALL);
        let (node, is_new) = match dir.make_dir(name, mode).resolve().await {
            Ok(node) => (node, true),
            Err(Error::Exists) => (dir.find(name).resolve().await.map_err(fail(Step::Make))?, false),
            Err(error) => return Err(self.failure(from_name, name, Step::Make, error)),
        };
        let made = node.attr().await.map_err(fail(Step::Make))?;
        if made.file_type != FileType::Directory {
            return Err(self.failure(from_name, name, Step::OtherKind, Error::NotDirectory));
        }
        // Only the first directory of a source sets this; its descendants find it set.
        let _ = self.first.set(made);
        self.work.counters.directories.increment();
        if is_new {
            self.tell_copied(from_path, name);
        }
        if is_new && let Some(unfinished) = &unfinished {
            self.say_unfinished(&node, unfinished.as_name()).await;
        }
        let wants = attributes::of_directory(&self.work.options, &attr, is_new);
        Ok(Arc::new(Self {
            work: self.work.clone(),
            up: Some(self.clone()),
            from: from_name.to_vec(),
            to: name.as_bytes().to_vec(),
            node: Some(node),
            is_new,
            attr: wants.then_some(attr),
            unfinished: unfinished.filter(|_| is_new || self.work.options.resume),
            first: self.first.clone(),
            source: Some(source),
            depth: self.depth + 1,
        }))
    }

    /// Creates the file that marks the directory as unfinished.
    async fn say_unfinished(&self, node: &Node, name: Name<'_>) {
        let mode = NewMode { mode: Mode::new(0o600), umask: Mode::new(0) };
        let how = Create { mode, flags: OpenFlags::WRITE, exclusive: Exclusive::Yes };
        // Without this file, a repeated command would copy into the directory instead of completing it.
        if let Err(error) = node.create(name, how).await {
            tracing::debug!(%error, "the copy cannot be marked as unfinished");
        }
    }

    /// Reports a copy to a name in this directory, if [`Options::tell_each`](super::Options) requests that.
    pub fn tell_copied(&self, from_path: Option<&[u8]>, name: Name<'_>) {
        if self.work.options.tell_each {
            let from = self.path(from_path.unwrap_or(name.as_bytes()), |dir| &dir.from);
            self.work.observer.see(Event::Copied { from, to: self.to_path(name) });
        }
    }

    /// Returns `true` if this is the copy of `source`, or lies in it.
    fn is_in(&self, source: &Node) -> bool {
        let mut next = Some(self);
        while let Some(dir) = next {
            if dir.source.as_ref().is_some_and(|above| above.is(source)) {
                return true;
            }
            next = dir.up.as_deref();
        }
        false
    }

    /// Returns a failure of an entry of this directory. `from` is its name, or at the top its path.
    pub fn failure(&self, from: &[u8], to: Name<'_>, step: Step, error: Error) -> Failure {
        Failure { from: self.path(from, |dir| &dir.from), to: self.to_path(to), step, error }
    }

    /// Returns a failure of this directory itself.
    pub fn own_failure(&self, step: Step, error: Error) -> Failure {
        let to = self.path(&[], |dir| &dir.to);
        Failure { from: self.path(&[], |dir| &dir.from), to, step, error }
    }

    pub fn to_path(&self, name: Name<'_>) -> Vec<u8> {
        self.path(name.as_bytes(), |dir| &dir.to)
    }

    fn path(&self, name: &[u8], part: impl Fn(&Self) -> &Vec<u8>) -> Vec<u8> {
        let mut parts = vec![name];
        let mut next = Some(self);
        while let Some(dir) = next {
            parts.push(part(dir));
            next = dir.up.as_deref();
        }
        joined(parts.into_iter().rev())
    }
}

impl Directory {
    /// Schedules the removal of the file that marks the directory as unfinished, and the setting of its
    /// attributes. Returns the parent if there is one and nothing was scheduled: else the task holds it.
    fn end(&mut self) -> Option<Arc<Directory>> {
        let up = self.up.take()?;
        if self.work.spawner.is_closed() {
            return Some(up);
        }
        let (attr, unfinished) = (self.attr, self.unfinished.take());
        let Some(node) = self.node.take().filter(|_| attr.is_some() || unfinished.is_some()) else {
            return Some(up);
        };
        let (work, from, to) =
            (self.work.clone(), std::mem::take(&mut self.from), std::mem::take(&mut self.to));
        self.work.spawn(async move {
            if let Some(unfinished) = unfinished.filter(|_| !work.is_unfinished())
                && let Err(error) = node.remove(unfinished.as_name()).resolve().await
            {
                tracing::debug!(%error, "the mark of the unfinished copy cannot be removed");
            }
            let Some(attr) = attr else { return };
            if let Err((step, error)) = attributes::finish_directory(&work, &attr, &node).await
                && let Ok(name) = Name::new(&to)
            {
                work.failed(up.failure(&from, name, step, error));
            }
        });
        None
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // In a loop, not by recursion of `drop`: directories may nest deeper than the stack allows.
        let mut next = self.end();
        while let Some(mut dir) = next.and_then(Arc::into_inner) {
            next = dir.end();
        }
    }
}

impl Work {
    /// Registers a source's directory as being copied. Also returns `true` if a directory with this node
    /// number is being copied already, perhaps one of another session.
    fn begin_directory(self: &Arc<Self>, dir: &Node) -> (Source, bool) {
        let mut entered = lock(&self.entered.0);
        let count = entered.entry(dir.id()).or_insert(0);
        *count += 1;
        (Source { work: self.clone(), dir: dir.clone() }, *count > 1)
    }
}

impl Source {
    fn is(&self, dir: &Node) -> bool {
        self.dir.id() == dir.id() && self.dir.tree().is_same_session(dir.tree())
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let mut entered = lock(&self.work.entered.0);
        if let Some(count) = entered.get_mut(&self.dir.id()) {
            *count -= 1;
            if *count == 0 {
                entered.remove(&self.dir.id());
            }
        }
    }
}
