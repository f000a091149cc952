//! POSIX and flock locks.

use super::super::body::Body;
use super::Call;
use tombolo_core::fs::{Lock, LockFamily, LockKind, LockOwner, LockRange};
use tombolo_core::{Answer, Error};
use tombolo_wire_fuse::layout::lock::OFFSET_MAX;
use tombolo_wire_fuse::reply::LockConflict;
use tombolo_wire_fuse::{self as wire, request};

pub(super) fn test(call: Call<'_>, lock: &request::Lock) -> Answer<Body> {
    let Some(locks) = call.fs.locks() else { return Answer::err(Error::NotImplemented) };
    let Some(wanted) = wanted(lock) else { return Answer::ok(Body::Lock(None)) };
    locks.test(call.ctx, call.file(lock.handle), &wanted).map(|found| Body::Lock(found.map(blocker)))
}

pub(super) fn set(call: Call<'_>, lock: &request::Lock, wait: bool) -> Answer<Body> {
    let Some(locks) = call.fs.locks() else { return Answer::err(Error::NotImplemented) };
    let file = call.file(lock.handle);
    let answer = match wanted(lock) {
        Some(wanted) => {
            if wanted.family == LockFamily::Posix {
                call.session.posix_locks.lock(file, wanted.owner);
            }
            locks.lock(call.ctx, file, &wanted, wait)
        }
        None => locks.unlock(call.ctx, file, family(lock), range(lock), LockOwner(lock.owner.0)),
    };
    answer.map(|()| Body::Empty)
}

/// Returns the requested lock, or `None` for an unlock.
fn wanted(lock: &request::Lock) -> Option<Lock> {
    let kind = match lock.kind {
        request::LockKind::Read => LockKind::Read,
        request::LockKind::Write => LockKind::Write,
        request::LockKind::Unlock => return None,
    };
    Some(Lock {
        family: family(lock),
        kind,
        range: range(lock),
        owner: LockOwner(lock.owner.0),
        pid: lock.pid,
    })
}

fn family(lock: &request::Lock) -> LockFamily {
    if lock.is_flock { LockFamily::Flock } else { LockFamily::Posix }
}

fn range(lock: &request::Lock) -> LockRange {
    if lock.is_flock {
        return LockRange::ALL;
    }
    LockRange { start: lock.start, last: if lock.last >= OFFSET_MAX { u64::MAX } else { lock.last } }
}

fn blocker(lock: Lock) -> LockConflict {
    LockConflict {
        kind: match lock.kind {
            LockKind::Read => request::LockKind::Read,
            LockKind::Write => request::LockKind::Write,
        },
        start: lock.range.start,
        last: lock.range.last,
        pid: lock.pid,
        owner: wire::LockOwner(lock.owner.0),
    }
}
