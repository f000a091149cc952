//! What answers: the header of a call, the program it is for, and the reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;
use tombolo_core::RequestId;
use tombolo_host_rpc::server::{Exchange, Outcome, Peer, ReplyData, Service};
use tombolo_host_runtime::buffer_pool::Buffers;
use tombolo_mem::Source;
use tombolo_wire_nfs3::{self as nfs3, mount as mount3};
use tombolo_wire_rpc::{Accepted, CallHeader, ReplyHeader};
use tombolo_wire_xdr::{Decoder, Encoder};

use crate::access::Identities;
use crate::caller::Caller;
use crate::export::Served;
use crate::handle::{ExportCollision, ExportId};
use crate::mount::{self, MountTable};
use crate::options::Options;
use crate::procedures;

/// Answers NFS version 3 and MOUNT version 3.
pub struct NfsService {
    exports: Vec<Arc<Served>>,
    pub(crate) identities: Identities,
    pub(crate) mounts: MountTable,
    requests: AtomicU64,
}

/// Why exports cannot be served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Attaching to one failed.
    #[error("cannot serve {name} to NFS clients")]
    Attach {
        /// The export.
        name: String,
        /// Why.
        #[source]
        source: tombolo_core::Error,
    },
    /// Its files have no handles that would outlive a restart.
    #[error("cannot serve {name} to NFS clients: its file system has no persistent handles")]
    NoHandles {
        /// The export.
        name: String,
    },
    /// Two exports would be told apart by nothing in their handles.
    #[error(transparent)]
    Alike(#[from] ExportCollision),
}

impl NfsService {
    /// Attaches to all exports.
    pub fn new(options: Options) -> Result<Arc<Self>, ServeError> {
        ExportId::check(options.exports.iter().map(|export| export.name.as_str()))?;
        let attached = options
            .exports
            .into_iter()
            .map(|export| Served::attach(export, options.signer.clone()).map(Arc::new))
            .collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            exports: attached,
            identities: options.identities,
            mounts: MountTable::default(),
            requests: AtomicU64::new(1),
        }))
    }

    /// Closes idle openings. To be called every second or so.
    pub fn close_idle(&self) {
        self.exports.iter().for_each(|export| export.close_idle());
    }

    /// The export that handles name so.
    pub(crate) fn export(&self, id: ExportId) -> Option<&Arc<Served>> {
        self.exports.iter().find(|export| export.id == id)
    }

    /// All exports.
    pub(crate) fn exports(&self) -> &[Arc<Served>] {
        &self.exports
    }

    pub(crate) fn next_request(&self) -> RequestId {
        RequestId(self.requests.fetch_add(1, Ordering::Relaxed))
    }

    async fn answer(&self, peer: &Peer, exchange: &mut Exchange) -> Outcome {
        let Exchange { head, record, reply, data, buffers, .. } = exchange;
        let mut args = Decoder::new(head);
        let header = match CallHeader::receive(&mut args) {
            Ok(header) => header,
            Err(fault) => {
                tracing::debug!(%peer.origin, %fault, "malformed RPC call");
                let Some(refusal) = fault.reply() else { return Outcome::Close };
                Encoder::new(reply).value(&refusal);
                return Outcome::Reply;
            }
        };
        let mut results = Encoder::new(reply);
        results.value(&ReplyHeader::success(header.xid));
        let outcome = match (header.program, header.version) {
            (nfs3::PROGRAM, nfs3::VERSION) => {
                let carried_out = self.nfs(peer, &header, args, record, buffers, &mut results).await;
                carried_out.map(|follows| *data = follows)
            }
            (mount3::PROGRAM, mount3::VERSION) => self.mount(peer, &header, args, &mut results).await,
            (nfs3::PROGRAM, _) => Err(Accepted::ProgMismatch { low: nfs3::VERSION, high: nfs3::VERSION }),
            (mount3::PROGRAM, _) => {
                Err(Accepted::ProgMismatch { low: mount3::VERSION, high: mount3::VERSION })
            }
            _ => Err(Accepted::ProgUnavail),
        };
        if let Err(refusal) = outcome {
            results.truncate(0);
            results.value(&ReplyHeader::accept(header.xid, refusal));
        }
        Outcome::Reply
    }

    async fn nfs(
        &self,
        peer: &Peer,
        header: &CallHeader<'_>,
        mut args: Decoder<'_>,
        record: &Source,
        buffers: &Buffers,
        results: &mut Encoder<'_>,
    ) -> Result<Option<ReplyData>, Accepted> {
        let procedure = nfs3::Procedure::from_number(header.procedure).ok_or(Accepted::ProcUnavail)?;
        let caller = Caller::new(self, peer, header, procedure, args.rest(), record.len());
        // The decoder counts from the message's start: a WRITE's data is found by that.
        let call = nfs3::Call::decode(procedure, &mut args, record.len()).map_err(|error| {
            tracing::debug!(%peer.origin, ?procedure, %error, "garbage arguments");
            Accepted::GarbageArgs
        })?;
        Ok(procedures::carry_out(&caller, call, record, buffers, results).await)
    }

    async fn mount(
        &self,
        peer: &Peer,
        header: &CallHeader<'_>,
        mut args: Decoder<'_>,
        results: &mut Encoder<'_>,
    ) -> Result<(), Accepted> {
        let procedure = mount3::Procedure::from_number(header.procedure).ok_or(Accepted::ProcUnavail)?;
        let call = mount3::Call::decode(procedure, &mut args).map_err(|_| Accepted::GarbageArgs)?;
        mount::carry_out(self, peer, call, results).await;
        Ok(())
    }
}

impl Service for NfsService {
    // Not an `async fn`: that would keep what it takes twice, and the future is moved about.
    #[expect(clippy::manual_async_fn)]
    fn serve(
        self: Arc<Self>,
        peer: Arc<Peer>,
        mut exchange: Box<Exchange>,
    ) -> impl Future<Output = (Box<Exchange>, Outcome)> + Send + 'static {
        async move {
            let outcome = self.answer(&peer, &mut exchange).await;
            (exchange, outcome)
        }
    }

    fn needs_buffer(&self, head: &[u8]) -> bool {
        let read = (nfs3::PROGRAM, nfs3::VERSION, nfs3::Procedure::Read.number());
        CallHeader::receive(&mut Decoder::new(head))
            .is_ok_and(|header| (header.program, header.version, header.procedure) == read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the transport counts for a call that pends is 4 KiB, its exchange among them.
    #[test]
    fn a_call_that_pends_holds_no_more_than_is_counted_for_it() {
        fn size_of_future<F, T>(_: impl FnOnce(T) -> F) -> usize {
            size_of::<F>()
        }
        type Taken = (Arc<NfsService>, Arc<Peer>, Box<Exchange>);
        let future = size_of_future(|(service, peer, exchange): Taken| service.serve(peer, exchange));
        assert!(future + size_of::<Exchange>() <= 3 << 10, "{future} bytes");
    }
}
