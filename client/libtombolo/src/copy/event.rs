//! What a copy tells its observer.

use tombolo_core::Error;

/// Watches a copy. Called from the threads that copy, so it must be quick.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn see(&self, event: Event);
}

/// Something worth telling.
#[derive(Debug)]
pub enum Event {
    /// A file, directory or link was not copied, or not entirely.
    Failed(Failure),
    /// A file, directory, link or special file was copied. Only with
    /// [`Options::tell_each`](super::Options::tell_each).
    Copied {
        /// What.
        from: Vec<u8>,
        /// What it became.
        to: Vec<u8>,
    },
    /// A part was left for a later copy to go on with.
    PartKept {
        /// The file that it is to become.
        to: Vec<u8>,
        /// How much of it can be relied on.
        size_bytes: u64,
    },
}

/// What failed.
#[derive(Debug)]
pub struct Failure {
    /// What was copied.
    pub from: Vec<u8>,
    /// What it was to become.
    pub to: Vec<u8>,
    /// What was being done.
    pub step: Step,
    /// Why it failed.
    pub error: Error,
}

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The source is opened, read or listed.
    Read,
    /// The target is made, or what is in its place looked at.
    Make,
    /// The target is written.
    Write,
    /// The target gets its attributes. The rest of it was copied.
    Attributes,
    /// The target gets the source's owner, which takes a privilege that a server may refuse (root squash).
    /// Reported once; the rest was copied.
    Owner,
    /// The target gets its name.
    Rename,
    /// It is a directory, and those were not asked for.
    OmitDirectory,
    /// It is neither a file, a directory nor a link, and those were not asked for.
    OmitSpecial,
    /// A directory would be copied into itself.
    IntoItself,
    /// Source and target are one file.
    SameFile,
    /// What stands at the target is of another kind: a directory for a file, or the reverse.
    OtherKind,
    /// A regular file would replace a pipe, socket or device.
    OntoSpecial,
    /// Another source is becoming the same file just now.
    Twice,
    /// The source was changed while a copy of it that had been resumed went on.
    Changed,
}
