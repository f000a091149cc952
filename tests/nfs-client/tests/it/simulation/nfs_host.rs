//! The real NFS server over a disk that loses unstable data, through restarts.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use tombolo_core::Answer;
use tombolo_core::fs::{Export, Op};
use tombolo_front_nfs_server::NfsService;
use tombolo_host_rpc::server::{Exchange, Peer, Service, Transport};
use tombolo_host_runtime::buffer_pool::{BufferLimits, Buffers};
use tombolo_host_runtime::signing_keys::Keys;
use tombolo_layer_basic::Layered;
use tombolo_layer_basic::around::{Around, Call, Payload};
use tombolo_layer_replies as replies;
use tombolo_mem::Source;
use tombolo_nfs_client_tests::wire::{Network, Rng};
use tombolo_nfs_tests::test_server::{PATH, Plan};
use tombolo_wire_nfs3::mount::{self, DirPath, MntReply};
use tombolo_wire_nfs3::{FileHandle, FileHandleBuf, Reply};
use tombolo_wire_rpc::{CallHeader, Credential, ReplyHeader, Xid};
use tombolo_wire_xdr::{Decode, Decoder, Encoder};

use crate::simulation::disk::Disk;
use crate::simulation::driver::Host;

/// A host that runs the server's program and restarts it.
pub struct NfsHost {
    network: Network,
    disk: Disk,
    keys: Keys,
    rng: Rng,
    /// `true` while the current program runs.
    alive: Arc<AtomicBool>,
    /// Number of starts.
    starts: Arc<AtomicU64>,
}

/// Delays operations; those of an ended program are never answered.
struct Slow {
    network: Network,
    alive: Arc<AtomicBool>,
}

impl Around for Slow {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        if !self.alive.load(Ordering::Relaxed) {
            return Answer::later(pending());
        }
        let answer = inner();
        // Not delayed: ACCESS calls of the server depend on the wall clock, since it caches permissions of
        // files that were not changed recently.
        if call.op == Op::Access {
            return answer;
        }
        let network = self.network.clone();
        let time = network.random_between(network.conditions().operation);
        if time.is_zero() {
            return answer;
        }
        Answer::later(async move {
            network.sleep(time).await;
            answer.resolve().await
        })
    }
}

impl NfsHost {
    /// Creates a host of servers over this disk.
    pub fn new(network: &Network, disk: Disk, rng: Rng) -> Self {
        let keys = Keys::random().expect("keys");
        Self { network: network.clone(), disk, keys, rng, alive: Arc::default(), starts: Arc::default() }
    }

    /// Returns the counter of starts.
    pub fn starts_so_far(&self) -> Arc<AtomicU64> {
        self.starts.clone()
    }

    /// Returns the handle of the export's root, as MNT does.
    pub fn root(service: &Arc<NfsService>) -> FileHandleBuf {
        let mut message = Vec::new();
        let mut xdr = Encoder::new(&mut message);
        xdr.value(&CallHeader::new(Xid(1), mount::PROGRAM, mount::VERSION, 1, Credential::None));
        xdr.value(&DirPath::new(PATH.as_bytes()).expect("a path"));
        let mut exchange = Box::new(Exchange::new(Buffers::new(BufferLimits::default())));
        exchange.fill(Source::from(message), None);
        let peer = Peer::new(([10, 1, 0, 0], 700).into(), Transport::Tcp);
        let served = pin!(service.clone().serve(peer, exchange));
        let Poll::Ready((exchange, _)) = served.poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("mounting waits")
        };
        let mut results = Decoder::new(&exchange.reply);
        ReplyHeader::decode(&mut results).expect("a reply");
        match MntReply::decode(&mut results).expect("the results of MNT") {
            Reply::Ok(mounted) => FileHandle::to_owned(mounted.handle),
            Reply::Failed(status, ()) => panic!("MNT: {status:?}"),
        }
    }
}

impl Host<NfsService> for NfsHost {
    fn fails(&mut self, lost: u32) {
        self.alive.store(false, Ordering::Relaxed);
        self.disk.fail(lost, &mut self.rng);
    }

    fn starts(&mut self) -> Arc<NfsService> {
        self.alive = Arc::new(AtomicBool::new(true));
        self.starts.fetch_add(1, Ordering::Relaxed);
        let slow = Slow { network: self.network.clone(), alive: self.alive.clone() };
        let slow: Arc<dyn Export> = Arc::new(Layered::new(Arc::new(self.disk.clone()), Arc::new(slow)));
        let export = replies::over(slow, &replies::Options::default());
        let mut plan = Plan { keys: self.keys.clone(), ..Plan::over(Arc::new(export)) };
        plan.service().expect("the service")
    }
}
