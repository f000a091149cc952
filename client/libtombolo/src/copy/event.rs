//! Events of a copy, for its observer.

use tombolo_core::Error;

/// Receives the events of a copy. Called from the copying threads, so it must be quick.
pub trait Observer: Send + Sync {
    /// Handles an event of the copy.
    fn see(&self, event: Event);
}

/// An event of a copy.
#[derive(Debug)]
pub enum Event {
    /// Something was not copied, or not entirely.
    Failed(Failure),
    /// A file, directory, link or special file was copied. Only with
    /// [`Options::tell_each`](super::Options::tell_each).
    Copied {
        /// Path of the source.
        from: Vec<u8>,
        /// Path of the copy.
        to: Vec<u8>,
    },
    /// An incomplete copy of a file, its part, was left for a later copy to resume.
    PartKept {
        /// Path of the file that the part will become.
        to: Vec<u8>,
        /// Number of bytes from the beginning that a later copy need not transfer again.
        size_bytes: u64,
    },
}

/// A failure to copy something.
#[derive(Debug)]
pub struct Failure {
    /// Path of the source.
    pub from: Vec<u8>,
    /// Path of the intended target.
    pub to: Vec<u8>,
    /// The step that failed.
    pub step: Step,
    /// Cause of the failure.
    pub error: Error,
}

/// A step of a copy that failed, or the reason why it was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Opening, reading or listing the source.
    Read,
    /// Creating the target, or examining what exists under its name.
    Make,
    /// Writing the target.
    Write,
    /// Setting the target's attributes, after its data were copied.
    Attributes,
    /// Setting the target's owner or group, which takes a privilege that a server may refuse (root squash).
    /// Reported once; the rest was copied, except set-user-id and set-group-id bits.
    Owner,
    /// Renaming the target to its final name.
    Rename,
    /// A directory was left out, as the copy is not recursive.
    OmitDirectory,
    /// A special file was left out, as the copy is not recursive.
    OmitSpecial,
    /// A directory would be copied into itself.
    IntoItself,
    /// Source and target are the same file.
    SameFile,
    /// The target exists with another type: a directory for a file, or the reverse.
    OtherKind,
    /// A regular file would replace a pipe, socket or device.
    OntoSpecial,
    /// Another source is being copied to the same file.
    Twice,
    /// The source changed during a resumed copy.
    Changed,
}
