//! What a session wishes for in INIT.

use super::{Coherence, Options};
use tombolo_core::fs::{FileSystem, PermissionCheck};
use tombolo_wire_fuse::init::{Capabilities, Wishes};

/// READDIRPLUS, readahead and direct I/O in parallel, sizes, and the long forms of what grew: useful everywhere.
const ALWAYS: Capabilities = Capabilities::ASYNC_READ
    .union(Capabilities::BIG_WRITES)
    .union(Capabilities::ATOMIC_O_TRUNC)
    .union(Capabilities::DONT_MASK)
    .union(Capabilities::AUTO_INVAL_DATA)
    .union(Capabilities::DO_READDIRPLUS)
    .union(Capabilities::READDIRPLUS_AUTO)
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

pub(super) fn wishes(file_system: &dyn FileSystem, options: &Options) -> Wishes {
    let profile = file_system.profile();
    let mut capabilities = ALWAYS;
    if file_system.locks().is_some() && !options.local_locks {
        capabilities |= Capabilities::POSIX_LOCKS | Capabilities::FLOCK_LOCKS;
    }
    if file_system.persistent_handles().is_some() {
        capabilities |= Capabilities::EXPORT_SUPPORT;
    }
    // With POSIX_ACL the kernel checks permissions by itself, so only where it is the one to check them.
    let kernel_checks = options.kernel_checks && profile.permission_check == PermissionCheck::Caller;
    if file_system.xattrs().is_some() && options.xattrs && kernel_checks {
        capabilities |= Capabilities::POSIX_ACL;
    }
    if options.coherence != Coherence::Strict {
        capabilities |= Capabilities::CACHE_SYMLINKS;
    }
    Wishes {
        capabilities,
        max_write_bytes: options.max_write_bytes,
        max_readahead_bytes: options.max_write_bytes,
        max_background: BACKGROUND_MAX,
        time_granularity_ns: profile.time_granularity_ns,
        map_alignment_log2: 0,
        max_stack_depth: 0,
        request_timeout_s: 0,
    }
}
