//! NFS over links in shared memory: losses of links, identities, and peers that lie.

mod guests;
mod identities;
mod liars;
mod losses;
