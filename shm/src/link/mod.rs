//! What two ends of a link agree on: where things lie in a region, who is who, and whether the other side lives.
//!
//! Reading order: `layout`, `ends`, `header`, `terms`, `message`, `introduction`, `negotiate`, `heart`; and where there is no socket `page`, `seat`.

mod ends;
mod header;
mod heart;
mod introduction;
mod layout;
mod message;
mod negotiate;
mod page;
mod seat;
mod terms;

pub use ends::{BellKind, Ends, Epoch, Extent, Role};
pub use header::{ASLEEP_OFFSET, BELL_OFFSET, HEARTBEAT_OFFSET, Header, HeaderError};
pub use heart::{BEAT, Health, Patience, Pulse, Watch};
pub use introduction::{INTRODUCTIONS_MAX, Introduce, Introduced, Withdraw};
pub use layout::{
    BACK_SLOTS_MAX, BACK_SLOTS_MIN, FRAME_BYTES, HEADER_BYTES, Layout, LayoutError, REGION_BYTES_MAX,
    SLOT_BYTES, SLOTS_MAX, SLOTS_MIN,
};
pub use message::{
    Cause, Goodbye, Hello, LABEL_BYTES_MAX, MESSAGE_BYTES_MAX, Message, MessageError, NAME_BYTES_MAX,
    REASON_BYTES_MAX, RefusalCode, Refused, Welcome,
};
pub use negotiate::{Limits, WelcomeError};
pub use page::{PageError, length_of};
pub use seat::{ClientSeat, ClientStep, HELLO_PATIENCE, PageEnd, ServerSeat, ServerStep};
pub use terms::{Agreement, Bells, Features, Instance, Protocol, VERSION};
