//! Attributes to set (RFC 1813 §2.6, `sattr3`).

use tombolo_wire_xdr::{xdr_struct, xdr_union};

use crate::NfsTime3;

xdr_union! {
    /// A change of a time stamp (`set_atime`, `set_mtime`).
    #[derive(Default)]
    pub enum SetTime3: "time_how" {
        /// Do not change.
        #[default]
        DontChange = 0,
        /// Set to the server's current time.
        Server = 1,
        /// Set to this time.
        Client(time: NfsTime3) = 2,
    }
}

xdr_struct! {
    /// Attribute changes. `None` leaves an attribute unchanged.
    #[derive(Default)]
    pub struct Sattr3 {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Size in bytes.
        pub size: Option<u64>,
        /// Last read.
        pub atime: SetTime3,
        /// Last change of the data.
        pub mtime: SetTime3,
    }
}
