//! Capabilities and limits offered in INIT.

use super::{Coherence, Options};
use tombolo_core::fs::{FileSystem, PermissionCheck};
use tombolo_wire_fuse::init::{Capabilities, Preferences};

/// Capabilities requested on every mount, such as readahead, parallel direct I/O, large transfers and
/// extended request formats.
const ALWAYS: Capabilities = Capabilities::ASYNC_READ
    .union(Capabilities::BIG_WRITES)
    .union(Capabilities::ATOMIC_O_TRUNC)
    .union(Capabilities::DONT_MASK)
    .union(Capabilities::AUTO_INVAL_DATA)
    .union(Capabilities::ASYNC_DIO)
    .union(Capabilities::PARALLEL_DIROPS)
    .union(Capabilities::ABORT_ERROR)
    .union(Capabilities::MAX_PAGES)
    .union(Capabilities::HANDLE_KILLPRIV_V2)
    .union(Capabilities::SETXATTR_EXT)
    .union(Capabilities::INIT_EXT)
    .union(Capabilities::CREATE_SUPP_GROUP)
    .union(Capabilities::HAS_EXPIRE_ONLY)
    .union(Capabilities::DIRECT_IO_ALLOW_MMAP);

/// Maximum number of background requests, such as read-ahead, that the kernel has under way at a time.
const BACKGROUND_MAX: u16 = 64;

/// Stacking depth declared to the kernel: backing files are on unstacked file systems, and one overlay may
/// still be stacked on the mount.
const STACK_DEPTH_MAX: u32 = 1;

/// Returns the capabilities and limits to offer for this file system with these options.
pub(super) fn preferences(file_system: &dyn FileSystem, options: &Options) -> Preferences {
    let profile = file_system.profile();
    let mut capabilities = ALWAYS;
    if file_system.locks().is_some() && !options.local_locks {
        capabilities |= Capabilities::POSIX_LOCKS | Capabilities::FLOCK_LOCKS;
    }
    if file_system.persistent_handles().is_some() {
        capabilities |= Capabilities::EXPORT_SUPPORT;
    }
    // With POSIX_ACL the kernel caches access lists and checks permissions by them. The capability is
    // negotiated only if no other party checks, or if the kernel is notified when a cached list changes and
    // the kernel's check refuses nothing that the server would grant.
    let checks_alone = options.kernel_checks && profile.permission_check == PermissionCheck::Caller;
    let keeps_lists = options.coherence == Coherence::Push && options.kernel_may_check;
    if file_system.xattrs().is_some() && options.xattrs && (checks_alone || keeps_lists) {
        capabilities |= Capabilities::POSIX_ACL;
    }
    if options.coherence != Coherence::Strict {
        // READDIRPLUS is useless with `Strict`: its entries expire at once, so each would be looked up again,
        // then forgotten. READDIRPLUS_AUTO is not requested: only the first page of a listing, with 25 names,
        // would have attributes, and a walk that lists the directory first would look up all other names.
        capabilities |= Capabilities::CACHE_SYMLINKS | Capabilities::DO_READDIRPLUS;
    }
    if options.backing.is_some() && file_system.backing_files().is_some() {
        capabilities |= Capabilities::PASSTHROUGH;
    }
    Preferences {
        capabilities,
        max_write_bytes: options.max_write_bytes,
        max_readahead_bytes: options.max_write_bytes,
        max_background: BACKGROUND_MAX,
        time_granularity_ns: profile.time_granularity_ns,
        map_alignment_log2: 0,
        max_stack_depth: STACK_DEPTH_MAX,
        request_timeout_s: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_back_memory::Memory;
    use tombolo_core::SessionId;
    use tombolo_core::fs::{Client, Export};

    #[test]
    fn readdirplus_is_offered_unless_strict() {
        let client = Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::Caller };
        let file_system =
            Memory::new(tombolo_back_memory::Options::default()).attach(&client).expect("attach");
        for coherence in [Coherence::Strict, Coherence::Auto, Coherence::Always, Coherence::Push] {
            let options = Options { coherence, ..Options::default() };
            let offered = preferences(&*file_system, &options).capabilities;
            assert_eq!(
                offered.contains(Capabilities::DO_READDIRPLUS),
                coherence != Coherence::Strict,
                "{coherence:?}"
            );
        }
    }
}
