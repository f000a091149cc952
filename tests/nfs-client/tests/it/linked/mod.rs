//! NFS over links in shared memory: losses of links, identities, and protocol violations by peers.

mod guests;
mod identities;
mod liars;
mod losses;
