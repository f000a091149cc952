//! Conversion between the waist's attributes and FUSE's.

use crate::dirent::DirentKind;
use crate::flags::S_IFMT;
use crate::layout::attr::{FuseAttr, FuseStatx, SetattrIn, SetattrValid, StatxMask, SxTime};
use crate::layout::misc::StatfsOut;
use tombolo_core::Error;
use tombolo_core::fs::{Attr, Device, FileType, Mode, SetAttr, SetTime, StatFs, Timestamp};

/// Returns the type in a mode's bits. No type bits mean a regular file, as for mknod(2).
///
/// # Errors
/// [`Error::InvalidArgument`] for invalid type bits.
pub fn file_type(mode: u32) -> Result<FileType, Error> {
    let file_type = if mode & S_IFMT == 0 { Some(FileType::Regular) } else { FileType::of_mode(mode) };
    file_type.ok_or(Error::InvalidArgument)
}

/// Returns the kind of a directory entry; [`DirentKind::UNKNOWN`] for `None`.
#[must_use]
pub fn dirent_kind(file_type: Option<FileType>) -> DirentKind {
    file_type.map_or(DirentKind::UNKNOWN, |file_type| DirentKind::from_mode(file_type.mode_bits()))
}

/// Encodes a device number in the kernel's 32-bit encoding (`new_encode_dev`): 12 bits of major, 20 of minor.
#[must_use]
pub fn device_to_wire(device: Device) -> u32 {
    (device.minor & 0xff) | ((device.major & 0xfff) << 8) | ((device.minor & 0xf_ff00) << 12)
}

/// Decodes a device number from the kernel's 32-bit encoding.
#[must_use]
pub fn device_from_wire(rdev: u32) -> Device {
    Device { major: (rdev >> 8) & 0xfff, minor: (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00) }
}

/// Converts to `struct fuse_attr`. Seconds before 1970 wrap, and the kernel unwraps them.
#[must_use]
pub fn to_wire(attr: &Attr) -> FuseAttr {
    FuseAttr {
        ino: attr.fileid,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.secs.cast_unsigned(),
        mtime: attr.mtime.secs.cast_unsigned(),
        ctime: attr.ctime.secs.cast_unsigned(),
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.file_type.mode_bits() | attr.mode.bits(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device_to_wire(attr.rdev),
        blksize: attr.block_size,
        flags: 0,
    }
}

/// Converts from `struct fuse_attr`, which lacks generation, creation time and file system: those are left
/// empty.
///
/// # Errors
/// [`Error::InvalidArgument`] for invalid type bits.
pub fn from_wire(raw: &FuseAttr) -> Result<Attr, Error> {
    let time = |secs: u64, nanos| Timestamp { secs: secs.cast_signed(), nanos };
    Ok(Attr {
        file_type: file_type(raw.mode)?,
        mode: Mode::new(raw.mode),
        nlink: raw.nlink,
        uid: raw.uid,
        gid: raw.gid,
        size: raw.size,
        blocks: raw.blocks,
        block_size: raw.blksize,
        rdev: device_from_wire(raw.rdev),
        fsid: 0,
        fileid: raw.ino,
        generation: 0,
        atime: time(raw.atime, raw.atimensec),
        mtime: time(raw.mtime, raw.mtimensec),
        ctime: time(raw.ctime, raw.ctimensec),
        btime: None,
        volatile: false,
    })
}

/// Converts to `struct fuse_statx`. The mask includes the creation time only if the node has one; the device
/// of the file system is left 0, since the kernel reports its own.
#[must_use]
pub fn to_statx(attr: &Attr) -> FuseStatx {
    let time = |time: Timestamp| SxTime { tv_sec: time.secs, tv_nsec: time.nanos, reserved: 0 };
    let birth = if attr.btime.is_some() { StatxMask::BTIME } else { StatxMask::empty() };
    FuseStatx {
        mask: (StatxMask::BASIC | birth).bits(),
        blksize: attr.block_size,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // Type and permissions together have 16 bits.
        mode: (attr.file_type.mode_bits() | attr.mode.bits()) as u16,
        ino: attr.fileid,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(attr.btime.unwrap_or_default()),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: attr.rdev.major,
        rdev_minor: attr.rdev.minor,
        ..Default::default()
    }
}

/// Converts from SETATTR's arguments. The change time is left to the server: it is sent only with the
/// write-back cache, which is never negotiated.
#[must_use]
pub fn set_attr(valid: SetattrValid, raw: &SetattrIn) -> SetAttr {
    let has = |bit| valid.contains(bit);
    let time = |set, now, secs: u64, nanos| match (has(now), has(set)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::At(Timestamp { secs: secs.cast_signed(), nanos })),
        (false, false) => None,
    };
    SetAttr {
        mode: has(SetattrValid::MODE).then(|| Mode::new(raw.mode)),
        uid: has(SetattrValid::UID).then_some(raw.uid),
        gid: has(SetattrValid::GID).then_some(raw.gid),
        size: has(SetattrValid::SIZE).then_some(raw.size),
        atime: time(SetattrValid::ATIME, SetattrValid::ATIME_NOW, raw.atime, raw.atimensec),
        mtime: time(SetattrValid::MTIME, SetattrValid::MTIME_NOW, raw.mtime, raw.mtimensec),
        guard_ctime: None,
        kill_privileges: has(SetattrValid::KILL_SUIDGID),
    }
}

/// Converts to the reply to STATFS.
#[must_use]
pub fn statfs(stat: &StatFs) -> StatfsOut {
    StatfsOut {
        blocks: stat.blocks,
        bfree: stat.blocks_free,
        bavail: stat.blocks_available,
        files: stat.files,
        ffree: stat.files_free,
        bsize: stat.block_size,
        namelen: stat.name_max,
        frsize: stat.block_size,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    /// Draws any attributes in the kernel's structure.
    fn any_raw() -> impl Strategy<Value = FuseAttr> {
        let types = prop::sample::select(&FileType::ALL[..]);
        let bytes = prop::collection::vec(any::<u8>(), size_of::<FuseAttr>());
        (types, bytes).prop_map(|(file_type, bytes)| {
            let mut raw = FuseAttr::read_from_bytes(&bytes).unwrap();
            raw.mode = file_type.mode_bits() | raw.mode & Mode::MASK;
            for nanos in [&mut raw.atimensec, &mut raw.mtimensec, &mut raw.ctimensec] {
                *nanos %= 1_000_000_000;
            }
            FuseAttr { flags: 0, ..raw }
        })
    }

    fn any_attr() -> impl Strategy<Value = Attr> {
        any_raw().prop_map(|raw| from_wire(&raw).unwrap())
    }

    proptest! {
        #[test]
        fn attributes_round_trip_through_fuse_attr(raw in any_raw()) {
            let again = to_wire(&from_wire(&raw).unwrap());
            prop_assert_eq!(again.as_bytes(), raw.as_bytes());
        }

        #[test]
        fn fuse_attr_and_statx_are_equivalent(attr in any_attr()) {
            let (short, long) = (to_wire(&attr), to_statx(&attr));
            prop_assert_eq!(short.mode, u32::from(long.mode));
            prop_assert_eq!(short.ino, long.ino);
            prop_assert_eq!(short.mtime.cast_signed(), long.mtime.tv_sec);
            prop_assert_eq!(long.mask, StatxMask::BASIC.bits());
        }
    }

    #[test]
    fn birth_time_is_sent_only_if_known() {
        let attr = from_wire(&FuseAttr::default()).unwrap();
        let born = Attr { btime: Some(Timestamp { secs: 5, nanos: 6 }), ..attr };
        assert_eq!(to_statx(&born).mask & StatxMask::BTIME.bits(), StatxMask::BTIME.bits());
        assert_eq!(to_statx(&born).btime.tv_sec, 5);
        assert_eq!(to_statx(&attr).mask & StatxMask::BTIME.bits(), 0);
    }

    #[test]
    fn set_time_now_overrides_explicit_time() {
        let raw = SetattrIn { atime: 5, mtime: u64::MAX, ..Default::default() };
        let valid = SetattrValid::ATIME | SetattrValid::ATIME_NOW | SetattrValid::MTIME;
        let set = set_attr(valid, &raw);
        assert_eq!(set.atime, Some(SetTime::Now));
        assert_eq!(set.mtime, Some(SetTime::At(Timestamp { secs: -1, nanos: 0 })));
        assert_eq!((set.mode, set.size, set.kill_privileges), (None, None, false));
    }
}
