//! Locks, kept in the lock table of the export (`tombolo_core::fs::LockTable`).

use tombolo_core::fs::{File, Lock, LockFamily, LockOwner, LockRange, Locks};
use tombolo_core::{Answer, Ctx, Result, or_answer};

use super::{Session, View};

impl Locks for Session {
    fn test(&self, _cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        self.view().test_lock(file, lock).into()
    }

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        self.view().take_lock(cx, file, lock, wait)
    }

    fn unlock(
        &self,
        _cx: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()> {
        self.view().unlock(file, family, range, owner).into()
    }
}

impl View<'_> {
    fn test_lock(&self, file: File, lock: &Lock) -> Result<Option<Lock>> {
        self.opening(file)?;
        self.session.locks.test(file, lock)
    }

    fn take_lock(&mut self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        let opening = or_answer!(self.opening(file));
        let (answer, woken) = self.session.locks.lock(cx, (file, opening.flags), lock, wait);
        self.woken.absorb(woken);
        answer
    }

    fn unlock(&mut self, file: File, family: LockFamily, range: LockRange, owner: LockOwner) -> Result<()> {
        self.opening(file)?;
        self.woken.absorb(self.session.locks.unlock(file, family, range, owner)?);
        Ok(())
    }
}
