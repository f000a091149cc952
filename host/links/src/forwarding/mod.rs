//! Region forwarding: data by reference through more than two domains. Memory that a client shares with
//! this process is forwarded to a further server, which maps it too, so that this process, in between,
//! copies nothing (docs/formats/link.md, "Region forwarding").
//!
//! A [`ForwardableRegion`] is attached as a note to the region of such memory when a peer permits it. For
//! the addresses under which a server has mapped them, a back end that passes its bytes on calls
//! `Line::remote_buffer`; the first call forwards the region. [`ForwardedRegions`] is the server's side.
//!
//! A buffer returns to its owner with the answer, so this process answers its client only once the server
//! has answered. If the link to the server ends, and the server's process may still be alive, memory that
//! the server may be reading must not be reused: the link to which the memory belongs ends, and the memory
//! with it ([decision links-forwarding](../../../../docs/decisions/links-forwarding.md)).
//!
//! Reading order: `forwardable_region`, `region_forwarder`, `forwarded_regions`.

mod forwardable_region;
mod forwarded_regions;
mod region_forwarder;

pub(super) use forwardable_region::{CutFn, ForwardableRegion};
pub(super) use forwarded_regions::ForwardedRegions;
pub(super) use region_forwarder::RegionForwarder;
pub use region_forwarder::{Loan, RemoteBuffer};
