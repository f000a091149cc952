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

/// Sizes of calls and read-ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Maximum size of a READ, in bytes.
    pub(crate) read_max: usize,
    /// Maximum size of a WRITE, in bytes.
    pub(crate) write_max: usize,
    /// Read-ahead of one opening, in bytes; 0 disables it.
    pub(crate) read_ahead_max: usize,
    /// Lifetime of read-ahead data.
    pub(crate) read_ahead_time: Duration,
}

/// Data operations of a server.
///
/// The calls own their arguments, so they continue without a waiter. They recover according to the mount's
/// options: a failure is final.
pub(crate) trait Server: Send + Sync + 'static {
    /// File or other node of the server.
    type Node: AsRef<FileData> + Send + Sync + 'static;

    /// Returns the mount's memory budget, shared by all its files.
    fn budget(&self) -> &Arc<Budget>;
    fn sizes(&self) -> Sizes;
    /// Returns `true` if another READ or WRITE may be sent.
    fn has_permit(&self) -> bool;
    /// Waits until an in-flight permit is free.
    fn permit(&self) -> impl Future<Output = ()> + Send + 'static;
    /// Returns the present time by the RPC client's clock, which tests can simulate.
    fn now(&self) -> Instant;
    /// Returns the file's size as last reported by the server. Must not use [`FileData`], which may be
    /// locked.
    fn known_size(&self, node: &Self::Node) -> u64;
    /// Completes when the caller was interrupted and may stop waiting.
    fn interruption(&self, caller: &Caller) -> impl Future<Output = ()> + Send + 'static;

    /// Calls READ (RFC 1813 §3.3.6) into a sink of at most `read_max` bytes. Returns at most the sink's
    /// length; the caller checks that 0 is returned only at the end.
    fn read(
        self: Arc<Self>,
        caller: Caller,
        node: Arc<Self::Node>,
        offset: u64,
        into: Sink,
    ) -> impl Future<Output = Result<ReadDone>> + Send + 'static;
    /// Calls WRITE (§3.3.7) with at most `write_max` bytes.
    fn write(
        self: Arc<Self>,
        caller: Caller,
        node: Arc<Self::Node>,
        offset: u64,
        from: Source,
        stability: Stability,
    ) -> impl Future<Output = Result<Wrote>> + Send + 'static;
    /// Calls COMMIT (§3.3.21) for a whole file.
    fn commit(
        self: Arc<Self>,
        caller: Caller,
        node: Arc<Self::Node>,
    ) -> impl Future<Output = Result<WriteVerifier>> + Send + 'static;
    /// Returns the error for an invalid reply, which names host and operation.
    fn invalid_reply(&self, procedure: Procedure, what: &'static str) -> Error;
}
