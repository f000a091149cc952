//! NFS over shared-memory links. The service is created when the first client requests NFS over a link,
//! because it needs durable state, which links with the waist's own protocol do not.

use std::sync::{Arc, Mutex};

use tombolo_core::lock;
use tombolo_front_nfs_server::IdleCloser;
use tombolo_host_links::server::{Peer, Refusal, Service, Session};
use tombolo_host_rpc::link::RpcLinks;
use tombolo_host_runtime::buffer_pool::BufferLimits;

use crate::assembly::plan::Plan;
use crate::assembly::servers::state::DurableState;

/// NFS and MOUNT over links, for some exports of a plan.
pub struct NfsOverLinks {
    state: Arc<DurableState>,
    /// Indices of the exports in the plan.
    offered: Vec<usize>,
    names: Vec<String>,
    made: Mutex<Option<Made>>,
}

struct Made {
    links: Arc<dyn Service>,
    _idle_closer: IdleCloser,
}

impl NfsOverLinks {
    pub fn new(offered: &[usize], plan: &Plan, state: &Arc<DurableState>) -> Self {
        let exports = offered.iter().filter_map(|&index| plan.exports.get(index));
        let names = exports.map(|export| export.name.to_string()).collect();
        Self { state: Arc::clone(state), offered: offered.to_vec(), names, made: Mutex::default() }
    }

    fn service(&self) -> Result<Arc<dyn Service>, String> {
        let mut made = lock(&self.made);
        if let Some(made) = &*made {
            return Ok(Arc::clone(&made.links));
        }
        let service = self.state.service(&self.offered).map_err(|failure| failure.to_string())?;
        let idle_closer = IdleCloser::start(&service).map_err(|error| error.to_string())?;
        let links: Arc<dyn Service> =
            Arc::new(RpcLinks::new(service, self.names.clone(), BufferLimits::default()));
        *made = Some(Made { links: Arc::clone(&links), _idle_closer: idle_closer });
        Ok(links)
    }
}

impl Service for NfsOverLinks {
    fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        let service = self.service().map_err(|why| {
            tracing::error!(peer = &*peer.label, why, "NFS over shared memory is unavailable");
            Refusal::Failed(why.into())
        })?;
        service.open(peer)
    }
}
