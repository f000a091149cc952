//! Conversion between the waist's attributes and NFS's.
//!
//! NFS times range from 1970 to 2106. Times outside of this range are clamped, never wrapped.

use tombolo_core::fs::{Attr, Change, Device, FileType, Mode, SetAttr, SetTime, StatFs, Timestamp, WeakAttr};
use tombolo_core::{Error, Stability};

use crate::args::StableHow;
use crate::results::FsstatOk;
use crate::{Fattr3, FileType3, NfsTime3, PostOpAttr, Sattr3, SetTime3, SpecData3, WccAttr, WccData};

const NANOS_PER_SEC: u32 = 1_000_000_000;
/// Unit of [`Attr::blocks`], in bytes.
const BLOCK_BYTES: u64 = 512;
/// [`Attr::block_size`] of a node, which NFS does not transmit.
const BLOCK_SIZE: u32 = 4096;
/// The id by which chown(2) leaves an owner unchanged. No user has it.
const NO_ID: u32 = u32::MAX;

/// Declares the conversions between an enum of the waist and NFS's, which differ only in their numbers.
macro_rules! conversions {
    ($($to:ident, $from:ident: $ours:ident, $theirs:ident { $($name:ident),+ })+) => {
        $(
            #[doc = concat!("Converts to [`", stringify!($theirs), "`].")]
            #[inline]
            #[must_use]
            pub const fn $to(value: $ours) -> $theirs {
                match value {
                    $($ours::$name => $theirs::$name,)+
                }
            }

            #[doc = concat!("Converts from [`", stringify!($theirs), "`].")]
            #[inline]
            #[must_use]
            pub const fn $from(value: $theirs) -> $ours {
                match value {
                    $($theirs::$name => $ours::$name,)+
                }
            }
        )+
    };
}

conversions! {
    file_type3, file_type: FileType, FileType3 {
        Regular, Directory, Symlink, BlockDevice, CharDevice, Fifo, Socket
    }
    stable_how, stability: Stability, StableHow { Unstable, DataSync, FileSync }
}

/// Converts to `nfstime3`, clamping to its range.
#[inline]
#[must_use]
pub const fn time3(time: Timestamp) -> NfsTime3 {
    if time.secs < 0 {
        NfsTime3 { seconds: 0, nseconds: 0 }
    } else if time.secs > u32::MAX as i64 {
        NfsTime3 { seconds: u32::MAX, nseconds: NANOS_PER_SEC - 1 }
    } else {
        NfsTime3 { seconds: time.secs as u32, nseconds: time.nanos }
    }
}

/// Converts from `nfstime3`. Nanoseconds beyond a second, which only a broken peer sends, are clamped.
#[inline]
#[must_use]
pub const fn time(time: NfsTime3) -> Timestamp {
    let nanos = if time.nseconds < NANOS_PER_SEC { time.nseconds } else { NANOS_PER_SEC - 1 };
    Timestamp { secs: time.seconds as i64, nanos }
}

/// Converts to `fattr3`.
#[inline]
#[must_use]
pub const fn fattr3(attr: &Attr) -> Fattr3 {
    Fattr3 {
        file_type: file_type3(attr.file_type),
        mode: attr.mode.bits(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.blocks.saturating_mul(BLOCK_BYTES),
        rdev: specdata3(attr.rdev),
        fsid: attr.fsid,
        fileid: attr.fileid,
        atime: time3(attr.atime),
        mtime: time3(attr.mtime),
        ctime: time3(attr.ctime),
    }
}

/// Converts from `fattr3`. Generation, birth time and preferred transfer size, which it lacks, are 0, `None`
/// and 4,096 bytes.
#[inline]
#[must_use]
pub const fn attr(fattr: &Fattr3) -> Attr {
    Attr {
        file_type: file_type(fattr.file_type),
        mode: Mode::new(fattr.mode),
        nlink: fattr.nlink,
        uid: fattr.uid,
        gid: fattr.gid,
        size: fattr.size,
        blocks: fattr.used.div_ceil(BLOCK_BYTES),
        block_size: BLOCK_SIZE,
        rdev: device(fattr.rdev),
        fsid: fattr.fsid,
        fileid: fattr.fileid,
        generation: 0,
        atime: time(fattr.atime),
        mtime: time(fattr.mtime),
        ctime: time(fattr.ctime),
        btime: None,
        volatile: false,
    }
}

/// Converts to `specdata3`.
#[inline]
#[must_use]
pub const fn specdata3(device: Device) -> SpecData3 {
    SpecData3 { major: device.major, minor: device.minor }
}

/// Converts from `specdata3`.
#[inline]
#[must_use]
pub const fn device(device: SpecData3) -> Device {
    Device { major: device.major, minor: device.minor }
}

/// Converts to `wcc_attr`.
#[inline]
#[must_use]
pub const fn wcc_attr(attr: &WeakAttr) -> WccAttr {
    WccAttr { size: attr.size, mtime: time3(attr.mtime), ctime: time3(attr.ctime) }
}

/// Converts from `wcc_attr`.
#[inline]
#[must_use]
pub const fn weak_attr(attr: &WccAttr) -> WeakAttr {
    WeakAttr { size: attr.size, mtime: time(attr.mtime), ctime: time(attr.ctime) }
}

/// Converts to `wcc_data`.
#[inline]
#[must_use]
pub fn wcc_data(change: &Change) -> WccData {
    WccData { before: change.before.as_ref().map(wcc_attr), after: change.after.as_ref().map(fattr3) }
}

/// Converts from `wcc_data`.
#[must_use]
pub fn change(wcc: &WccData) -> Change {
    Change { before: wcc.before.as_ref().map(weak_attr), after: wcc.after.as_ref().map(attr) }
}

/// Converts from `sattr3` and the guard of a SETATTR. [`SetAttr::kill_privileges`], which NFS does not
/// transmit, is left to the caller.
///
/// # Errors
/// [`Error::InvalidArgument`] for nanoseconds beyond a second, and for the user or group 2³²−1, which no node
/// can have.
pub fn set_attr(sattr: &Sattr3, guard: Option<NfsTime3>) -> Result<SetAttr, Error> {
    if sattr.uid == Some(NO_ID) || sattr.gid == Some(NO_ID) {
        return Err(Error::InvalidArgument);
    }
    Ok(SetAttr {
        mode: sattr.mode.map(Mode::new),
        uid: sattr.uid,
        gid: sattr.gid,
        size: sattr.size,
        atime: set_time(sattr.atime)?,
        mtime: set_time(sattr.mtime)?,
        guard_ctime: guard.map(time),
        kill_privileges: false,
    })
}

/// Converts to `sattr3` and the guard of a SETATTR.
#[must_use]
pub fn sattr3(set: &SetAttr) -> (Sattr3, Option<NfsTime3>) {
    let sattr = Sattr3 {
        mode: set.mode.map(Mode::bits),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set_time3(set.atime),
        mtime: set_time3(set.mtime),
    };
    (sattr, set.guard_ctime.map(time3))
}

fn set_time(time_how: SetTime3) -> Result<Option<SetTime>, Error> {
    match time_how {
        SetTime3::DontChange => Ok(None),
        SetTime3::Server => Ok(Some(SetTime::Now)),
        SetTime3::Client(at) if at.nseconds < NANOS_PER_SEC => Ok(Some(SetTime::At(time(at)))),
        SetTime3::Client(_) => Err(Error::InvalidArgument),
    }
}

fn set_time3(set: Option<SetTime>) -> SetTime3 {
    match set {
        None => SetTime3::DontChange,
        Some(SetTime::Now) => SetTime3::Server,
        Some(SetTime::At(at)) => SetTime3::Client(time3(at)),
    }
}

/// Converts to the results of FSSTAT, which guarantee no period of validity.
#[must_use]
pub fn fsstat(statfs: &StatFs, attributes: PostOpAttr) -> FsstatOk {
    let bytes = |blocks: u64| blocks.saturating_mul(u64::from(statfs.block_size));
    FsstatOk {
        attributes,
        total_bytes: bytes(statfs.blocks),
        free_bytes: bytes(statfs.blocks_free),
        available_bytes: bytes(statfs.blocks_available),
        total_files: statfs.files,
        free_files: statfs.files_free,
        available_files: statfs.files_free,
        invarsec: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64, nanos: u32) -> Timestamp {
        Timestamp { secs, nanos }
    }

    #[test]
    fn times_outside_of_nfs_range_are_clamped() {
        assert_eq!(time3(at(-1, 999_999_999)), NfsTime3 { seconds: 0, nseconds: 0 });
        assert_eq!(time3(at(1 << 32, 0)), NfsTime3 { seconds: u32::MAX, nseconds: 999_999_999 });
        let last = at(u32::MAX.into(), 999_999_999);
        assert_eq!(time(time3(last)), last);
        assert_eq!(time(NfsTime3 { seconds: 1, nseconds: u32::MAX }), at(1, 999_999_999));
    }

    #[test]
    fn attributes_survive_the_wire() {
        for file_type in FileType::ALL {
            let here = Attr {
                file_type,
                mode: Mode::new(0o4755),
                nlink: 3,
                uid: 1000,
                gid: 100,
                size: u64::MAX,
                blocks: 9,
                block_size: BLOCK_SIZE,
                rdev: Device { major: 8, minor: 1 },
                fsid: 77,
                fileid: 78,
                generation: 5,
                atime: at(1, 2),
                mtime: at(3, 4),
                ctime: at(5, 6),
                btime: Some(at(0, 0)),
                volatile: false,
            };
            let there = attr(&fattr3(&here));
            assert_eq!(there, Attr { generation: 0, btime: None, ..here });
            assert_eq!(fattr3(&here).used, 9 * 512);
            let around = Change { before: Some(WeakAttr::from(&here)), after: Some(there) };
            assert_eq!(change(&wcc_data(&around)), around);
        }
    }

    #[test]
    fn sattr_survives_the_wire() {
        let set = SetAttr {
            mode: Some(Mode::new(0o640)),
            uid: Some(0),
            gid: None,
            size: Some(1 << 40),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(at(7, 8))),
            guard_ctime: Some(at(9, 10)),
            kill_privileges: false,
        };
        let (sattr, guard) = sattr3(&set);
        assert_eq!(set_attr(&sattr, guard).unwrap(), set);
        let (nothing, guard) = sattr3(&SetAttr::default());
        assert_eq!((nothing, guard), (Sattr3::default(), None));
    }

    #[test]
    fn impossible_attribute_values_are_refused() {
        let broken_time = SetTime3::Client(NfsTime3 { seconds: 1, nseconds: NANOS_PER_SEC });
        for sattr in [
            Sattr3 { uid: Some(u32::MAX), ..Sattr3::default() },
            Sattr3 { gid: Some(u32::MAX), ..Sattr3::default() },
            Sattr3 { atime: broken_time, ..Sattr3::default() },
            Sattr3 { mtime: broken_time, ..Sattr3::default() },
        ] {
            assert!(matches!(set_attr(&sattr, None), Err(Error::InvalidArgument)), "{sattr:?}");
        }
    }

    #[test]
    fn fsstat_counts_in_bytes() {
        let statfs =
            StatFs { block_size: 4096, blocks: 10, blocks_free: u64::MAX, files: 5, ..StatFs::default() };
        let fsstat = fsstat(&statfs, None);
        assert_eq!((fsstat.total_bytes, fsstat.free_bytes, fsstat.total_files), (40_960, u64::MAX, 5));
    }
}
