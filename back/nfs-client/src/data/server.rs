//! The interface that this module requires from a server and from the client.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_core::fs::ReadDone;
use tombolo_core::{Error, Result, Stability};
use tombolo_mem::{Sink, Source};
use tombolo_wire_nfs3::{Procedure, WriteVerifier};

use super::budget::Budget;
use super::file::FileData;
use super::piece::Wrote;
use crate::caller::Caller;

/// What goes in one call, and what is read ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Of a READ, in bytes.
    pub(crate) read_max: usize,
    /// Of a WRITE, in bytes.
    pub(crate) write_max: usize,
    /// For one opening, in bytes; 0 is nothing.
    pub(crate) read_ahead_max: usize,
    /// What was read ahead is believed for so long.
    pub(crate) read_ahead_time: Duration,
}

/// A server's files, as far as their data go.
///
/// The calls take what they need along, so that they go on without a waiter. They recover from
/// whatever the mount's options say: what fails here has failed for good.
pub(crate) trait Server: Send + Sync + 'static {
    /// One of its files, or of its other nodes.
    type Node: AsRef<FileData> + Send + Sync + 'static;

    /// The mount's memory.
    fn budget(&self) -> &Arc<Budget>;
    /// What goes in one call.
    fn sizes(&self) -> Sizes;
    /// Fewer READs and WRITEs are outstanding than may be.
    fn has_permit(&self) -> bool;
    /// Waits until that is so.
    fn permit(&self) -> impl Future<Output = ()> + Send + 'static;
    /// The time, by the clock of the wire.
    fn now(&self) -> Instant;
    /// The file's size as the server last told it, in bytes. Asks nothing of [`FileData`], which may be
    /// locked.
    fn known_size(&self, node: &Self::Node) -> u64;
    /// Is ready when the caller was interrupted and may stop waiting.
    fn interruption(&self, caller: &Caller) -> impl Future<Output = ()> + Send + 'static;

    /// READ (RFC 1813 §3.3.6) into a sink of at most `read_max` bytes. It answers no more bytes than that,
    /// and 0 only at the end.
    fn read(
        self: Arc<Self>,
        caller: Caller,
        node: Arc<Self::Node>,
        offset: u64,
        into: Sink,
    ) -> impl Future<Output = Result<ReadDone>> + Send + 'static;
    /// WRITE (§3.3.7) of at most `write_max` bytes.
    fn write(
        self: Arc<Self>,
        caller: Caller,
        node: Arc<Self::Node>,
        offset: u64,
        from: Source,
        stability: Stability,
    ) -> impl Future<Output = Result<Wrote>> + Send + 'static;
    /// COMMIT (§3.3.21) of a whole file.
    fn commit(
        self: Arc<Self>,
        caller: Caller,
        node: Arc<Self::Node>,
    ) -> impl Future<Output = Result<WriteVerifier>> + Send + 'static;
    /// The error for an invalid reply: it names host and operation.
    fn invalid_reply(&self, procedure: Procedure, what: &'static str) -> Error;
}
