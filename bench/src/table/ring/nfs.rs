//! Cost of XDR without a network: the native layout compared with NFS version 3 messages, over the same kind
//! of link to the same directory.
//!
//! Both clients make one request at a time and decode the reply, without a cache. The NFS client looks up the
//! file's handle once, before the measurement.

use tombolo_host_rpc::client::{Call, DataLocation, Options, ReceiveBuffer, Reply as RpcReply, RpcClient};
use tombolo_host_rpc::link::Route;
use tombolo_mem::Buffer;
use tombolo_wire_nfs3::args::{DirOpArgs, ReadArgs, StableHow, WriteArgs};
use tombolo_wire_nfs3::mount::{self, DirPath, MntReply};
use tombolo_wire_nfs3::results::{GetattrReply, LookupReply, ReadReply, WriteReply};
use tombolo_wire_nfs3::{self as nfs3, Data, FileHandleBuf, Reply};
use tombolo_wire_xdr::{Decode, Decoder, Encoder};

use super::session::{Endpoint, Operation};
use super::{FILE, timed_by, wrong};
use crate::error::{Doing, Error, OrWrong, Result};
use crate::measure::Work;
use crate::nfs::client::root;

/// Repeats one operation over a link that lives for a turn.
pub fn messages(endpoint: Endpoint, export: String, operation: Operation) -> Work<'static> {
    Work::new(move |count, clock| {
        let caller = Caller::begin(&endpoint, &export, operation.bytes())?;
        timed_by(super::at_once(operation.bytes()), count, clock, || caller.ask(operation))
    })
}

/// A client with the file's handle.
struct Caller {
    rpc: RpcClient,
    file: FileHandleBuf,
    buffer: Buffer,
}

impl Caller {
    fn begin(endpoint: &Endpoint, export: &str, bytes: usize) -> Result<Self> {
        let route = Route::start(endpoint.clone(), "bench").map_err(|error| wrong("a link", &*error))?;
        let client = |program| {
            RpcClient::over_links(route.clone(), program, Options::default())
                .doing(|| "start a client".to_owned())
        };
        let path = DirPath::new(export.as_bytes()).ok_or_else(|| nonsense("a path"))?;
        let mounted =
            made(&client((mount::PROGRAM, mount::VERSION))?, mount::Procedure::Mnt.number(), |xdr| {
                xdr.value(&mount::Call::Mnt(path));
            })?;
        let Reply::Ok(mounted) = decoded::<MntReply<'_>>(&mounted.results)? else {
            return Err(nonsense("MNT"));
        };
        let directory = mounted.handle.to_owned();
        let rpc = client((nfs3::PROGRAM, nfs3::VERSION))?;
        let args = DirOpArgs { dir: directory.as_handle(), name: FILE.as_bytes() };
        let call = nfs3::Call::Lookup(args);
        let found = made(&rpc, call.procedure().number(), |xdr| {
            xdr.value(&call);
        })?;
        let Reply::Ok(found) = decoded::<LookupReply<'_>>(&found.results)? else {
            return Err(nonsense("LOOKUP"));
        };
        Ok(Self { file: found.object.to_owned(), rpc, buffer: Buffer::new(bytes) })
    }

    /// Makes one request, and checks that all bytes were transferred.
    #[inline]
    fn ask(&self, operation: Operation) -> Result<()> {
        let Self { rpc, file, buffer } = self;
        let (file, bytes) = (file.as_handle(), operation.bytes());
        let mut call = Call::new(0, root());
        let asked = match operation {
            Operation::Null => nfs3::Call::Null,
            Operation::Getattr => nfs3::Call::Getattr(file),
            Operation::Read(_) | Operation::ReadInPlace(_) => {
                call.receive_buffer = Some(ReceiveBuffer { sink: buffer.sink(0..bytes), find });
                nfs3::Call::Read(ReadArgs { file, offset: 0, count: bytes as u32 })
            }
            Operation::Write(_) | Operation::WriteInPlace(_) => {
                call.data = Some(buffer.source(0..bytes));
                let (count, stable) = (bytes as u32, StableHow::Unstable);
                nfs3::Call::Write(WriteArgs { file, offset: 0, count, stable, data: Data::to_send(count) })
            }
        };
        call.procedure = asked.procedure().number();
        let reply = rpc.call(call, |xdr| {
            xdr.value(&asked);
        });
        let reply = reply.wait();
        let RpcReply { results, data_bytes, .. } = reply.or_wrong("a call")?;
        let is_done = match operation {
            Operation::Null => true,
            Operation::Getattr => matches!(decoded::<GetattrReply>(&results)?, Reply::Ok(_)),
            Operation::Read(_) | Operation::ReadInPlace(_) => {
                matches!(decoded::<ReadReply>(&results)?, Reply::Ok(ok) if ok.count as usize == bytes)
                    && data_bytes == bytes
            }
            Operation::Write(_) | Operation::WriteInPlace(_) => {
                matches!(decoded::<WriteReply>(&results)?, Reply::Ok(ok) if ok.count as usize == bytes)
            }
        };
        rpc.recycle(results);
        if is_done { Ok(()) } else { Err(nonsense("an answer that is short")) }
    }
}

/// Returns the range of the data in a READ reply of `results_bytes` that begins with `results`.
fn find(results: &[u8], results_bytes: usize) -> DataLocation {
    match ReadReply::decode(&mut Decoder::new(results)) {
        Ok(Reply::Ok(ok)) => ok.data.range(results_bytes).map_or(DataLocation::None, DataLocation::Data),
        Ok(Reply::Failed(..)) => DataLocation::None,
        Err(_) if results.len() < results_bytes.min(128) => DataLocation::More,
        Err(_) => DataLocation::None,
    }
}

fn made(rpc: &RpcClient, procedure: u32, arguments: impl FnOnce(&mut Encoder<'_>)) -> Result<RpcReply> {
    rpc.call(Call::new(procedure, root()), arguments).wait().or_wrong("a call")
}

fn decoded<'a, T: Decode<'a>>(results: &'a [u8]) -> Result<T> {
    Decoder::new(results).value().or_wrong("an answer")
}

fn nonsense(what: &str) -> Error {
    Error::Wrong { what: what.to_owned(), answer: "not as it should be".to_owned() }
}
