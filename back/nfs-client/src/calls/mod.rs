//! The procedures of NFS version 3 as typed calls of one mount.
//!
//! A call waits for its reply according to the mount's options, and is repeated after JUKEBOX (RFC 1813 §2.6)
//! unless its comment excludes that. It returns the server's success or refusal; anything that is not an NFS
//! reply, and a failure of the server itself (IO, SERVERFAULT, REMOTE), is an error.

mod answers;
mod attributes;
mod data;
mod names;
mod side;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use tombolo_core::{Error, Result};
use tombolo_host_rpc::client::{Call as RpcCall, CallError, ReceiveBuffer, Reply as RpcReply, RpcClient};
use tombolo_mem::Source;
use tombolo_wire_nfs3::{Call, Procedure, Reply, Status, status};
use tombolo_wire_rpc::MACHINE_BYTES_MAX;
use tombolo_wire_xdr::Result as XdrResult;

use crate::caller::Caller;
use crate::data::unless_interrupted;
use crate::failure::Failure;

pub(crate) use answers::{ListedEntry, Listing, NewReply};
pub(crate) use data::{ReadPiece, WritePiece};
pub(crate) use side::{Extent, LISTING_ACCESS, ListedDir, Subtree};

/// Delay before a call is repeated after JUKEBOX: first and maximum; doubled in between.
const JUKEBOX_DELAY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));

/// Maximum payload of a call to the server, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub read_max: u32,
    pub write_max: u32,
    /// Size of a listing page, including attributes and handles.
    pub listing: u32,
}

/// Calls of one mount, with the parameters that all of them share.
#[derive(Clone)]
pub(crate) struct Nfs {
    rpc: RpcClient,
    label: std::sync::Arc<str>,
    /// Name of this machine for AUTH_SYS.
    machine: std::sync::Arc<[u8]>,
    /// Number in the AUTH_SYS credentials that distinguishes this client from others on this machine, as
    /// leases require.
    stamp: u32,
    sizes: Sizes,
}

impl std::fmt::Debug for Nfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nfs({})", self.label)
    }
}

/// Returns the successful results, or the failure as an error of the waist.
pub(crate) fn answered<T, F>(reply: Reply<T, F>) -> Result<T> {
    answered_or(reply, drop)
}

/// Returns the successful results, or calls `look` with the contents of the failure and returns it as an
/// error of the waist.
pub(crate) fn answered_or<T, F>(reply: Reply<T, F>, look: impl FnOnce(F)) -> Result<T> {
    match reply {
        Reply::Ok(results) => Ok(results),
        Reply::Failed(status, contents) => {
            look(contents);
            Err(status::from_status(status))
        }
    }
}

/// Returns the host name, truncated to the limit of AUTH_SYS.
fn host_name() -> Vec<u8> {
    let mut name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    name.truncate(name.trim_ascii_end().len().min(MACHINE_BYTES_MAX));
    name
}

/// Returns a random number other than 0.
fn stamp() -> u32 {
    let number = RandomState::new().build_hasher().finish();
    (number as u32).max(1)
}

impl Nfs {
    /// Creates calls over `rpc`; errors name the `label`.
    pub(crate) fn new(rpc: RpcClient, label: &str, sizes: Sizes) -> Self {
        Self { rpc, label: label.into(), machine: host_name().into(), stamp: stamp(), sizes }
    }

    pub(crate) fn rpc(&self) -> &RpcClient {
        &self.rpc
    }

    /// Returns the maximum payloads agreed with the server at the mount.
    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Returns host and export for messages.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// Returns the error for a reply that can be decoded but violates the protocol.
    pub(crate) fn invalid_reply(&self, procedure: Procedure, what: &'static str) -> Error {
        Failure::InvalidReply { server: self.label().to_owned(), procedure, what }.into()
    }

    /// Makes a call, and repeats it after JUKEBOX.
    async fn ask<T, F>(
        &self,
        caller: &Caller,
        call: Call<'_>,
        read: impl Fn(&[u8]) -> XdrResult<Reply<T, F>>,
    ) -> Result<Reply<T, F>> {
        let mut pause = JUKEBOX_DELAY.0;
        loop {
            let results = self.once(caller, call, None, None).await?.results;
            let reply = read(&results);
            self.rpc.recycle(results);
            match self.read(call.procedure(), reply)? {
                Reply::Failed(Status::Jukebox, _) => self.wait_for_server(caller, &mut pause).await?,
                reply => return Ok(reply),
            }
        }
    }

    /// Makes one call, with optional data after the arguments and an optional buffer for the data in the
    /// results.
    async fn once(
        &self,
        caller: &Caller,
        call: Call<'_>,
        data: Option<Source>,
        receive_buffer: Option<ReceiveBuffer>,
    ) -> Result<RpcReply> {
        let procedure = call.procedure();
        let pending = {
            let rpc_call = RpcCall {
                program: None,
                procedure: procedure.number(),
                credential: caller.credential(self.stamp, &self.machine),
                bulk: matches!(procedure, Procedure::Read | Procedure::Write),
                data,
                receive_buffer,
                results_bytes: self.results_bytes(procedure),
                interrupt: caller.interrupt.clone(),
            };
            self.rpc.call(rpc_call, |xdr| {
                xdr.value(&call);
            })
        };
        pending.await.map_err(|source: CallError| Failure::Call { procedure, source }.into())
    }

    /// Returns the maximum length of a procedure's results, if larger than usual; otherwise 0.
    fn results_bytes(&self, procedure: Procedure) -> usize {
        match procedure {
            Procedure::Readdir | Procedure::Readdirplus => self.sizes.listing as usize,
            _ => 0,
        }
    }

    /// Converts decoding errors and unspecific server failures into errors that name server and procedure.
    fn read<T, F>(&self, procedure: Procedure, read: XdrResult<Reply<T, F>>) -> Result<Reply<T, F>> {
        let server = || self.label().to_owned();
        match read {
            Ok(Reply::Failed(status @ (Status::Io | Status::ServerFault | Status::Remote), _)) => {
                Err(Failure::Broken { server: server(), procedure, status }.into())
            }
            Ok(reply) => Ok(reply),
            Err(source) => Err(Failure::Malformed { server: server(), procedure, source }.into()),
        }
    }

    /// Sleeps before the next attempt and doubles the delay up to its maximum; fails at once when the caller
    /// is interrupted, or if the next attempt would be after the caller's deadline.
    async fn wait_for_server(&self, caller: &Caller, pause: &mut Duration) -> Result<()> {
        if caller.deadline.is_some_and(|deadline| self.rpc.now() + *pause > deadline) {
            return Err(Error::TimedOut);
        }
        let sleep = self.rpc.sleep(*pause);
        *pause = pause.saturating_mul(2).min(JUKEBOX_DELAY.1);
        unless_interrupted(caller.interrupt.raised(), sleep).await
    }
}
