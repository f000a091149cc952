//! Cost of XDR without a network: the native layout compared with NFS version 3 messages, over the same kind
//! of link to the same directory.
//!
//! Both clients make one request at a time and decode the reply, without a cache. NFS's handle is looked up
//! once.

use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::SessionId;
use tombolo_front_nfs_server::{
    AllowList, Durability, ExportOptions, Identities, LeaseHolders, NfsService, Options as NfsOptions,
    Signer, Squash, SquashMode,
};
use tombolo_host_links::connect::{ConnectOptions, connect};
use tombolo_host_links::control_socket::Watcher;
use tombolo_host_links::server::Service;
use tombolo_host_rpc::client::{Call, DataLocation, Options, ReceiveBuffer, Reply as RpcReply, RpcClient};
use tombolo_host_rpc::link::{Dial, DialError, Dialed, Route, RpcLinks};
use tombolo_host_runtime::buffer_pool::BufferLimits;
use tombolo_host_runtime::signing_keys::Keys;
use tombolo_mem::Buffer;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Incarnation, Protocol};
use tombolo_wire_nfs3::args::{DirOpArgs, ReadArgs, StableHow, WriteArgs};
use tombolo_wire_nfs3::mount::{self, DirPath, MntReply};
use tombolo_wire_nfs3::results::{GetattrReply, LookupReply, ReadReply, WriteReply};
use tombolo_wire_nfs3::{self as nfs3, Data, FileHandleBuf, Reply};
use tombolo_wire_rpc::{AuthSys, Credential, Gids};
use tombolo_wire_xdr::{Decode, Decoder, Encoder};

use super::endpoint::{At, Endpoint};
use super::server::{EndpointKind, LinkServer};
use super::session::{Operation, linked};
use super::{EXPORT, FILE, Plan, speed, timed_by, wrong};
use crate::error::{Doing, Error, Result};
use crate::measure::{Entrant, Placement, Work};
use crate::report::Report;

const NATIVE: &str = "native layout";
const MESSAGES: &str = "NFSv3 messages";
const ROWS: [(&str, Operation); 4] = [
    ("null request", Operation::Null),
    ("getattr", Operation::Getattr),
    ("read, 4 KiB", Operation::Read(4096)),
    ("write, 4 KiB", Operation::Write(4096)),
];

pub fn run(plan: &Plan) -> Result<Report> {
    let title = "The native layout and NFSv3 messages on the same link";
    let mut report = plan.report("ring-nfs", title);
    let folder = plan.folder()?;
    let (shared, _) = speed::lay_out(folder.path())?;
    let serving = LinkServer::start(&shared, folder.path(), EndpointKind::Sockets)?;
    let endpoint = serving.endpoint(Mode::Poll);
    // Missing prerequisites are reported before the measurement.
    Caller::begin(&endpoint, 0).map_err(|error| Error::Absent(format!("NFS over a link: {error}")))?;
    let contest = plan.timed();
    for (row, operation) in ROWS {
        let entrant = |column, work| Entrant::new((column, ""), work, &[serving.id()], Placement::TwoCores);
        let entrants = vec![
            entrant(NATIVE, linked(endpoint.clone(), operation)),
            entrant(MESSAGES, messages(endpoint.clone(), operation)),
        ];
        report.contest(row, &contest, entrants);
        report.compare_cells(row, (NATIVE, ""), (MESSAGES, ""), None);
    }
    Placement::leave()?;
    report.condition_of(&contest);
    report.condition(
        "both sides poll; one request at a time; native: through back/vrpc-client, the file open; NFSv3: RPC and the codec without the client's \
         cache, by handle, AUTH_SYS, writes UNSTABLE; its server checks permissions and keeps files open between calls"
            .to_string(),
    );
    Ok(report)
}

/// Creates an NFS service of the directory for links; fails if its files have no handles.
pub fn service(shared: &std::path::Path) -> Result<Arc<dyn Service>> {
    let export = LocalDir::open(shared, DirOptions::default()).map_err(|error| wrong("local-dir", &error))?;
    let options = ExportOptions {
        name: EXPORT.to_owned(),
        export: Arc::new(export),
        session: SessionId(1 << 32),
        squash: Squash { mode: SquashMode::None, ..Squash::default() },
        allow: AllowList::default(),
        durability: Durability::Relaxed,
        leases: None,
        lease_holders: LeaseHolders::default(),
    };
    let keys = Keys::random().map_err(|error| wrong("a key", &error))?;
    let signer = Arc::new(Signer::new(keys));
    let service =
        NfsService::new(NfsOptions { exports: vec![options], signer, identities: Identities::new(None) });
    let service = service.map_err(|error| wrong("NFS", &error))?;
    Ok(Arc::new(RpcLinks::new(service, vec![EXPORT.to_owned()], BufferLimits::default())))
}

/// Repeats one operation over a link that lives for a turn.
fn messages(endpoint: Endpoint, operation: Operation) -> Work<'static> {
    Work::new(move |count, clock| {
        let caller = Caller::begin(&endpoint, operation.bytes())?;
        timed_by(super::at_once(operation.bytes()), count, clock, || caller.ask(operation))
    })
}

impl Dial for Endpoint {
    fn dial(&self) -> std::result::Result<Dialed, DialError> {
        let At::Socket(socket) = &self.at else { return Err("no socket".into()) };
        let options = ConnectOptions::new(EXPORT, "bench", Incarnation([2; 16]))?;
        let options = ConnectOptions { protocol: Protocol::OncRpc, ..options };
        let watcher = Watcher::start()?;
        let (line, control_socket) = connect(socket, &options)?.start(&watcher, "bench", self.mode)?;
        Ok(Dialed { line, keep: Box::new((control_socket, watcher)) })
    }
}

/// A client with the file's handle.
struct Caller {
    rpc: RpcClient,
    file: FileHandleBuf,
    buffer: Buffer,
}

fn root<'a>() -> Credential<'a> {
    Credential::Sys(AuthSys { stamp: 0, machine: b"bench", uid: 0, gid: 0, gids: Gids::default() })
}

impl Caller {
    fn begin(endpoint: &Endpoint, bytes: usize) -> Result<Self> {
        let route = Route::start(endpoint.clone(), "bench").map_err(|error| wrong("a link", &*error))?;
        let client = |program| {
            RpcClient::over_links(route.clone(), program, Options::default())
                .doing(|| "start a client".to_owned())
        };
        let path = DirPath::new(EXPORT.as_bytes()).ok_or_else(|| nonsense("a path"))?;
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

    /// Makes one request, and checks that it is complete.
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
        let RpcReply { results, data_bytes, .. } = reply.map_err(|error| wrong("a call", &error))?;
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

fn find(results: &[u8], results_bytes: usize) -> DataLocation {
    match ReadReply::decode(&mut Decoder::new(results)) {
        Ok(Reply::Ok(ok)) => ok.data.range(results_bytes).map_or(DataLocation::None, DataLocation::Data),
        Ok(Reply::Failed(..)) => DataLocation::None,
        Err(_) if results.len() < results_bytes.min(128) => DataLocation::More,
        Err(_) => DataLocation::None,
    }
}

fn made(rpc: &RpcClient, procedure: u32, arguments: impl FnOnce(&mut Encoder<'_>)) -> Result<RpcReply> {
    rpc.call(Call::new(procedure, root()), arguments).wait().map_err(|error| wrong("a call", &error))
}

fn decoded<'a, T: Decode<'a>>(results: &'a [u8]) -> Result<T> {
    Decoder::new(results).value().map_err(|error| wrong("an answer", &error))
}

fn nonsense(what: &str) -> Error {
    Error::Wrong { what: what.to_owned(), answer: "not as it should be".to_owned() }
}
