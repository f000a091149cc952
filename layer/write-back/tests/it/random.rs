//! Random changes: in the end, the origin must equal a twin that was changed directly.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_back_memory::Memory;
use tombolo_core::Result;
use tombolo_core::fs::{File, RenameFlags};
use tombolo_test_support::{READ_WRITE, Session};

use crate::shown::{HIDDEN, set_mtime, tree};
use crate::trouble::Trouble;
use crate::world::Origin;

/// A change of a tree. Its outcome depends on the tree alone.
#[derive(Clone, Debug)]
pub enum Action {
    Put(String, Vec<u8>),
    Write(String, u64, Vec<u8>),
    Cut(String, u64),
    Mode(String, u32),
    Owner(String, u32),
    Time(String, i64),
    SetXattr(String, u8),
    RemoveXattr(String),
    Link(String, String),
    Symlink(String, String),
    Rename(String, String),
    Swap(String, String),
    Unlink(String),
    Mkdir(String),
    Rmdir(String),
    /// Opens a file that stays open, in place of the previous one.
    Hold(String),
    /// Writes to the open file.
    WriteHeld(u64, Vec<u8>),
}

/// Returns the number of sequences: `TOMBOLO_CASES`, or a few.
fn cases() -> u64 {
    std::env::var("TOMBOLO_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(4)
}

/// Returns a path of few possible names, so that they are created, moved and removed repeatedly.
fn path(random: &mut fastrand::Rng) -> String {
    let depth = random.usize(1..=3);
    let parts: Vec<_> = (0..depth).map(|_| ["a", "b", "c", "d"][random.usize(0..4)]).collect();
    parts.join("/")
}

impl Action {
    pub fn random(random: &mut fastrand::Rng) -> Self {
        let most = if random.u8(0..4) == 0 { 40_000 } else { 100 };
        let len = random.usize(0..most);
        let bytes = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
        let (one, other) = (path(random), path(random));
        match random.u8(0..26) {
            0..=3 => Self::Put(one, bytes),
            4 | 5 => Self::Write(one, random.u64(0..50_000), bytes),
            6 => Self::Cut(one, random.u64(0..50_000)),
            7 => Self::Mode(one, 0o700 | random.u32(0..0o100)),
            8 => Self::Owner(one, random.u32(0..5)),
            9 => Self::Time(one, random.i64(0..2_000_000_000)),
            10 | 11 => Self::Link(one, other),
            12 => Self::Symlink(one, other),
            13..=16 => Self::Rename(one, other),
            17 => Self::Swap(one, other),
            18 | 19 => Self::Unlink(one),
            20 | 21 => Self::Mkdir(one),
            22 => Self::Rmdir(one),
            23 => Self::SetXattr(one, random.u8(0..2)),
            24 => Self::RemoveXattr(one),
            _ if random.bool() => Self::Hold(one),
            _ => Self::WriteHeld(random.u64(0..1000), bytes),
        }
    }

    pub fn perform(&self, session: &Session, held: &mut Option<File>) -> Result<()> {
        match self {
            Self::Put(path, bytes) => session.try_put(path, bytes),
            Self::Write(path, offset, bytes) => {
                let file = session.open(path, READ_WRITE)?;
                let written = session.write(file, *offset, bytes);
                session.release(file);
                written.map(drop)
            }
            Self::Cut(path, size) => session.truncate(path, *size).map(drop),
            Self::Mode(path, mode) => session.chmod(path, *mode).map(drop),
            Self::Owner(path, id) => session.chown(path, *id, *id).map(drop),
            Self::Time(path, secs) => set_mtime(session, path, *secs),
            Self::SetXattr(path, value) => session.set_xattr(path, "user.a", &[*value]),
            Self::RemoveXattr(path) => session.remove_xattr(path, "user.a"),
            Self::Link(from, to) => session.link(from, to).map(drop),
            Self::Symlink(target, path) => session.symlink(path, target.as_bytes()).map(drop),
            Self::Rename(from, to) => session.rename(from, to, RenameFlags::empty()).map(drop),
            Self::Swap(one, other) => session.rename(one, other, RenameFlags::EXCHANGE).map(drop),
            Self::Unlink(path) => session.unlink(path).map(drop),
            Self::Mkdir(path) => session.mkdir(path).map(drop),
            Self::Rmdir(path) => session.rmdir(path).map(drop),
            Self::Hold(path) => {
                let file = session.open(path, READ_WRITE)?;
                held.replace(file).into_iter().for_each(|file| session.release(file));
                Ok(())
            }
            Self::WriteHeld(offset, bytes) => match held {
                Some(file) => session.write(*file, *offset, bytes).map(drop),
                None => Ok(()),
            },
        }
    }
}

/// A session and its open file.
pub struct Side {
    pub session: Session,
    pub held: Option<File>,
}

impl Side {
    pub fn new(session: Session) -> Self {
        Self { session, held: None }
    }

    /// Closes the open file.
    pub fn let_go(&mut self) {
        self.held.take().into_iter().for_each(|file| self.session.release(file));
    }

    pub fn perform(&mut self, action: &Action) -> std::result::Result<(), String> {
        action.perform(&self.session, &mut self.held).map_err(|error| error.to_string())
    }
}

#[test]
fn the_origin_becomes_what_a_twin_is() {
    for seed in 0..cases() {
        let mut random = fastrand::Rng::with_seed(seed);
        let origin = Origin::new();
        let twin: Arc<Memory> = Arc::default();
        let (mut twin, proxy) = (Side::new(Session::attach(&*twin)), origin.proxy());
        let mut here = Side::new(proxy.session.clone());
        for step in 0..400 {
            let action = Action::random(&mut random);
            let (expected, got) = (twin.perform(&action), here.perform(&action));
            assert_eq!(got, expected, "seed {seed}, step {step}: {action:?}");
            if random.u8(0..30) == 0 {
                proxy.write_back.flush().unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
                let context = format!("seed {seed}, step {step}");
                assert_eq!(tree(&origin.direct, false), tree(&twin.session, false), "{context}");
                assert_eq!(tree(&origin.direct, true), tree(&here.session, true), "{context}");
            }
        }
        if let (Some(file), Some(other)) = (twin.held, here.held) {
            let expected = twin.session.read_all(file, 0, usize::MAX);
            assert_eq!(here.session.read_all(other, 0, usize::MAX), expected, "seed {seed}");
            here.session.release(other);
        }
        proxy.write_back.flush().expect("a flush");
        let status = proxy.write_back.status();
        assert_eq!((status.dirty_bytes, status.dirty_nodes), (0, 0), "seed {seed}");
        assert_eq!(tree(&origin.direct, false), tree(&twin.session, false), "seed {seed}");
    }
}

/// Asserts that the origin and the proxy's view equal the twin; without times, as a directory may keep a
/// later one after a change that failed halfway.
fn compare(origin: &Origin, twin: &Side, here: &Side, context: &str) {
    assert_eq!(tree(&here.session, false), tree(&twin.session, false), "{context}");
    assert_eq!(tree(&origin.direct, false), tree(&twin.session, false), "{context}");
}

#[test]
fn origin_failures_and_proxy_ends_lose_or_repeat_nothing() {
    for seed in 0..cases() {
        let mut random = fastrand::Rng::with_seed(seed);
        let trouble = Trouble::new(seed);
        let origin = Origin::with(|memory| trouble.over(memory));
        let twin: Arc<Memory> = Arc::default();
        let (mut twin, mut proxy) = (Side::new(Session::attach(&*twin)), origin.proxy());
        let mut here = Side::new(proxy.session.clone());
        for step in 0..400 {
            let action = Action::random(&mut random);
            let (expected, got) = (twin.perform(&action), here.perform(&action));
            let context = format!("seed {seed}, step {step}: {action:?}");
            assert_eq!(got, expected, "{context}");
            match random.u8(0..60) {
                0..=2 => {
                    trouble.rate.store([5, 30, 200][random.usize(0..3)], Ordering::Relaxed);
                    let flushed = proxy.write_back.flush();
                    trouble.rate.store(0, Ordering::Relaxed);
                    if flushed.is_ok() {
                        compare(&origin, &twin, &here, &context);
                    }
                }
                3 => {
                    here.let_go();
                    twin.let_go();
                    drop((here, proxy));
                    proxy = origin.proxy();
                    here = Side::new(proxy.session.clone());
                    assert_eq!(tree(&here.session, false), tree(&twin.session, false), "{context}");
                }
                4 => {
                    proxy.write_back.flush().unwrap_or_else(|error| panic!("{context}: {error}"));
                    compare(&origin, &twin, &here, &context);
                }
                _ => {}
            }
        }
        here.let_go();
        proxy.write_back.flush().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        compare(&origin, &twin, &here, &format!("seed {seed}"));
        let status = proxy.write_back.status();
        assert_eq!((status.dirty_bytes, status.dirty_nodes, status.conflicts), (0, 0, 0), "seed {seed}");
        let hidden = origin.direct.names("").into_iter().filter(|name| name.starts_with(HIDDEN));
        assert_eq!(hidden.count(), 0, "seed {seed}");
    }
}
