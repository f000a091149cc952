//! NFS over links in shared memory: lost links, identities, and protocol violations by peers.

mod client_violations;
mod identities;
mod losses;
mod server_violations;
