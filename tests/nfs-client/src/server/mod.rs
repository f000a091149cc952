//! A server that says what a test wants it to.
//!
//! [`Scripted`] stands between a client and an honest server. Of each call it shows the script an [`Asked`], and the script answers with what
//! to [`Say`]: the truth, the truth with some bytes changed, any bytes at all, nothing. Most of what a client meets is honest so, with good
//! handles and true attributes, and the scripted change is the only fault.
//!
//! Not here: lost and doubled datagrams, and time; the simulated wire has those.
//!
//! Reading order: `asked`, `say`, `scripted`, `behind`, `speaker`.

mod asked;
mod behind;
mod say;
mod scripted;
mod speaker;

pub use asked::Asked;
pub use say::{Edit, Say};
pub use scripted::{Scripted, Seen};
