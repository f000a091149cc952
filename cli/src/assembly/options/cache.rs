//! Options of a cache.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tombolo_layer_cache::Contract;

use super::disk::size;
use super::policy::RuleArg;
use crate::location::NfsUrl;

/// Options of a caching proxy.
#[derive(Args, Debug, Default)]
pub struct CacheOptions {
    /// Lend cached data to other proxies of this user and host that name the cache directory with
    /// --borrow-from.
    #[arg(long, help_heading = CACHE)]
    pub share_cache: bool,
    /// Read data from the cache in this directory, whose proxy has --share-cache, and from the origin
    /// otherwise.
    ///
    /// The directory must be a cache of the same file system. Names, attributes and permissions are still
    /// fetched by this proxy and stored in its own cache, together with data that could not be borrowed. If
    /// no proxy lends from that directory, all data are read from the origin.
    #[arg(long, value_name = "DIR", help_heading = CACHE)]
    pub borrow_from: Option<PathBuf>,
    /// Read data from the cache of another host, whose proxy of the same origin is served as
    /// nfs://HOST[:PORT]/NAME.
    ///
    /// The other host need not be trusted: its data are checked against digests from the origin, which must
    /// be a Tombolo server. Data that it lacks, does not deliver within two seconds, or delivers with a wrong
    /// digest are read from the origin. A proxy with this option lends only data in its own cache.
    #[arg(long, value_name = "URL", help_heading = CACHE)]
    pub data_from: Option<NfsUrl>,
    /// Maximum size of this tree's cached data and their index in bytes; K, M, G and T are powers of 1024 (by
    /// default 8G). Data not used recently are evicted.
    #[arg(long, value_name = "SIZE", help_heading = CACHE)]
    pub cache_size: Option<Size>,
    /// Unit of fetching and checking, a power of two from 4K to 1M (by default 64K). Cached data keep theirs.
    #[arg(long, value_name = "SIZE", help_heading = CACHE)]
    pub block_size: Option<Size>,
    /// Treatment of changes (by default write-through). write-back requires --contract exclusive and excludes
    /// --read-only, which overrides the other modes.
    #[arg(long, value_name = "MODE", help_heading = CACHE)]
    pub mode: Option<CacheMode>,
    /// Maximum amount of this tree's unsent changes with --mode write-back, besides --cache-size, in bytes;
    /// K, M, G and T are powers of 1024 (by default 4G). Writers block at the limit.
    #[arg(long, value_name = "SIZE", help_heading = CACHE)]
    pub write_back_limit: Option<Size>,
    /// How stale cached data may be (by default close-to-open): immutable, exclusive, close-to-open, lease or
    /// refresh=SECONDS.
    ///
    /// immutable: the tree never changes; nothing is revalidated. exclusive: all changes are made through
    /// this proxy; nothing is revalidated while it runs; over NFS a lease file at the root of the export
    /// keeps other exclusive proxies away. close-to-open: each open revalidates the file with the origin, and
    /// so sees the changes of all clients that closed it before; a look-up without an open may be as old as
    /// --attr-refresh. lease: nothing is revalidated while the origin, which must be a directory served by
    /// tombolo, promises to notify this proxy before another client changes anything; otherwise like
    /// close-to-open. By default a server makes such promises only to its own host and to clients with
    /// certificates: see `tombolo serve --leases`. refresh: everything may be SECONDS old.
    #[arg(long, value_name = "CONTRACT", help_heading = CACHE)]
    pub contract: Option<ContractArg>,
    /// Take over the tree's lease from another proxy, with --contract exclusive over NFS.
    ///
    /// The other proxy notices within ten seconds, and is close-to-open from then on. With --mode write-back
    /// it still sends its unsent changes; a file that was also changed at the origin is kept in both versions
    /// (NAME.conflict-…).
    #[arg(long, help_heading = CACHE, conflicts_with = "no_lease")]
    pub take_lease: bool,
    /// Take no lease with --contract exclusive: neither write .tombolo-lease at the root of the export nor
    /// keep other exclusive proxies away.
    #[arg(long, help_heading = CACHE)]
    pub no_lease: bool,
    /// Seconds for which attributes and names stay valid without an open, with --contract close-to-open, and
    /// with lease while none is granted (by default 3).
    #[arg(long, value_name = "SECONDS", help_heading = CACHE)]
    pub attr_refresh: Option<u32>,
    /// Ignore sidecars: the files .tombolo-image (made by tombolo image scan) next to large files, which list
    /// the blocks of zeroes, which need no fetch.
    #[arg(long, help_heading = CACHE)]
    pub no_sidecars: bool,
    /// Record the first read of each part of each file, in order, one line each: a trace for `tombolo image
    /// scan --trace`. An existing file is overwritten.
    #[arg(long, value_name = "FILE", help_heading = CACHE)]
    pub record: Option<PathBuf>,
    /// Cache settings of matching files; repeatable, the first match applies.
    ///
    /// PATTERN is as for `serve --ask`: with a `/` it matches a path within the tree, otherwise a name.
    /// whole-files=yes fetches all of a file once a part is read. prefetch=yes (the default) fetches
    /// neighbours of what is read or listed, no does not, and tree fetches all names below a directory at its
    /// first look-up, and the small files next to the first one read. read-ahead=SIZE limits the read-ahead
    /// (by default 16M). block-size, mode (write-through or read-only), contract and attr-refresh are as the
    /// options.
    #[arg(long, value_name = "PATTERN,KEY=VALUE[,…]", help_heading = CACHE)]
    pub rule: Vec<RuleArg>,
    /// TOML file with cache-size, write-back-limit and the keys of --rule for all files, and the latter for
    /// matching files in `[[rule]]` tables with a pattern. Options override its values for all files; its
    /// rules are tried after those of --rule.
    #[arg(long, value_name = "FILE", help_heading = CACHE)]
    pub policy: Option<PathBuf>,
}

pub const CACHE: &str = "Cache";

impl CacheOptions {
    /// Resolves relative paths against `base`, the working directory of the command that created the
    /// session.
    pub fn count_from(&mut self, base: &Path) {
        for path in self.borrow_from.iter_mut().chain(&mut self.policy).chain(&mut self.record) {
            *path = base.join(&path);
        }
    }
}

/// A number of bytes: `N`, `NK`, `NM` or `NG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = size(text).filter(|bytes| *bytes > 0);
        bytes.map(Self).ok_or_else(|| "write a number of bytes, such as 64K, 512M or 8G".into())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CacheMode {
    /// Send changes to the origin before they are acknowledged
    #[default]
    WriteThrough,
    /// Refuse changes
    ReadOnly,
    /// Store changes on the local disk and send them to the origin in the background
    WriteBack,
}

/// A contract, as `--contract` and the rules of a policy write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContractArg(pub Contract);

impl FromStr for ContractArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let contract = match text {
            "immutable" => Contract::Immutable,
            "exclusive" => Contract::Exclusive,
            "close-to-open" => Contract::CloseToOpen,
            "lease" => Contract::Lease,
            _ => {
                let seconds = text.strip_prefix("refresh=").and_then(|seconds| seconds.parse().ok());
                let wrong = "write immutable, exclusive, close-to-open, lease or refresh=SECONDS";
                Contract::Refresh(Duration::from_secs(seconds.map(u32::into).ok_or(wrong)?))
            }
        };
        Ok(Self(contract))
    }
}

/// Formats a contract as on the command line.
pub fn contract_word(contract: Contract) -> String {
    match contract {
        Contract::Immutable => "immutable".into(),
        Contract::Exclusive => "exclusive".into(),
        Contract::CloseToOpen => "close-to-open".into(),
        Contract::Lease => "lease".into(),
        Contract::Refresh(time) => format!("refresh={}", time.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contracts_and_sizes_parse_and_format() {
        for word in ["immutable", "exclusive", "close-to-open", "lease", "refresh=30"] {
            let contract = word.parse::<ContractArg>().expect(word);
            assert_eq!(contract_word(contract.0), word);
        }
        assert!("strict".parse::<ContractArg>().expect_err("no contract").contains("write immutable"));
        assert_eq!(("8G".parse(), "64K".parse()), (Ok(Size(8 << 30)), Ok(Size(64 << 10))));
        assert!(
            "".parse::<Size>().is_err() && "0".parse::<Size>().is_err() && "1T?".parse::<Size>().is_err()
        );
    }
}
