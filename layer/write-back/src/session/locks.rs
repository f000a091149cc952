//! Advisory locks among the clients of this proxy, in memory. Locks are refused while others may use the tree
//! without the proxy, since they would not see the locks.

use tombolo_core::fs::{File, Lock, LockFamily, LockOwner, LockRange, Locks};
use tombolo_core::{Answer, Ctx, lock};

use super::file_system::WriteBackFileSystem;
use super::opening_in;

impl Locks for WriteBackFileSystem {
    fn test(&self, _: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        let session = self.session();
        session.opening(file).and_then(|_| session.locks.test(file, lock)).into()
    }

    fn lock(&self, cx: &Ctx, file: File, asked: &Lock, wait: bool) -> Answer<()> {
        let session = self.session();
        let openings = lock(&session.openings);
        let flags = match opening_in(&openings, file) {
            Ok(opening) => opening.flags,
            Err(error) => return Answer::err(error),
        };
        let (answer, woken) = session.locks.lock(cx, (file, flags), asked, wait);
        // The lock of the openings is released first, as woken requests may need it.
        drop(openings);
        drop(woken);
        answer
    }

    fn unlock(
        &self,
        _: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()> {
        let session = self.session();
        let unlocked = session.opening(file).and_then(|_| session.locks.unlock(file, family, range, owner));
        unlocked.map(drop).into()
    }
}
