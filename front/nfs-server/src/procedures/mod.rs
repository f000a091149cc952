//! The procedures of NFS version 3, each a function from its arguments to its results.

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

/// The largest page of a listing, whatever is asked for.
const LISTING_MAX_BYTES: u32 = 1 << 18;
/// The page that we suggest.
const LISTING_PREFERRED_BYTES: u32 = 1 << 16;
