//! The procedures of NFS version 3, each a function from its arguments to its results.

mod attributes;
mod data;
mod listing;
mod making;
mod names;
mod removing;
mod volume;

use tombolo_host_rpc::server::ReplyData;
use tombolo_host_runtime::buffer_pool::Buffers;
use tombolo_mem::Source;
use tombolo_wire_nfs3::Call;
use tombolo_wire_xdr::Encoder;

use crate::caller::Caller;

/// The largest page of a listing, whatever is asked for.
const LISTING_MAX_BYTES: u32 = 1 << 18;
/// The page that we suggest.
const LISTING_PREFERRED_BYTES: u32 = 1 << 16;

/// Carries a call out and writes its results. `record` is the whole call. What is returned follows the results.
///
/// Every call's future is as large as the largest of them, and the transport counts a few KiB for each call that pends. So
/// the procedures that make something, whose futures are the largest, have them in a box.
pub(crate) async fn carry_out(
    caller: &Caller<'_>,
    call: Call<'_>,
    record: &Source,
    buffers: &Buffers,
    results: &mut Encoder<'_>,
) -> Option<ReplyData> {
    match call {
        Call::Null => {}
        Call::Getattr(handle) => drop(results.value(&attributes::getattr(caller, handle).await)),
        Call::Setattr(args) => drop(results.value(&attributes::setattr(caller, args).await)),
        Call::Lookup(args) => names::lookup(caller, args, results).await,
        Call::Access(args) => drop(results.value(&attributes::access(caller, args).await)),
        Call::Readlink(handle) => names::readlink(caller, handle, results).await,
        Call::Read(args) => {
            let (reply, data) = data::read(caller, args, buffers).await;
            results.value(&reply);
            return data;
        }
        Call::Write(args) => drop(results.value(&data::write(caller, args, record).await)),
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
    None
}
