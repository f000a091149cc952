//! What DUMP and EXPORT list (RFC 1813 appendix I §5.2.2, §5.2.5).

use tombolo_wire_xdr::{List, xdr_struct};

use super::{DirPath, MountName};

xdr_struct! {
    /// A client and what it mounted (`mountbody`).
    pub struct MountEntry<'a> {
        /// The client.
        pub client: MountName<'a>,
        /// What.
        pub path: DirPath<'a>,
    }
}

xdr_struct! {
    /// An export (`exportnode`).
    pub struct ExportEntry<'a> {
        /// Its path.
        pub path: DirPath<'a>,
        /// The hosts that may mount it; empty for all.
        pub groups: List<'a, MountName<'a>>,
    }
}
