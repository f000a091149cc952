//! The structures of the wire, byte for byte as `docs/formats/vrpc.md` has them. The number before each field is its offset.

use zerocopy::little_endian::{I32, I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a field's offset must be a multiple of.
trait Natural {
    const BYTES: usize = 1;
}

impl Natural for u8 {}
impl<const N: usize> Natural for [u8; N] {}
impl Natural for U16 {
    const BYTES: usize = 2;
}
impl Natural for U32 {
    const BYTES: usize = 4;
}
impl Natural for I32 {
    const BYTES: usize = 4;
}
impl Natural for U64 {
    const BYTES: usize = 8;
}
impl Natural for I64 {
    const BYTES: usize = 8;
}

/// Declares structures; size, offsets and alignment are checked by the compiler.
macro_rules! layouts {
    ($($(#[$meta:meta])* $name:ident: $size:literal { $($offset:literal $field:ident: $ty:ty,)+ })+) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            pub(crate) struct $name { $(pub $field: $ty),+ }

            const _: () = {
                assert!(size_of::<$name>() == $size, stringify!($name));
                $(
                    assert!(std::mem::offset_of!($name, $field) == $offset, stringify!($name.$field));
                    assert!(usize::is_multiple_of($offset, <$ty as Natural>::BYTES), stringify!($name.$field));
                )+
            };
        )+

        /// Name, size and fields (offset, name, size) of each structure, to be compared with what the documentation says.
        #[cfg(test)]
        const LAYOUTS: &[(&str, usize, &[(usize, &str, usize)])] = &[
            $((stringify!($name), $size, &[$(($offset, stringify!($field), size_of::<$ty>())),+])),+
        ];
    };
}

layouts! {
    /// The end of every request's body.
    Tail: 4 {
        0 caller: U16,
        2 want: u8,
        3 flags: u8,
    }
    /// What every request's body has.
    Envelope: 48 {
        0 sequence: U64,
        8 arguments: [u8; 36],
        44 tail: Tail,
    }
    /// NULL, PROFILE, SYNCFS.
    NoArgs: 48 {
        0 sequence: U64,
        8 reserved: [u8; 36],
        44 tail: Tail,
    }
    /// CALLER.
    CallerArgs: 48 {
        0 sequence: U64,
        8 uid: U32,
        12 gid: U32,
        16 groups: U32,
        20 reserved: [u8; 24],
        44 tail: Tail,
    }
    /// INTERRUPT.
    InterruptArgs: 48 {
        0 sequence: U64,
        8 id: U32,
        12 reserved: [u8; 32],
        44 tail: Tail,
    }
    /// FORGET.
    ForgetArgs: 48 {
        0 sequence: U64,
        8 node: U64,
        16 look_ups: U64,
        24 reserved: [u8; 20],
        44 tail: Tail,
    }
    /// LOOKUP, UNLINK, RMDIR. A name of up to 27 bytes lies here, a longer one in the frame.
    NameArgs: 48 {
        0 sequence: U64,
        8 parent: U64,
        16 name: [u8; 27],
        43 name_len: u8,
        44 tail: Tail,
    }
    /// GETATTR, SETATTR, ACCESS, STATFS, RELEASE, FSYNC, HANDLE_OF, PARENT, LOCK_TEST, LOCK.
    FileArgs: 48 {
        0 sequence: U64,
        8 node: U64,
        16 open: U64,
        24 reserved: [u8; 20],
        44 tail: Tail,
    }
    /// OPEN.
    OpenArgs: 48 {
        0 sequence: U64,
        8 node: U64,
        16 open_flags: U16,
        18 reserved: [u8; 26],
        44 tail: Tail,
    }
    /// FLUSH, UNLOCK.
    OwnerArgs: 48 {
        0 sequence: U64,
        8 node: U64,
        16 open: U64,
        24 owner: U64,
        32 reserved: [u8; 12],
        44 tail: Tail,
    }
    /// READ, WRITE, READDIR.
    TransferArgs: 48 {
        0 sequence: U64,
        8 node: U64,
        16 open: U64,
        24 offset: U64,
        32 address: U64,
        40 len_bytes: U32,
        44 tail: Tail,
    }
    /// READLINK, SYMLINK, XATTR_GET, XATTR_SET, XATTR_LIST, XATTR_REMOVE.
    BytesArgs: 48 {
        0 sequence: U64,
        8 node: U64,
        16 address: U64,
        24 len_bytes: U32,
        28 name_len: u8,
        29 reserved: [u8; 15],
        44 tail: Tail,
    }
    /// CREATE, CREATE_UNNAMED.
    CreateArgs: 48 {
        0 sequence: U64,
        8 parent: U64,
        16 verifier: [u8; 8],
        24 mode: U16,
        26 umask: U16,
        28 open_flags: U16,
        30 exclusive: u8,
        31 name_len: u8,
        32 reserved: [u8; 12],
        44 tail: Tail,
    }
    /// MKDIR, MKNOD.
    MakeArgs: 48 {
        0 sequence: U64,
        8 parent: U64,
        16 mode: U16,
        18 umask: U16,
        20 file_type: u8,
        21 name_len: u8,
        22 reserved: [u8; 2],
        24 major: U32,
        28 minor: U32,
        32 reserved_too: [u8; 12],
        44 tail: Tail,
    }
    /// LINK, RENAME.
    TwoNodesArgs: 48 {
        0 sequence: U64,
        8 from: U64,
        16 to: U64,
        24 from_name_len: u8,
        25 to_name_len: u8,
        26 reserved: [u8; 18],
        44 tail: Tail,
    }
    /// RESOLVE.
    ResolveArgs: 48 {
        0 sequence: U64,
        8 kind: I32,
        12 len_bytes: U16,
        14 reserved: [u8; 30],
        44 tail: Tail,
    }
    /// ALLOCATE, SEEK, COPY.
    RangeArgs: 48 {
        0 sequence: U64,
        8 node: U64,
        16 open: U64,
        24 offset: U64,
        32 len_bytes: U64,
        40 reserved: [u8; 4],
        44 tail: Tail,
    }
    /// In frames: one of FORGET's.
    ForgetEntry: 16 {
        0 node: U64,
        8 look_ups: U64,
    }
    /// In SETATTR's frame.
    SetAttrItem: 64 {
        0 valid: U32,
        4 mode: U32,
        8 uid: U32,
        12 gid: U32,
        16 size: U64,
        24 atime_secs: I64,
        32 mtime_secs: I64,
        40 guard_secs: I64,
        48 atime_nanos: U32,
        52 mtime_nanos: U32,
        56 guard_nanos: U32,
        60 reserved: [u8; 4],
    }
    /// In READDIR's frame: how much the caller has room for, counted as the caller counts.
    BudgetItem: 16 {
        0 size_bytes: U32,
        4 entry_bytes: U32,
        8 align: U32,
        12 reserved: [u8; 4],
    }
    /// In the frames of LOCK_TEST, LOCK and UNLOCK.
    LockItem: 32 {
        0 start: U64,
        8 last: U64,
        16 owner: U64,
        24 pid: U32,
        28 family: u8,
        29 kind: u8,
        30 reserved: [u8; 2],
    }
    /// In COPY's frame: the target.
    CopyItem: 24 {
        0 node: U64,
        8 open: U64,
        16 offset: U64,
    }
    /// Attributes of a node. What stat(2) is mostly asked for lies in the first cache line.
    AttrItem: 120 {
        0 type_and_mode: U16,
        2 flags: U16,
        4 nlink: U32,
        8 uid: U32,
        12 gid: U32,
        16 size: U64,
        24 blocks: U64,
        32 fileid: U64,
        40 mtime_secs: I64,
        48 ctime_secs: I64,
        56 mtime_nanos: U32,
        60 ctime_nanos: U32,
        64 atime_secs: I64,
        72 btime_secs: I64,
        80 atime_nanos: U32,
        84 btime_nanos: U32,
        88 fsid: U64,
        96 generation: U64,
        104 rdev_major: U32,
        108 rdev_minor: U32,
        112 block_size: U32,
        116 reserved: [u8; 4],
    }
    /// What a node was before a change.
    WeakAttrItem: 32 {
        0 size: U64,
        8 mtime_secs: I64,
        16 ctime_secs: I64,
        24 mtime_nanos: U32,
        28 ctime_nanos: U32,
    }
    /// The state of a file system.
    StatFsItem: 48 {
        0 block_size: U32,
        4 name_max: U32,
        8 blocks: U64,
        16 blocks_free: U64,
        24 blocks_available: U64,
        32 files: U64,
        40 files_free: U64,
    }
    /// In a listing, before the name; attributes between the two where the flag says so.
    EntryItem: 24 {
        0 cookie: U64,
        8 fileid: U64,
        16 name_len: u8,
        17 file_type: u8,
        18 flags: u8,
        19 reserved: [u8; 5],
    }
    /// In a listing with attributes, behind the head of an entry.
    EntryAttrItem: 128 {
        0 node: U64,
        8 attr: AttrItem,
    }
    /// In a listing, behind the attributes of an entry.
    EntryHandleItem: 8 {
        0 kind: I32,
        4 len_bytes: U16,
        6 reserved: [u8; 2],
    }
    /// What every answer's body has.
    Answer: 48 {
        0 status: U32,
        4 flags: U32,
        8 results: [u8; 40],
    }
    /// PROFILE.
    ProfileResult: 48 {
        0 status: U32,
        4 flags: U32,
        8 file_size_max: U64,
        16 name_max: U32,
        20 time_granularity_ns: U32,
        24 volume: [u8; 16],
        40 transfer_bytes_max: U32,
        44 callers_max: U16,
        46 reserved: [u8; 2],
    }
    /// LOOKUP, RESOLVE, PARENT, MKDIR, SYMLINK, MKNOD, LINK, CREATE, OPEN.
    NodeResult: 48 {
        0 status: U32,
        4 flags: U32,
        8 node: U64,
        16 open: U64,
        24 handle_kind: I32,
        28 handle_len: U16,
        30 reserved: [u8; 18],
    }
    /// READ, WRITE, READDIR, READLINK, XATTR_GET, XATTR_LIST, SEEK, COPY.
    CountResult: 48 {
        0 status: U32,
        4 flags: U32,
        8 count: U64,
        16 stability: u8,
        17 reserved: [u8; 31],
    }
    /// LOCK_TEST.
    LockResult: 48 {
        0 status: U32,
        4 flags: U32,
        8 lock: LockItem,
        40 reserved: [u8; 8],
    }
    /// HANDLE_OF.
    HandleResult: 48 {
        0 status: U32,
        4 flags: U32,
        8 kind: I32,
        12 len_bytes: U16,
        14 reserved: [u8; 34],
    }
}

impl Natural for Tail {
    const BYTES: usize = 4;
}
impl Natural for AttrItem {
    const BYTES: usize = 8;
}
impl Natural for LockItem {
    const BYTES: usize = 8;
}

#[cfg(test)]
mod tests {
    use super::LAYOUTS;
    use crate::{Kind, Status};

    const FORMAT: &str = include_str!("../../../docs/formats/vrpc.md");

    /// As `docs/formats/vrpc.md` has it.
    fn row(&(name, size, fields): &(&str, usize, &[(usize, &str, usize)])) -> String {
        let fields: Vec<String> =
            fields.iter().map(|(offset, name, size)| format!("{offset} {name} ({size})")).collect();
        format!("| `{name}` | {size} | {} |", fields.join(", "))
    }

    #[test]
    fn the_documentation_has_every_structure_and_no_other() {
        let missing: Vec<String> =
            LAYOUTS.iter().map(row).filter(|row| !FORMAT.lines().any(|line| line.starts_with(row))).collect();
        assert!(missing.is_empty(), "{}", missing.join("\n"));
        let rows = FORMAT.lines().filter(|line| line.starts_with("| `") && line.contains(" (")).count();
        assert_eq!(rows, LAYOUTS.len());
    }

    #[test]
    fn the_documentation_has_every_kind_and_status_with_its_number() {
        let kinds = Kind::ALL.iter().map(|kind| format!("| {} | {kind:?} |", kind.number()));
        let statuses = Status::ALL.iter().map(|status| format!("| {} | `{status:?}` |", status.number()));
        let missing: Vec<String> =
            kinds.chain(statuses).filter(|row| !FORMAT.lines().any(|line| line.starts_with(row))).collect();
        assert!(missing.is_empty(), "{}", missing.join("\n"));
        let numbered = |line: &&str| {
            let number = line.strip_prefix("| ").and_then(|rest| rest.split(' ').next());
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        assert_eq!(FORMAT.lines().filter(numbered).count(), Kind::ALL.len() + Status::ALL.len());
    }
}
