//! What can be asked of a cache.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tombolo_layer_cache::Contract;

use super::policy::RuleArg;
use crate::location::NfsUrl;
use crate::setting::Setting;

/// How what is far away is cached.
#[derive(Args, Debug, Default)]
pub struct CacheOptions {
    /// Lend what is in the cache to other proxies of this user and host that have --borrow-from with its
    /// directory.
    #[arg(long, help_heading = CACHE)]
    pub share_cache: bool,
    /// Read data where the cache in this directory has them, whose proxy has --share-cache, and only else at
    /// the origin.
    ///
    /// It must be a cache of the same file system. Names, attributes and rights this proxy asks for itself,
    /// and keeps them in its own cache, with the data that could not be borrowed. While no proxy lends from
    /// there, all data come from the origin.
    #[arg(long, value_name = "DIR", help_heading = CACHE)]
    pub borrow_from: Option<PathBuf>,
    /// Read data where the cache of another host has them, that a proxy of the same origin serves there as
    /// nfs://HOST[:PORT]/NAME.
    ///
    /// It need not be trusted: this proxy asks the origin, which must be a server of ours, for the digests of
    /// all that comes from there. What is not there, does not come within two seconds or is not what it
    /// should be is read at the origin. A proxy with this option lends others only what it has.
    #[arg(long, value_name = "URL", help_heading = CACHE)]
    pub data_from: Option<NfsUrl>,
    /// How much data the cache may hold (by default 8G); what was not used lately goes first.
    #[arg(long, value_name = "SIZE", help_heading = CACHE)]
    pub cache_size: Option<Size>,
    /// What is fetched and checked as one, from 4K to 1M (by default 64K).
    #[arg(long, value_name = "SIZE", help_heading = CACHE)]
    pub block_size: Option<Size>,
    /// What happens to changes (by default write-through). write-back takes --contract exclusive.
    #[arg(long, value_name = "MODE", help_heading = CACHE)]
    pub mode: Option<CacheMode>,
    /// How much data may wait here for the origin, with --mode write-back (by default 4G). Writers wait then.
    #[arg(long, value_name = "SIZE", help_heading = CACHE)]
    pub write_back_limit: Option<Size>,
    /// What is promised of the age of what is read (by default close-to-open): immutable, exclusive,
    /// close-to-open, lease or refresh=SECONDS.
    ///
    /// immutable: the tree never changes, nothing is asked twice. exclusive: all changes come through this
    /// proxy, nothing is asked twice while it runs; over NFS it keeps a lease file at the root of the export,
    /// so that no other proxy does the same. close-to-open: each open asks the origin, and sees what was
    /// closed before; a look without an open may be as old as --attr-refresh says. lease: nothing is asked
    /// twice while the origin, which must be a directory that tombolo serves, says that it will ask this
    /// proxy before another changes anything; else as close-to-open. refresh: everything may be so old.
    #[arg(long, value_name = "CONTRACT", help_heading = CACHE)]
    pub contract: Option<ContractArg>,
    /// Take the lease of the tree from another proxy that holds it, under exclusive over NFS. The other is
    /// told within ten seconds, and asks the origin from then on.
    #[arg(long, help_heading = CACHE, conflicts_with = "no_lease")]
    pub take_lease: bool,
    /// Take no lease under exclusive: write no .tombolo-lease at the root of the export, and keep no other
    /// proxy away.
    #[arg(long, help_heading = CACHE)]
    pub no_lease: bool,
    /// For how many seconds attributes and names are believed without an open, under close-to-open, and under
    /// lease without one (by default 3).
    #[arg(long, value_name = "SECONDS", help_heading = CACHE)]
    pub attr_refresh: Option<u32>,
    /// Do not look for .tombolo-image beside large files, by which what is known to be zeroes is not fetched.
    #[arg(long, help_heading = CACHE)]
    pub no_sidecars: bool,
    /// Write down what is read of which file, in order, a line for each part when it is first read: a trace
    /// for `tombolo image scan --trace`. The file is made anew.
    #[arg(long, value_name = "FILE", help_heading = CACHE)]
    pub record: Option<PathBuf>,
    /// How the files of these names are cached, if not as the rest; repeatable, and the first that fits
    /// counts.
    ///
    /// PATTERN is as for `serve --ask`: with a `/` in it a path within the tree, and else a name. KEY is
    /// block-size, whole-files, prefetch, read-ahead, mode, contract or attr-refresh.
    #[arg(long, value_name = "PATTERN,KEY=VALUE[,…]", help_heading = CACHE)]
    pub rule: Vec<RuleArg>,
    /// A file in TOML with these keys, also cache-size, for all files, and for some below `[[rule]]` with a
    /// pattern.
    #[arg(long, value_name = "FILE", help_heading = CACHE)]
    pub policy: Option<PathBuf>,
}

pub const CACHE: &str = "Cache";

impl CacheOptions {
    /// Has relative paths count from a directory.
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
        let setting = Setting { text, name: text, value: Some(text) };
        setting
            .bytes()
            .filter(|bytes| *bytes > 0)
            .map(Self)
            .ok_or_else(|| "write a number of bytes, such as 64K, 512M or 8G".into())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CacheMode {
    /// They go to the origin before they are answered
    #[default]
    WriteThrough,
    /// They are refused
    ReadOnly,
    /// They are kept on the local disk, and go to the origin in the background
    WriteBack,
}

/// A contract by its name.
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

/// A contract as it is written.
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
    fn contracts_and_sizes_are_read_as_they_are_written() {
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
