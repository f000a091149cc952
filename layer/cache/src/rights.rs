//! Cached permissions: each answer of the origin is for one user and one file, and valid for a while.

use std::time::{Duration, Instant};

use tombolo_core::Identity;
use tombolo_core::fs::{AccessMask, Timestamp};

/// Maximum number of users cached for one file; the one with the oldest answer is dropped first.
const USERS_MAX: usize = 16;

/// Lifetime of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Unlimited, also after a restart.
    Ever,
    /// Limited to this time.
    Time(Duration),
}

/// Cached answers about one file.
#[derive(Debug, Default)]
pub(crate) struct Rights(Vec<Right>);

#[derive(Debug)]
struct Right {
    user: Identity,
    /// Permissions that the answer concerns; and the granted ones among them.
    known: AccessMask,
    allowed: AccessMask,
    /// Ctime of the file with which the answer is valid; a change of mode or owner changes the ctime.
    ctime: Timestamp,
    /// Time of the request; `None` if unknown, as the answer was restored.
    asked: Option<Instant>,
}

/// Stored form of an answer: the user, the permissions that it concerns, those granted, and the file's ctime
/// for which it is valid.
pub(crate) type RightRow = (Identity, AccessMask, AccessMask, Timestamp);

impl Rights {
    /// Stores an answer to a request made at `asked`.
    pub(crate) fn learn(
        &mut self,
        user: &Identity,
        asked_for: AccessMask,
        allowed: AccessMask,
        ctime: Timestamp,
        asked: Instant,
    ) {
        let before = self.0.iter().position(|right| right.user == *user).map(|at| self.0.remove(at));
        let asked = Some(asked);
        let mut right = Right { user: user.clone(), known: asked_for, allowed, ctime, asked };
        // Permissions cached before and not queried now stay; the merged answer is as old as they are.
        if let Some(before) = before.filter(|before| before.ctime == ctime) {
            let others = before.known - asked_for;
            right.known |= others;
            right.allowed |= before.allowed & others;
            right.asked = if others.is_empty() { asked } else { asked.min(before.asked) };
        }
        if self.0.len() >= USERS_MAX {
            self.0.remove(0);
        }
        self.0.push(right);
    }

    /// Keeps answers valid over a local change of the ctime that left mode and owner unchanged.
    pub(crate) fn carry(&mut self, from: Timestamp, to: Timestamp) {
        self.0.iter_mut().filter(|right| right.ctime == from).for_each(|right| right.ctime = to);
    }

    /// Returns whether a user has all permissions of `mask`, if a valid answer is cached.
    pub(crate) fn allow(
        &self,
        user: &Identity,
        mask: AccessMask,
        ctime: Timestamp,
        now: Instant,
        life: Life,
    ) -> Option<bool> {
        let right = self.0.iter().find(|right| right.user == *user)?;
        let believed = match (life, right.asked) {
            (Life::Ever, _) => true,
            (Life::Time(time), Some(asked)) => now.saturating_duration_since(asked) <= time,
            (Life::Time(_), None) => false,
        };
        let applies = right.known.contains(mask) && right.ctime == ctime;
        (believed && applies).then(|| right.allowed.contains(mask))
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Right>()
    }

    pub(crate) fn rows(&self) -> Vec<RightRow> {
        self.0.iter().map(|right| (right.user.clone(), right.known, right.allowed, right.ctime)).collect()
    }

    /// Restores stored answers, whose age is unknown.
    pub(crate) fn restored(rows: Vec<RightRow>) -> Self {
        let rights = rows.into_iter().take(USERS_MAX);
        Self(
            rights
                .map(|(user, known, allowed, ctime)| Right { user, known, allowed, ctime, asked: None })
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: AccessMask = AccessMask::READ;
    const WRITE: AccessMask = AccessMask::WRITE;

    fn user(uid: u32) -> Identity {
        Identity { uid, gid: uid, groups: None }
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    #[test]
    fn permission_is_valid_for_one_user_version_and_time() {
        let (mut rights, now) = (Rights::default(), Instant::now());
        let life = Life::Time(Duration::from_secs(60));
        rights.learn(&user(1), READ, READ, at(1), now);
        assert_eq!(rights.allow(&user(1), READ, at(1), now, life), Some(true));
        assert_eq!(rights.allow(&user(2), READ, at(1), now, life), None);
        let other_groups = Identity { groups: Some([7].into()), ..user(1) };
        assert_eq!(rights.allow(&other_groups, READ, at(1), now, life), None);
        assert_eq!(rights.allow(&user(1), READ | WRITE, at(1), now, life), None);
        assert_eq!(rights.allow(&user(1), READ, at(2), now, life), None, "the mode may have changed");
        let later = now + Duration::from_secs(61);
        assert_eq!(rights.allow(&user(1), READ, at(1), later, life), None);
        assert_eq!(rights.allow(&user(1), READ, at(1), later, Life::Ever), Some(true));
    }

    #[test]
    fn learning_one_permission_keeps_another() {
        let (mut rights, now) = (Rights::default(), Instant::now());
        rights.learn(&user(1), READ, READ, at(1), now);
        rights.learn(&user(1), WRITE, AccessMask::empty(), at(1), now);
        assert_eq!(rights.allow(&user(1), READ, at(1), now, Life::Ever), Some(true));
        assert_eq!(rights.allow(&user(1), WRITE, at(1), now, Life::Ever), Some(false));
        rights.learn(&user(1), WRITE, WRITE, at(2), now);
        assert_eq!(rights.allow(&user(1), READ, at(2), now, Life::Ever), None);
    }

    #[test]
    fn permissions_survive_restart_only_without_other_writers() {
        let (mut rights, now) = (Rights::default(), Instant::now());
        rights.learn(&user(1), READ, READ, at(1), now);
        let rights = Rights::restored(rights.rows());
        assert_eq!(rights.allow(&user(1), READ, at(1), now, Life::Ever), Some(true));
        assert_eq!(rights.allow(&user(1), READ, at(1), now, Life::Time(Duration::MAX)), None);
    }

    #[test]
    fn many_users_take_bounded_room() {
        let (mut rights, now) = (Rights::default(), Instant::now());
        (0..1000).for_each(|uid| rights.learn(&user(uid), READ, READ, at(1), now));
        assert_eq!(rights.0.len(), USERS_MAX);
        assert_eq!(rights.allow(&user(999), READ, at(1), now, Life::Ever), Some(true));
    }
}
