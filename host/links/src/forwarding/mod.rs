//! Region forwarding: data by reference through more than two domains. Memory that a client shares with us is
//! made known to a server of ours, which maps it too, so that the domain in the middle copies nothing
//! (docs/formats/link.md, "Region forwarding").
//!
//! [`ForwardableRegion`] is left as a note on the region of such memory when a peer allows it. A back end
//! that sends bytes of it on asks [`RegionForwarder::lend`] for the name by which its server knows them; the
//! first time, the region is forwarded. [`ForwardedRegions`] is what a server holds of it.
//!
//! A buffer is its owner's again when it is answered, so the middle answers only when it was answered itself.
//! If it loses the server and does not know it dead, what the server may still be reading is not to be used
//! again: the link that the memory belongs to ends, and the memory goes with it ([decision
//! links-forwarding](../../../../docs/decisions/links-forwarding.md)).
//!
//! Reading order: `forwardable_region`, `region_forwarder`, `forwarded_regions`.

mod forwardable_region;
mod forwarded_regions;
mod region_forwarder;

pub(super) use forwardable_region::{CutFn, ForwardableRegion};
pub(super) use forwarded_regions::ForwardedRegions;
pub(super) use region_forwarder::RegionForwarder;
pub use region_forwarder::{Loan, RemoteBuffer};
