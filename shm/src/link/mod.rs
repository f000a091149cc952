//! What two ends of a link agree on: where things lie in a region, who is who, and whether the other side lives.

mod ends;
mod layout;

pub use ends::{BellKind, Ends, Epoch, Extent, Role};
pub use layout::{
    BACK_SLOTS_MAX, BACK_SLOTS_MIN, FRAME_BYTES, HEADER_BYTES, Layout, LayoutError, REGION_BYTES_MAX,
    SLOT_BYTES, SLOTS_MAX, SLOTS_MIN,
};
