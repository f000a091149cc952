//! RPC dispatch: call header, program, procedure and reply.

use std::sync::Arc;

use tombolo_host_rpc::server::{Exchange, Outcome, Peer, ReplyData, Service};
use tombolo_wire_nfs3::{self as nfs3, Call, FileHandle, mount as mount3, side};
use tombolo_wire_rpc::{Accepted, CallHeader, ReplyHeader};
use tombolo_wire_xdr::{Decoder, Encoder};

use crate::caller::Caller;
use crate::export::NfsService;
use crate::mount;
use crate::procedures::{
    attributes, data, digests, lease, lending, listing, making, names, packing, removing, subtree, volume,
};

impl NfsService {
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
        let caller = Caller::new(self, peer, &header, record, buffers);
        let outcome = match (header.program, header.version) {
            (nfs3::PROGRAM, nfs3::VERSION) => nfs(caller, header.procedure, args, &mut results, data).await,
            (mount3::PROGRAM, mount3::VERSION) => self.mount(peer, &header, args, &mut results).await,
            // The future is boxed, so that it does not enlarge the futures of NFS.
            (side::PROGRAM, side::VERSION) => {
                Box::pin(side(caller, header.procedure, args, &mut results, data)).await
            }
            (nfs3::PROGRAM, _) => Err(Accepted::ProgMismatch { low: nfs3::VERSION, high: nfs3::VERSION }),
            (mount3::PROGRAM, _) => {
                Err(Accepted::ProgMismatch { low: mount3::VERSION, high: mount3::VERSION })
            }
            (side::PROGRAM, _) => Err(Accepted::ProgMismatch { low: side::VERSION, high: side::VERSION }),
            _ => Err(Accepted::ProgUnavail),
        };
        if let Err(refusal) = outcome {
            results.truncate(0);
            results.value(&ReplyHeader::accept(header.xid, refusal));
        }
        Outcome::Reply
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
        mount::execute(self, peer, call, results).await;
        Ok(())
    }
}

async fn nfs(
    caller: Caller<'_>,
    procedure: u32,
    mut args: Decoder<'_>,
    results: &mut Encoder<'_>,
    data: &mut Option<ReplyData>,
) -> Result<(), Accepted> {
    let procedure = nfs3::Procedure::from_number(procedure).ok_or(Accepted::ProcUnavail)?;
    let caller = caller.of(procedure, args.rest());
    // Calls that change something begin with a handle in the changed tree.
    let changed = Decoder::new(args.rest()).value::<FileHandle<'_>>();
    // The decoder begins at the start of the message, because its position locates the data of a WRITE.
    let call = Call::decode(procedure, &mut args, caller.record.len()).map_err(|error| {
        let peer = caller.peer();
        tracing::debug!(%peer.origin, ?procedure, %error, "garbage arguments");
        Accepted::GarbageArgs
    })?;
    let _changing = match changed {
        Ok(file) => caller.begin_change(file).await,
        Err(_) => None,
    };
    execute(&caller, call, results, data).await;
    Ok(())
}

async fn side(
    caller: Caller<'_>,
    procedure: u32,
    mut args: Decoder<'_>,
    results: &mut Encoder<'_>,
    data: &mut Option<ReplyData>,
) -> Result<(), Accepted> {
    let arguments = args.rest();
    let procedure = side::Procedure::from_number(procedure).ok_or(Accepted::ProcUnavail)?;
    let call = side::Call::decode(procedure, &mut args).map_err(|_| Accepted::GarbageArgs)?;
    match call {
        side::Call::Null => {}
        side::Call::List(args) => subtree::list(&caller, args, results).await,
        side::Call::Digests(args) => digests::digests(&caller, args, results).await,
        side::Call::Lend(args) => drop(results.value(&lending::lend(&caller, args, data).await)),
        side::Call::Pack(args) => packing::pack(&caller, args, results).await,
        side::Call::Unpack(args) => {
            // UNPACK, a write of compressed data, has the request key of a WRITE, and recalls leases as a
            // WRITE does.
            let caller = caller.of(nfs3::Procedure::Write, arguments);
            let _changing = caller.begin_change(args.file).await;
            results.value(&packing::unpack(&caller, args).await);
        }
        side::Call::Lease(args) => drop(results.value(&lease::lease(&caller, args).await)),
    }
    Ok(())
}

/// Executes a call and writes its results. `data` follows the results.
///
/// Every call's future is as large as the largest, and the transport budgets a few KiB for each pending call.
/// The largest futures, those of SETATTR, of RENAME and of procedures that create something, are boxed.
async fn execute(
    caller: &Caller<'_>,
    call: Call<'_>,
    results: &mut Encoder<'_>,
    data: &mut Option<ReplyData>,
) {
    match call {
        Call::Null => {}
        Call::Getattr(handle) => drop(results.value(&attributes::getattr(caller, handle).await)),
        Call::Setattr(args) => drop(results.value(&Box::pin(attributes::setattr(caller, args)).await)),
        Call::Lookup(args) => names::lookup(caller, args, results).await,
        Call::Access(args) => drop(results.value(&attributes::access(caller, args).await)),
        Call::Readlink(handle) => names::readlink(caller, handle, results).await,
        Call::Read(args) => drop(results.value(&data::read(caller, args, data).await)),
        Call::Write(args) => drop(results.value(&data::write(caller, args).await)),
        Call::Create(args) => Box::pin(making::create(caller, args, results)).await,
        Call::Mkdir(args) => Box::pin(making::mkdir(caller, args, results)).await,
        Call::Symlink(args) => Box::pin(making::symlink(caller, args, results)).await,
        Call::Mknod(args) => Box::pin(making::mknod(caller, args, results)).await,
        Call::Remove(args) => drop(results.value(&removing::remove(caller, args).await)),
        Call::Rmdir(args) => drop(results.value(&removing::rmdir(caller, args).await)),
        Call::Rename(args) => drop(results.value(&Box::pin(removing::rename(caller, args)).await)),
        Call::Link(args) => drop(results.value(&Box::pin(making::link(caller, args)).await)),
        Call::Readdir(args) => listing::readdir(caller, args, results).await,
        Call::Readdirplus(args) => listing::readdirplus(caller, args, results).await,
        Call::Fsstat(handle) => drop(results.value(&volume::fsstat(caller, handle).await)),
        Call::Fsinfo(handle) => drop(results.value(&volume::fsinfo(caller, handle).await)),
        Call::Pathconf(handle) => drop(results.value(&volume::pathconf(caller, handle).await)),
        Call::Commit(args) => drop(results.value(&data::commit(caller, args).await)),
    }
}

impl Service for NfsService {
    // The future of an `async fn` would contain its arguments twice, and moving it would cost more.
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

    /// Checks the transport's budget: 4 KiB for a pending call, its exchange included. Code of planted bugs
    /// takes some of that too.
    #[test]
    fn pending_call_fits_its_memory_budget() {
        fn size_of_future<F, T>(_: impl FnOnce(T) -> F) -> usize {
            size_of::<F>()
        }
        type Taken = (Arc<NfsService>, Arc<Peer>, Box<Exchange>);
        let future = size_of_future(|(service, peer, exchange): Taken| service.serve(peer, exchange));
        assert!(future + size_of::<Exchange>() <= 7 << 9, "{future} bytes");
    }
}
