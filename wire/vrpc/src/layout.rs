//! Structures of the protocol, byte for byte as in `docs/formats/vrpc.md`. The number before each field is
//! its offset in bytes.

use zerocopy::little_endian::{I32, I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The natural alignment of a field.
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

/// Declares structures whose size, offsets and alignment are checked at compile time.
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

        /// Size and fields (offset, name, size) of each structure, for comparison with the documentation.
        #[cfg(test)]
        const LAYOUTS: &[(&str, usize, &[(usize, &str, usize)])] = &[
            $((stringify!($name), $size, &[$(($offset, stringify!($field), size_of::<$ty>())),+])),+
        ];
    };
}

layouts! {
    /// The end of every request's body: the caller's id, the optional results, and the flags.
    Tail: 4 {
        0 caller: U16,
        2 want: u8,
        3 flags: u8,
    }
    /// The common structure of every request's body: number, arguments, and [`Tail`].
    Envelope: 48 {
        0 sequence: U64,
        8 arguments: [u8; 36],
        44 tail: Tail,
    }
    /// In bodies: a node and one of its openings.
    FileField: 16 {
        0 node: U64,
        8 open: U64,
    }
    /// In bodies: a name of up to 27 bytes; a longer one is in the frame.
    NameField: 28 {
        0 name: [u8; 27],
        27 name_len: u8,
    }
    /// In bodies: the location of data: the address of a single reference, otherwise 0, and the length.
    SpanField: 12 {
        0 address: U64,
        8 len_bytes: U32,
    }
    /// In bodies: the mode of a new node.
    ModeField: 4 {
        0 mode: U16,
        2 umask: U16,
    }
    /// In bodies: a device number.
    DeviceField: 8 {
        0 major: U32,
        4 minor: U32,
    }
    /// In bodies: options of a create.
    CreateField: 15 {
        0 verifier: [u8; 8],
        8 mode: ModeField,
        12 open_flags: U16,
        14 exclusive: u8,
    }
    /// In bodies: a handle, whose bytes are in the frame.
    HandleField: 6 {
        0 kind: I32,
        4 len_bytes: U16,
    }
    /// In bodies: the properties of a session.
    SessionField: 38 {
        0 file_size_max: U64,
        8 name_max: U32,
        12 time_granularity_ns: U32,
        16 volume: [u8; 16],
        32 transfer_bytes_max: U32,
        36 callers_max: U16,
    }
    /// A node's version, in the answer to LOOK.
    VersionField: 20 {
        0 epoch: U64,
        8 count: U64,
        16 slot: U32,
    }
    /// An entry of FORGET, in the body or in the frame.
    ForgetEntry: 16 {
        0 node: U64,
        8 look_ups: U64,
    }
    /// In SETATTR's frame: the attributes to set.
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
    /// In READDIR's frame: the capacity of the caller's page, in terms of the caller's protocol
    /// ([`tombolo_core::fs::DirBudget`]).
    BudgetItem: 16 {
        0 size_bytes: U32,
        4 entry_bytes: U32,
        8 align: U32,
        12 reserved: [u8; 4],
    }
    /// A lock: in the frames of LOCK_TEST, LOCK and UNLOCK, and in the body of LOCK_TEST's answer.
    LockItem: 32 {
        0 start: U64,
        8 last: U64,
        16 owner: U64,
        24 pid: U32,
        28 family: u8,
        29 kind: u8,
        30 reserved: [u8; 2],
    }
    /// Attributes of a node. The frequently used ones are in the first 64 bytes.
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
    /// Attributes of a node before a change.
    WeakAttrItem: 32 {
        0 size: U64,
        8 mtime_secs: I64,
        16 ctime_secs: I64,
        24 mtime_nanos: U32,
        28 ctime_nanos: U32,
    }
    /// In the frame of a STATFS answer: the state of a file system.
    StatFsItem: 48 {
        0 block_size: U32,
        4 name_max: U32,
        8 blocks: U64,
        16 blocks_free: U64,
        24 blocks_available: U64,
        32 files: U64,
        40 files_free: U64,
    }
    /// In a listing: the head of an entry. Attributes and handle follow if their flags are set, then the
    /// name.
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
    /// In a listing, behind the attributes of an entry: the head of the handle, whose bytes follow.
    EntryHandleItem: 8 {
        0 kind: I32,
        4 len_bytes: U16,
        6 reserved: [u8; 2],
    }
    /// In the frame of a CHANGES answer: a notice, before its name.
    NoticeItem: 32 {
        0 node: U64,
        8 start: U64,
        16 last: U64,
        24 kind: u8,
        25 name_len: u8,
        26 reserved: [u8; 6],
    }
    /// The common structure of every answer's body: status (0: success), flags, and results.
    Head: 48 {
        0 status: U32,
        4 flags: U32,
        8 results: [u8; 40],
    }
}

impl Natural for Tail {
    const BYTES: usize = 4;
}
impl Natural for ModeField {
    const BYTES: usize = 2;
}
impl Natural for AttrItem {
    const BYTES: usize = 8;
}

#[cfg(test)]
mod tests {
    use super::LAYOUTS;
    use crate::{Reply, Request, Status};

    const FORMAT: &str = include_str!("../../../docs/formats/vrpc.md");

    /// Formats a structure as in `docs/formats/vrpc.md`.
    fn row(&(name, size, fields): &(&str, usize, &[(usize, &str, usize)])) -> String {
        let fields: Vec<String> =
            fields.iter().map(|(offset, name, size)| format!("{offset} {name} ({size})")).collect();
        format!("| `{name}` | {size} | {} |", fields.join(", "))
    }

    #[test]
    fn documentation_lists_every_structure() {
        let missing: Vec<String> =
            LAYOUTS.iter().map(row).filter(|row| !FORMAT.lines().any(|line| line.starts_with(row))).collect();
        assert!(missing.is_empty(), "{}", missing.join("\n"));
        let rows = FORMAT.lines().filter(|line| line.starts_with("| `") && line.contains(" (")).count();
        assert_eq!(rows, LAYOUTS.len());
    }

    fn fields(fields: &[(usize, &str, usize)]) -> String {
        let in_body = fields.iter().filter(|(.., bytes)| *bytes != 0);
        in_body.map(|(at, name, bytes)| format!("{at} {name} ({bytes})")).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn documentation_lists_every_message_and_status() {
        let requests = Request::TABLE.iter().map(|(number, name, list, answer)| {
            format!("| {number} | {name} | {} | {answer:?} |", fields(list))
        });
        let answers = Reply::TABLE.iter().map(|(name, list)| format!("| answer {name} | {} |", fields(list)));
        let statuses = Status::ALL.iter().map(|status| format!("| {} | `{status:?}` |", status.number()));
        let missing: Vec<String> = requests
            .chain(answers)
            .chain(statuses)
            .filter(|row| !FORMAT.lines().any(|line| line.starts_with(row)))
            .collect();
        assert!(missing.is_empty(), "{}", missing.join("\n"));
        let numbered = |line: &&str| {
            let number = line.strip_prefix("| ").and_then(|rest| rest.split(' ').next());
            number.is_some_and(|number| number == "answer" || number.parse::<u32>().is_ok())
        };
        let rows = Request::TABLE.len() + Reply::TABLE.len() + Status::ALL.len();
        assert_eq!(FORMAT.lines().filter(numbered).count(), rows);
    }
}
