//! INIT, INTERRUPT, DESTROY and unsupported requests.

use super::super::body::Body;
use super::super::{Session, init};
use super::Call;
use tombolo_core::{Answer, Error};
use tombolo_wire_fuse::Unique;
use tombolo_wire_fuse::init::{Negotiation, Offer, negotiate};

pub(super) fn init(session: &Session, offer: &Offer) -> Answer<Body> {
    if session.is_ready() {
        tracing::warn!(session = session.id.0, "second INIT refused");
        return Answer::err(Error::Io { source: None });
    }
    let mut preferences = init::preferences(session.file_system(), &session.options);
    preferences.capabilities |= session.options.extra;
    match negotiate(offer, &preferences) {
        Negotiation::Agreed(negotiated) => {
            session.set_negotiated(&negotiated);
            let capabilities = format!("{:?}", negotiated.capabilities);
            tracing::debug!(session = session.id.0, minor = negotiated.minor, capabilities, "session began");
            Answer::ok(Body::Init(Box::new(negotiated.reply)))
        }
        Negotiation::Again(reply) => Answer::ok(Body::Init(Box::new(reply))),
        Negotiation::TooOld { major, minor } => {
            tracing::error!(session = session.id.0, major, minor, "the kernel's FUSE version is too old");
            Answer::err(Error::NotSupported)
        }
    }
}

pub(super) fn interrupt(session: &Session, unique: Unique) -> Answer<Body> {
    session.pending.interrupt(unique);
    Answer::ok(Body::Silent)
}

pub(super) fn destroy(session: &Session) -> Answer<Body> {
    session.interrupt_all();
    Answer::ok(Body::Empty)
}

/// Common ioctls and their names for the log.
const KNOWN_IOCTLS: [(u32, &str); 7] = [
    (0x8008_6601, "FS_IOC_GETFLAGS"),
    (0x4008_6602, "FS_IOC_SETFLAGS"),
    (0x801c_581f, "FS_IOC_FSGETXATTR"),
    (0x401c_5820, "FS_IOC_FSSETXATTR"),
    (0x4004_9409, "FICLONE"),
    (0xc020_660b, "FS_IOC_FIEMAP"),
    (0x5401, "TCGETS"),
];

/// Refuses every ioctl: only the file system could interpret its argument, and most reach beyond the export.
pub(super) fn ioctl(call: Call<'_>, command: u32) -> Answer<Body> {
    let name = KNOWN_IOCTLS.iter().find(|(known, _)| *known == command);
    let name = name.map_or("unknown", |(_, name)| name);
    tracing::debug!(session = call.session.id.0, command, name, "ioctl refused");
    Answer::err(Error::NotDevice)
}
