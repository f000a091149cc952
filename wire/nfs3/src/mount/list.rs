//! Results of DUMP and EXPORT (RFC 1813 appendix I §5.2.2, §5.2.5).

use tombolo_wire_xdr::{List, xdr_struct};

use super::{DirPath, MountName};

xdr_struct! {
    /// A client and a path that it mounted (`mountbody`).
    pub struct MountEntry<'a> {
        /// Name or address of the client, as the server records it.
        pub client: MountName<'a>,
        /// Path of the mounted directory on the server.
        pub path: DirPath<'a>,
    }

    /// An export (`exportnode`).
    pub struct ExportEntry<'a> {
        /// Path of the export on the server.
        pub path: DirPath<'a>,
        /// Hosts that may mount the export; empty: all.
        pub groups: List<'a, MountName<'a>>,
    }
}
