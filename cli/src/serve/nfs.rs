//! The NFS servers of a server.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tombolo_front_nfs_server::NfsServer;
use tombolo_host::rpc_server::{Listeners, Options as TransportOptions};

use super::kept::Kept;
use super::nfs_options::{NfsPlan, PlannedPlace};
use super::plan::Plan;
use crate::failure::Failure;
use crate::service::NfsCounts;

/// The places where NFS clients call, taken early, so that a busy one is known before anything else happens.
pub struct Taken(Vec<(SocketAddr, TcpListener)>);

/// Everything that serves NFS over a network.
pub struct NfsServers {
    places: Vec<Place>,
}

/// One port.
pub struct Place {
    /// Where it is.
    pub address: SocketAddr,
    /// Where in the plan's exports those are that are offered.
    pub exports: Vec<usize>,
    server: Arc<NfsServer>,
}

impl Taken {
    /// Takes all ports of a plan.
    pub fn take(plan: &NfsPlan) -> Result<Self, Failure> {
        let take = |place: &PlannedPlace| {
            let listener =
                TcpListener::bind(place.address).and_then(|listener| Ok((listener.local_addr()?, listener)));
            listener.map_err(|error| Failure::cannot(format_args!("serve NFS at {}", place.address), &error))
        };
        plan.places.iter().map(take).collect::<Result<_, _>>().map(Self)
    }
}

impl NfsServers {
    /// Starts what was planned, on ports that were taken.
    pub fn start(plan: &Plan, taken: Taken, kept: &Kept) -> Result<Self, Failure> {
        if plan.nfs.places.is_empty() {
            return Ok(Self { places: Vec::new() });
        }
        let mut places = Vec::with_capacity(plan.nfs.places.len());
        for (place, (address, listener)) in plan.nfs.places.iter().zip(taken.0) {
            let serving = format!("serve NFS at {address}");
            let service = kept.service(&place.exports)?;
            drop(listener);
            let server = NfsServer::start(&listeners(address, plan), transport(plan), &service)
                .map_err(|error| Failure::cannot(&serving, &error))?;
            if plan.nfs.allow.is_open() && !address.ip().is_loopback() {
                tracing::warn!(%address, "whoever can reach this address may call; --allow CIDR narrows that");
            }
            places.push(Place { address, exports: place.exports.clone(), server: Arc::new(server) });
        }
        Ok(Self { places })
    }

    /// The ports.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Where to ask what they have done. It does not keep them open.
    pub fn counts(&self) -> Vec<NfsCounts> {
        let of = |place: &Place| {
            let server = Arc::downgrade(&place.server);
            let counts = move || server.upgrade().map(|server| server.counts());
            (place.address.to_string(), Box::new(counts) as _)
        };
        self.places.iter().map(of).collect()
    }
}

fn listeners(address: SocketAddr, plan: &Plan) -> Listeners {
    Listeners { tcp: vec![address], udp: if plan.nfs.udp { vec![address] } else { Vec::new() } }
}

fn transport(plan: &Plan) -> TransportOptions {
    let mut options = TransportOptions::default();
    if let Some(threads) = plan.nfs.threads {
        options.threads = threads;
    }
    options
}
