//! What a session wishes for in INIT.

use super::{Coherence, Options};
use tombolo_core::fs::{FileSystem, PermissionCheck};
use tombolo_wire_fuse::init::{Capabilities, Wishes};

/// Readahead and direct I/O in parallel, sizes, and the long forms of what grew: useful everywhere.
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

/// Requests that the kernel may send without a program waiting for each.
const BACKGROUND_MAX: u16 = 64;

/// Backing files lie on file systems that do not stand on others, so that this one may have an overlay on it.
const STACK_DEPTH_MAX: u32 = 1;

pub(super) fn wishes(file_system: &dyn FileSystem, options: &Options) -> Wishes {
    let profile = file_system.profile();
    let mut capabilities = ALWAYS;
    if file_system.locks().is_some() && !options.local_locks {
        capabilities |= Capabilities::POSIX_LOCKS | Capabilities::FLOCK_LOCKS;
    }
    if file_system.persistent_handles().is_some() {
        capabilities |= Capabilities::EXPORT_SUPPORT;
    }
    // With POSIX_ACL the kernel keeps access lists and checks permissions by itself: where it is the one to
    // check them, and where it is told when a list that it keeps has changed.
    let checks_alone = options.kernel_checks && profile.permission_check == PermissionCheck::Caller;
    let keeps_lists = options.coherence == Coherence::Push && options.kernel_may_check;
    if file_system.xattrs().is_some() && options.xattrs && (checks_alone || keeps_lists) {
        capabilities |= Capabilities::POSIX_ACL;
    }
    if options.coherence != Coherence::Strict {
        // Strict lets no entry of a listing live on: each would be looked up once more, and forgotten.
        capabilities |=
            Capabilities::CACHE_SYMLINKS | Capabilities::DO_READDIRPLUS | Capabilities::READDIRPLUS_AUTO;
    }
    if options.backing.is_some() && file_system.backing_files().is_some() {
        capabilities |= Capabilities::PASSTHROUGH;
    }
    Wishes {
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
    fn listings_come_with_nodes_only_where_those_live_on() {
        let client = Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::Caller };
        let file_system =
            Memory::new(tombolo_back_memory::Options::default()).attach(&client).expect("attach");
        for coherence in [Coherence::Strict, Coherence::Auto, Coherence::Always, Coherence::Push] {
            let options = Options { coherence, ..Options::default() };
            let asked = wishes(&*file_system, &options).capabilities;
            assert_eq!(
                asked.contains(Capabilities::DO_READDIRPLUS),
                coherence != Coherence::Strict,
                "{coherence:?}"
            );
        }
    }
}
