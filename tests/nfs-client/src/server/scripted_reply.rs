//! Replies of a scripted server.

use std::time::Duration;

/// A change of a reply's results.
pub type Edit = Box<dyn FnOnce(&mut Vec<u8>) + Send>;

/// Reply of a scripted server to a call.
pub enum ScriptedReply {
    /// The correct server's reply.
    Forward,
    /// The correct server's reply with edited results (behind the reply header).
    Edited(Edit),
    /// A success reply with these results.
    Results(Vec<u8>),
    /// This message, as one record or datagram.
    Record(Vec<u8>),
    /// These bytes, unframed.
    Bytes(Vec<u8>),
    /// These bytes, repeated.
    Repeated(Vec<u8>, usize),
    /// No reply.
    Silence,
    /// Closes the connection.
    Close,
    /// Resets the connection.
    Reset,
    /// Relays the call and drops the reply.
    Dropped,
    /// A delayed reply. All other calls of the connection wait.
    After(Duration, Box<ScriptedReply>),
    /// Several replies in turn.
    All(Vec<ScriptedReply>),
}

impl ScriptedReply {
    /// Relays the call and edits the results.
    pub fn edited(edit: impl FnOnce(&mut Vec<u8>) + Send + 'static) -> Self {
        Self::Edited(Box::new(edit))
    }

    /// Relays the call and overwrites the results at `at`.
    pub fn patched(at: usize, bytes: &[u8]) -> Self {
        let bytes = bytes.to_vec();
        Self::edited(move |results| {
            let field = results.get_mut(at..at + bytes.len()).expect("results that reach so far");
            field.copy_from_slice(&bytes);
        })
    }

    /// Schedules the reply after a delay.
    pub fn after(self, time: Duration) -> Self {
        Self::After(time, Box::new(self))
    }
}
