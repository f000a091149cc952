//! One session's link, and what both sides know of each other.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::fs::{Error, Result};
use tombolo_host::links::client::{Call, Line, LineError};
use tombolo_host::links::{End, Lie};
use tombolo_host::task;
use tombolo_wire_vrpc::{BODY_BYTES, DecodeError, Header, Kind, Reply, Request, Session};

use crate::callers::Callers;
use crate::export::Connected;
use crate::reply::Answered;
use crate::room::Room;

/// One session's link.
pub(crate) struct Link {
    pub(crate) line: Line,
    /// What the server says of the session.
    pub(crate) terms: Session,
    pub(crate) callers: Arc<Callers>,
    pub(crate) room: Room,
    sequence: AtomicU64,
    _keep: Box<dyn Any + Send + Sync>,
}

impl Link {
    /// Asks the server what the session is; blocks until it has answered.
    pub(crate) fn begin(connected: Connected) -> Result<Arc<Self>> {
        let Connected { line, keep } = connected;
        let terms = profile(&line)?;
        Ok(Arc::new(Self {
            callers: Arc::new(Callers::new(terms.callers_max)),
            room: Room::default(),
            sequence: AtomicU64::new(1),
            terms,
            line,
            _keep: keep,
        }))
    }

    /// The number of a new request.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// The server broke the protocol: the link ends.
    pub(crate) fn senseless(&self, error: DecodeError) -> Error {
        senseless(&self.line, error)
    }

    /// As [`Link::senseless`], for what only the one who asked can know.
    pub(crate) fn lied(&self, what: &'static str) -> Error {
        self.line.cut(End::Lie(Lie::Senseless(what.into())));
        Error::io(what)
    }

    /// Asks that the request with this id end early. Nobody waits for the answer.
    pub(crate) fn interrupt(&self, id: u32) {
        let header = Header { sequence: self.next_sequence(), ..Header::default() };
        let mut body = [0; BODY_BYTES];
        let request = Request::Interrupt { id };
        if request.encode(&header, &mut body, &mut crate::ask::Measure::default()).is_ok() {
            unattended(self.line.call(request.kind().number(), body, |_| {}));
        }
    }
}

/// Lets a call go on though nobody waits for it. One that has not been sent yet would otherwise never be.
pub(crate) fn unattended(call: Call) {
    if call.id().is_none() {
        task::spawn(async move { drop(call.await) });
    }
}

/// What the waist says of a call that has no answer.
pub(crate) fn no_answer(error: LineError) -> Error {
    match error {
        LineError::Lost { .. } => Error::Disconnected,
        other => Error::io(other),
    }
}

pub(crate) fn senseless(line: &Line, error: DecodeError) -> Error {
    line.cut(End::Lie(Lie::Senseless(error.to_string().into())));
    Error::io(error)
}

fn profile(line: &Line) -> Result<Session> {
    let mut body = [0; BODY_BYTES];
    let mut nowhere = crate::ask::Measure::default();
    Request::Profile.encode(&Header::default(), &mut body, &mut nowhere).map_err(Error::io)?;
    let reply = line.call(Kind::Profile.number(), body, |_| {}).wait().map_err(no_answer)?;
    let answered = Answered { kind: Kind::Profile, reply };
    match answered.decode().map_err(|error| senseless(line, error))? {
        Ok(Reply::Session(terms)) => Ok(terms),
        Ok(_) => Err(Error::io("the server did not say what the session is")),
        Err(status) => Err(status.into()),
    }
}
