//! Negotiation of version and capabilities: a pure function of the kernel's offer and our preferences.

use crate::layout::init::{InitIn, InitOut};
use bitflags::bitflags;

/// The major version of the protocol.
pub const MAJOR: u32 = 7;
/// Maximum supported minor version (Linux 6.18).
pub const MINOR: u32 = 45;
/// Minimum supported minor version (Linux 5.4).
pub const MINOR_MIN: u32 = 31;
/// Unit of `max_pages`, in bytes.
const PAGE_BYTES: u32 = 4096;
/// Pages per request without MAX_PAGES (`FUSE_DEFAULT_MAX_PAGES_PER_REQ`).
const PAGES_DEFAULT: u32 = 32;

bitflags! {
    /// `FUSE_*` flags of INIT; bits 32 and up are sent in `flags2`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u64 {
        /// The kernel sends several reads of one file at a time.
        const ASYNC_READ = 1 << 0;
        /// POSIX locks are sent to the server.
        const POSIX_LOCKS = 1 << 1;
        /// Unused.
        const FILE_OPS = 1 << 2;
        /// OPEN includes O_TRUNC.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// LOOKUP of "." and "..", for handles that outlive the kernel's cache.
        const EXPORT_SUPPORT = 1 << 4;
        /// WRITE may be larger than a page.
        const BIG_WRITES = 1 << 5;
        /// The kernel sends the umask instead of applying it, so that the server can consider default ACLs.
        const DONT_MASK = 1 << 6;
        /// The server may write replies by splice(2).
        const SPLICE_WRITE = 1 << 7;
        /// Pages may be moved instead of copied by splice(2).
        const SPLICE_MOVE = 1 << 8;
        /// The server may read requests by splice(2).
        const SPLICE_READ = 1 << 9;
        /// flock(2) locks go to the server.
        const FLOCK_LOCKS = 1 << 10;
        /// The kernel sends ioctl(2) on directories to the server.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Cached pages are dropped when size or mtime change.
        const AUTO_INVAL_DATA = 1 << 12;
        /// The kernel lists directories with READDIRPLUS.
        const DO_READDIRPLUS = 1 << 13;
        /// With DO_READDIRPLUS: only where look-ups are likely to follow, otherwise READDIR.
        const READDIRPLUS_AUTO = 1 << 14;
        /// The kernel sends several direct reads and writes of one file at a time.
        const ASYNC_DIO = 1 << 15;
        /// The kernel keeps written data in its page cache, and sends them later.
        const WRITEBACK_CACHE = 1 << 16;
        /// OPEN may be answered ENOSYS once, and is then omitted.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// The kernel sends several look-ups and listings of one directory at a time.
        const PARALLEL_DIROPS = 1 << 18;
        /// The server clears set-user-id bits on every write, truncation and chown.
        const HANDLE_KILLPRIV = 1 << 19;
        /// The server stores POSIX ACLs, the kernel checks them.
        const POSIX_ACL = 1 << 20;
        /// A read of the device after an abort fails with ECONNABORTED.
        const ABORT_ERROR = 1 << 21;
        /// `max_pages` of the reply is valid.
        const MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// OPENDIR may be answered ENOSYS once, and is then omitted.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached pages are dropped only on the server's notification.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// `map_alignment` of the reply is valid.
        const MAP_ALIGNMENT = 1 << 26;
        /// The kernel mounts marked directories as submounts.
        const SUBMOUNTS = 1 << 27;
        /// The server clears set-user-id bits where a request has a flag for it.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR requests have the extended header.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` is valid.
        const INIT_EXT = 1 << 30;
        /// Creating requests include security labels.
        const SECURITY_CTX = 1 << 32;
        /// The server decides for each file whether DAX is used.
        const HAS_INODE_DAX = 1 << 33;
        /// Creating requests include a supplementary group.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Names can be expired without being dropped.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Files opened with DIRECT_IO can be mapped shared.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Reads and writes can go to a backing file.
        const PASSTHROUGH = 1 << 37;
        /// Handles do not outlive the kernel's cache and must not be used.
        const NO_EXPORT_SUPPORT = 1 << 38;
        /// Requests can be resent after a server's restart.
        const HAS_RESEND = 1 << 39;
        /// The mount may be id-mapped.
        const ALLOW_IDMAP = 1 << 40;
        /// Requests and replies can be transferred by io_uring instead of the device.
        const OVER_IO_URING = 1 << 41;
        /// The kernel aborts the connection if a request times out.
        const REQUEST_TIMEOUT = 1 << 42;
    }
}

impl Capabilities {
    fn low(self) -> u32 {
        (self.bits() & u64::from(u32::MAX)) as u32
    }

    fn high(self) -> u32 {
        (self.bits() >> 32) as u32
    }
}

/// The kernel's offer in its INIT request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Newest major version that the kernel supports.
    pub major: u32,
    /// Newest minor version that the kernel supports, of that major version.
    pub minor: u32,
    /// The kernel's own read-ahead limit, in bytes; the reply can only lower it.
    pub max_readahead_bytes: u32,
    /// Capabilities that the kernel supports; those unknown to this codec are dropped.
    pub capabilities: Capabilities,
}

impl From<&InitIn> for Offer {
    fn from(raw: &InitIn) -> Offer {
        let low = Capabilities::from_bits_truncate(u64::from(raw.flags));
        let high = if low.contains(Capabilities::INIT_EXT) { u64::from(raw.flags2) << 32 } else { 0 };
        Offer {
            major: raw.major,
            minor: raw.minor,
            max_readahead_bytes: raw.max_readahead,
            capabilities: low | Capabilities::from_bits_truncate(high),
        }
    }
}

/// The server's preferences, of which each is used as far as the kernel offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preferences {
    /// Capabilities to be used if the kernel supports them too.
    pub capabilities: Capabilities,
    /// Maximum WRITE (and READ), in bytes; a multiple of the page size, at least one page.
    pub max_write_bytes: u32,
    /// Maximum read-ahead by the kernel, in bytes; the kernel's own limit applies as well.
    pub max_readahead_bytes: u32,
    /// Maximum number of outstanding background requests (read-ahead, asynchronous direct I/O); the kernel
    /// delays further ones.
    pub max_background: u16,
    /// Granularity of the server's time stamps, in nanoseconds; the kernel rounds its own accordingly.
    pub time_granularity_ns: u32,
    /// log2 of the alignment of DAX mappings; with MAP_ALIGNMENT only.
    pub map_alignment_log2: u16,
    /// Maximum stacking depth of a backing file; with PASSTHROUGH only.
    pub max_stack_depth: u32,
    /// Timeout of a request, in seconds, after which the kernel aborts the connection; with REQUEST_TIMEOUT
    /// only.
    pub request_timeout_s: u16,
}

/// The negotiated parameters, constant during the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Minor version in use: the lower of the kernel's and [`MINOR`].
    pub minor: u32,
    /// Capabilities in use: those that both sides support, but only one of two that exclude each other.
    pub capabilities: Capabilities,
    /// Maximum WRITE and READ, in bytes: the preference, limited by the number of pages per request.
    pub max_write_bytes: u32,
    /// The reply to be sent.
    pub reply: InitOut,
}

/// The outcome of an INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negotiation {
    /// Success: send the reply.
    Agreed(Agreed),
    /// The kernel has a newer major version: send this reply and expect another INIT.
    Again(InitOut),
    /// The kernel is older than [`MINOR_MIN`]: reply an error.
    TooOld {
        /// Major version of the kernel.
        major: u32,
        /// Minor version of the kernel.
        minor: u32,
    },
}

/// Negotiates the parameters. Two pairs of capabilities exclude each other in the kernel: passthrough wins
/// over the write-back cache, and explicit invalidation over the automatic one.
#[must_use]
pub fn negotiate(offer: &Offer, preferences: &Preferences) -> Negotiation {
    if offer.major > MAJOR {
        return Negotiation::Again(InitOut { major: MAJOR, minor: MINOR, ..Default::default() });
    }
    if offer.major < MAJOR || offer.minor < MINOR_MIN {
        return Negotiation::TooOld { major: offer.major, minor: offer.minor };
    }
    let mut common = offer.capabilities & preferences.capabilities;
    if common.contains(Capabilities::PASSTHROUGH) {
        common -= Capabilities::WRITEBACK_CACHE;
    }
    if common.contains(Capabilities::EXPLICIT_INVAL_DATA) {
        common -= Capabilities::AUTO_INVAL_DATA;
    }
    if common.high() != 0 {
        common |= Capabilities::INIT_EXT;
    }
    let pages_max =
        if common.contains(Capabilities::MAX_PAGES) { u32::from(u16::MAX) } else { PAGES_DEFAULT };
    let pages = (preferences.max_write_bytes / PAGE_BYTES).clamp(1, pages_max);
    let only = |capability, value: u32| if common.contains(capability) { value } else { 0 };
    let minor = offer.minor.min(MINOR);
    let reply = InitOut {
        major: MAJOR,
        minor,
        max_readahead: offer.max_readahead_bytes.min(preferences.max_readahead_bytes),
        flags: common.low(),
        max_background: preferences.max_background,
        congestion_threshold: (u32::from(preferences.max_background) * 3 / 4) as u16,
        max_write: pages * PAGE_BYTES,
        time_gran: preferences.time_granularity_ns,
        max_pages: only(Capabilities::MAX_PAGES, pages) as u16,
        map_alignment: only(Capabilities::MAP_ALIGNMENT, u32::from(preferences.map_alignment_log2)) as u16,
        flags2: common.high(),
        max_stack_depth: only(Capabilities::PASSTHROUGH, preferences.max_stack_depth),
        request_timeout: only(Capabilities::REQUEST_TIMEOUT, u32::from(preferences.request_timeout_s)) as u16,
        unused: [0; 11],
    };
    Negotiation::Agreed(Agreed { minor, capabilities: common, max_write_bytes: reply.max_write, reply })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preferences() -> Preferences {
        Preferences {
            capabilities: Capabilities::all(),
            max_write_bytes: 1 << 20,
            max_readahead_bytes: 1 << 20,
            max_background: 64,
            time_granularity_ns: 1,
            map_alignment_log2: 21,
            max_stack_depth: 1,
            request_timeout_s: 30,
        }
    }

    fn offer(minor: u32, capabilities: Capabilities) -> Offer {
        Offer { major: MAJOR, minor, max_readahead_bytes: 131_072, capabilities }
    }

    fn agreed(offer: &Offer, preferences: &Preferences) -> Agreed {
        match negotiate(offer, preferences) {
            Negotiation::Agreed(agreed) => agreed,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn negotiation_uses_only_offered_capabilities() {
        let offered = Capabilities::MAX_PAGES | Capabilities::POSIX_LOCKS;
        let agreed = agreed(&offer(31, offered), &preferences());
        assert_eq!(agreed.capabilities, offered);
        assert_eq!(agreed.reply.flags2, 0);
        assert_eq!((agreed.reply.max_pages, agreed.reply.max_write), (256, 1 << 20));
        assert_eq!((agreed.reply.map_alignment, agreed.reply.request_timeout), (0, 0));
        assert_eq!(agreed.reply.max_readahead, 131_072);
    }

    #[test]
    fn without_max_pages_a_write_has_32_pages() {
        let agreed = agreed(&offer(31, Capabilities::BIG_WRITES), &preferences());
        assert_eq!((agreed.max_write_bytes, agreed.reply.max_pages), (128 << 10, 0));
    }

    #[test]
    fn high_capabilities_travel_in_flags2_and_say_so() {
        let offered = Capabilities::INIT_EXT | Capabilities::CREATE_SUPP_GROUP;
        let agreed = agreed(&offer(45, offered), &preferences());
        assert_eq!(agreed.reply.flags2, 1 << 2);
        assert_eq!(agreed.reply.flags, 1 << 30);
    }

    #[test]
    fn exclusive_capabilities_are_never_agreed_together() {
        let agreed = agreed(&offer(45, Capabilities::all()), &preferences());
        assert!(!agreed.capabilities.contains(Capabilities::WRITEBACK_CACHE));
        assert!(!agreed.capabilities.contains(Capabilities::AUTO_INVAL_DATA));
        assert!(agreed.capabilities.contains(Capabilities::PASSTHROUGH));
    }

    #[test]
    fn versions_meet_at_the_smaller_minor() {
        assert_eq!(agreed(&offer(38, Capabilities::all()), &preferences()).reply.minor, 38);
        assert_eq!(agreed(&offer(99, Capabilities::all()), &preferences()).reply.minor, MINOR);
        let newer = Offer { major: 8, ..offer(0, Capabilities::empty()) };
        assert!(matches!(negotiate(&newer, &preferences()), Negotiation::Again(InitOut { major: 7, .. })));
        let old = offer(30, Capabilities::all());
        assert_eq!(negotiate(&old, &preferences()), Negotiation::TooOld { major: 7, minor: 30 });
    }

    #[test]
    fn flags2_requires_init_ext() {
        let raw = InitIn { major: 7, minor: 45, flags: 0, flags2: u32::MAX, ..Default::default() };
        assert_eq!(Offer::from(&raw).capabilities, Capabilities::empty());
        let raw = InitIn { flags: 1 << 30, ..raw };
        assert!(Offer::from(&raw).capabilities.contains(Capabilities::REQUEST_TIMEOUT));
    }
}
