//! Procedures of NFS version 3 and of the side program: functions from arguments to results.

pub(crate) mod attributes;
pub(crate) mod data;
pub(crate) mod digests;
pub(crate) mod lease;
pub(crate) mod lending;
pub(crate) mod listing;
pub(crate) mod making;
pub(crate) mod names;
pub(crate) mod packing;
pub(crate) mod removing;
pub(crate) mod subtree;
pub(crate) mod volume;

/// Maximum size of a listing page.
const LISTING_MAX_BYTES: u32 = 1 << 18;
/// Preferred size of a listing page (FSINFO).
const LISTING_PREFERRED_BYTES: u32 = 1 << 16;
