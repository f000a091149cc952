//! Compile-time checks of the waist's flag sets. They are encoded unchanged, so their bits are part of the
//! format. A flag that moves or changes its meaning in `core` needs an encoding of its own here; a new one
//! needs a new version.

use tombolo_core::Want;
use tombolo_core::fs::{AccessMask, AllocateMode, OpenFlags, RenameFlags};

macro_rules! fixed {
    ($($set:ident: $all:literal { $($name:ident = $bits:literal),+ $(,)? })+) => {
        $(
            const _: () = {
                assert!($set::all().bits() == $all, stringify!($set));
                $(assert!($set::$name.bits() == $bits, stringify!($set::$name));)+
            };
        )+
    };
}

fixed! {
    Want: 0x3 { CHANGE_ATTRS = 0x1, OPEN_ATTRS = 0x2 }
    AccessMask: 0x7 { EXECUTE = 0x1, WRITE = 0x2, READ = 0x4 }
    RenameFlags: 0x7 { NO_REPLACE = 0x1, EXCHANGE = 0x2, WHITEOUT = 0x4 }
    AllocateMode: 0x3f {
        KEEP_SIZE = 0x1,
        PUNCH_HOLE = 0x2,
        ZERO_RANGE = 0x4,
        COLLAPSE_RANGE = 0x8,
        INSERT_RANGE = 0x10,
        UNSHARE_RANGE = 0x20,
    }
    OpenFlags: 0xfff {
        READ = 0x1,
        WRITE = 0x2,
        APPEND = 0x4,
        TRUNCATE = 0x8,
        DIRECT = 0x10,
        SYNC = 0x20,
        DATA_SYNC = 0x40,
        DIRECTORY = 0x80,
        NO_ACCESS_TIME = 0x100,
        EXECUTE = 0x200,
        NONBLOCK = 0x400,
        KILL_PRIVILEGES = 0x800,
    }
}
