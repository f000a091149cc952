//! Set-up of a link: layout of regions, roles, negotiation, liveness. `host/links` adds sockets and threads.
//!
//! Reading order: `layout`, `ends`, `header`, `terms`, `message`, `region_forwarding`, `negotiate`,
//! `heartbeat`; for links without a socket `rendezvous_page`, `handshake`.

mod ends;
mod handshake;
mod header;
mod heartbeat;
mod layout;
mod message;
mod negotiate;
mod raw;
mod region_forwarding;
mod rendezvous_page;
mod terms;

pub use ends::{DoorbellKind, Ends, Epoch, Extent, Role};
pub use handshake::{ClientHandshake, ClientStep, HELLO_TIMEOUT, LinkEnd, ServerHandshake, ServerStep};
pub use header::{DOORBELL_OFFSET, HEARTBEAT_OFFSET, Header, HeaderError, NOTIFY_FLAG_OFFSET};
pub use heartbeat::{BEAT, Health, HeartbeatSender, HeartbeatTimeouts, SLOW_BEAT, Watch};
pub use layout::{
    BACK_SLOTS_MAX, BACK_SLOTS_MIN, FRAME_BYTES, HEADER_BYTES, Layout, LayoutError, REGION_BYTES_MAX,
    SLOT_BYTES, SLOTS_MAX, SLOTS_MIN,
};
pub use message::{
    Cause, Goodbye, Hello, LABEL_BYTES_MAX, MESSAGE_BYTES_MAX, Message, MessageError, NAME_BYTES_MAX,
    REASON_BYTES_MAX, RefusalCode, Refused, Welcome,
};
pub use negotiate::{Limits, WelcomeError};
pub use region_forwarding::{FORWARDED_REGIONS_MAX, ForwardRegion, RegionForwarded, Withdraw};
pub use rendezvous_page::{PageError, length_of};
pub use terms::{Agreement, Doorbells, Features, Incarnation, Protocol, VERSION};
