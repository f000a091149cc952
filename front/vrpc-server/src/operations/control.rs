//! Requests about the session itself, and those that release nodes and openings.

use std::sync::Arc;

use smallvec::SmallVec;
use tombolo_core::fs::File;
use tombolo_core::{Error, Identity};
use tombolo_host_links::ProtocolError;
use tombolo_wire_vrpc::{Forgets, Groups, Offers, Reply, Session};

use crate::exchange::Exchange;

/// Maximum number of nodes forgotten per call.
const FORGETS_AT_ONCE: usize = 32;

pub(super) fn profile(exchange: Exchange<'_>) {
    let (fs, options) = (exchange.fs(), &exchange.shared.options);
    let mut offers = Offers::empty();
    offers.set(Offers::XATTRS, exchange.xattrs().is_some());
    offers.set(Offers::LOCKS, fs.locks().is_some());
    offers.set(Offers::HANDLES, fs.persistent_handles().is_some());
    offers.set(Offers::RANGES, fs.ranges().is_some());
    offers.set(Offers::CHANGES, fs.changes().is_some());
    offers.set(Offers::VERSIONS, fs.versions().is_some());
    let session = Session {
        profile: fs.profile(),
        offers,
        volume: fs.persistent_handles().map(|handles| handles.volume()).unwrap_or_default(),
        transfer_bytes_max: options.transfer_bytes_max,
        callers_max: options.callers_max,
    };
    exchange.answer(Ok(session).into(), Reply::Session);
}

pub(super) fn caller(exchange: Exchange<'_>, uid: u32, gid: u32, groups: Groups<'_>) {
    let caller = exchange.caller;
    let groups = (!groups.is_empty()).then(|| groups.iter().collect::<Arc<[u32]>>());
    let identity = exchange.shared.identity_policy.identity(Identity { uid, gid, groups });
    let identity = identity.map(|identity| exchange.shared.options.squash.identity(identity));
    let is_refused = identity.is_none();
    if !exchange.shared.callers.set(caller, identity) {
        exchange.cut(ProtocolError::Malformed(format!("caller {} is beyond the limit", caller.0).into()));
    } else if is_refused {
        tracing::debug!(session = exchange.shared.id.0, uid, gid, "identity refused to a peer");
        exchange.refuse(Error::NotPermitted);
    } else {
        exchange.done();
    }
}

pub(super) fn interrupt(exchange: Exchange<'_>, id: u32) {
    exchange.shared.pending.interrupt(id);
    exchange.done();
}

pub(super) fn forget(exchange: Exchange<'_>, forgets: Forgets<'_>) {
    let mut all = forgets.iter();
    loop {
        let some: SmallVec<[_; FORGETS_AT_ONCE]> = all.by_ref().take(FORGETS_AT_ONCE).collect();
        if some.is_empty() {
            break;
        }
        exchange.fs().forget(exchange.cx, &some);
    }
    exchange.done();
}

pub(super) fn release(exchange: Exchange<'_>, file: File) {
    exchange.fs().release(exchange.cx, file);
    exchange.done();
}
