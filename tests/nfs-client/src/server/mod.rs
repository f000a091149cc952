//! A server that answers as a script says.
//!
//! [`Scripted`] is a proxy between a client and a correct server. It passes each call to the script as a
//! [`ReceivedCall`]; the script returns a [`ScriptedReply`]: the server's reply, an edited reply, arbitrary
//! bytes, or none. All other replies are the server's, so that the scripted change is the only fault.
//!
//! Non-goals: lost and duplicated datagrams, and simulated time; see [`wire`](crate::wire).
//!
//! Reading order: `received_call`, `scripted_reply`, `scripted`, `upstream`, `speaker`.

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
