//! A server that says what a test wants it to.
//!
//! [`Scripted`] stands between a client and an honest server. Of each call it shows the script an
//! [`ReceivedCall`], and the script answers with what to [`ScriptedReply`]: the truth, the truth with some
//! bytes changed, any bytes at all, nothing. Most of what a client meets is honest so, with good handles and
//! true attributes, and the scripted change is the only fault.
//!
//! Not here: lost and doubled datagrams, and time; the simulated wire has those.
//!
//! Reading order: `asked`, `say`, `scripted`, `behind`, `speaker`.

mod listing;
mod received_call;
mod scripted;
mod scripted_reply;
mod speaker;
mod upstream;

pub use listing::{Page, listing};
pub use received_call::ReceivedCall;
pub use scripted::{Scripted, Seen};
pub use scripted_reply::{Edit, ScriptedReply};
