//! Limits shared by all connections of a client.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use tombolo_core::lock;
use tombolo_host_runtime::buffer_pool::{BufferLimits, BufferPool, Buffers, ClientAccount};

/// Limits of data memory. A request has at most 32 MiB, so a client's share suffices for a few requests.
const MEMORY: BufferLimits =
    BufferLimits { total_bytes: 512 << 20, share_bytes: 128 << 20, retained_bytes: 32 << 20 };

/// A client, identified by a property that it cannot choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// A remote host.
    Host(IpAddr),
    /// A process of this host.
    Process(i32),
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(address) => address.fmt(f),
            Self::Process(pid) => write!(f, "process {pid}"),
        }
    }
}

/// All connected clients.
pub(crate) struct Clients {
    pub(crate) pool: Arc<BufferPool>,
    connections_max: usize,
    connected: Mutex<ConnectedClients>,
}

#[derive(Default)]
struct ConnectedClients {
    count: usize,
    /// A client's memory account and its number of connections.
    clients: HashMap<Client, (Arc<ClientAccount>, usize)>,
}

impl Clients {
    pub(crate) fn new(connections_max: usize) -> Arc<Self> {
        Arc::new(Self { pool: BufferPool::new(MEMORY), connections_max, connected: Mutex::default() })
    }

    /// Admits one more connection; returns its permit and buffers. A client may have at most as many
    /// connections as remain free, so that one client does not use up all. Returns `None` at that limit.
    pub(crate) fn admit(self: &Arc<Self>, client: Client) -> Option<(Admitted, Buffers)> {
        let mut connected = lock(&self.connected);
        let free = self.connections_max - connected.count;
        // Refused clients leave no entry: there may be any number of them.
        if connected.clients.get(&client).map_or(0, |(_, own)| *own) >= free {
            return None;
        }
        let (share, own) = connected.clients.entry(client).or_insert_with(|| (self.pool.share(), 0));
        *own += 1;
        let buffers = Buffers::of(share.account());
        connected.count += 1;
        Some((Admitted { clients: self.clone(), client }, buffers))
    }
}

/// Permit for one connection of a client, returned on drop.
pub(crate) struct Admitted {
    clients: Arc<Clients>,
    client: Client,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut connected = lock(&self.clients.connected);
        connected.count -= 1;
        if let Some((_, own)) = connected.clients.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                connected.clients.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_hosts_share_all_connections_without_leaks() {
        let clients = Clients::new(16);
        let host = |number: u32| Client::Host(IpAddr::from(number.to_be_bytes()));
        let mut admitted: Vec<_> = (0..1000).filter_map(|number| clients.admit(host(number))).collect();
        assert_eq!(admitted.len(), 16);
        assert_eq!(lock(&clients.connected).clients.len(), 16);
        admitted.pop();
        assert!(clients.admit(host(1)).is_none(), "it has one, and one is left for others");
        assert!(clients.admit(host(500)).is_some());
        drop(admitted);
        assert_eq!(lock(&clients.connected).clients.len(), 0);
    }
}
