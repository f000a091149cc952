//! Options of a session that is added to a running proxy.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use clap::{Arg, Args, Parser};

use super::ServerOptions;
use super::cache::CacheOptions;
use crate::cli::LogArgs;
use crate::failure::Failure;
use crate::service::DEFAULT_SESSION;

/// Name of a session: one path component, and one word.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionName(String);

const NAME_BYTES_MAX: usize = 64;

impl FromStr for SessionName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        match is_plain && !text.starts_with(['.', '-']) && (1..=NAME_BYTES_MAX).contains(&text.len()) {
            true => Ok(Self(text.into())),
            false => Err(format!(
                "{text:?} is not the name of a session: write up to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`"
            )),
        }
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SessionName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Options of a session: those of a proxy, except the ones that exist once per proxy.
#[derive(Args, Debug)]
#[command(mut_arg("dir", describe_origin), mut_arg("control", describe_control))]
#[command(mut_args(of_session))]
#[command(override_usage = "tombolo session create [OPTIONS] <NAME> <LOCATION>")]
pub struct SessionOptions {
    /// Name of the session. It is served as /NAME.
    #[arg(value_name = "NAME")]
    pub name: SessionName,
    #[command(flatten)]
    pub server: ServerOptions,
    #[command(flatten)]
    pub cache: CacheOptions,
}

/// Description of a location that is cached.
pub const ORIGIN: &str = "Origin: nfs://HOST/NAME, nfs+ssh://HOST/PATH, shm:SOCKET/NAME or a directory";

/// Replaces the help of `tombolo serve DIR[=/NAME]`: the session has a name already.
fn describe_origin(dir: Arg) -> Arg {
    dir.value_name("LOCATION").help(format!("{ORIGIN}. Exactly one")).long_help(None::<&str>)
}

/// Replaces the help of `tombolo serve --control`: the socket selects the proxy.
fn describe_control(control: Arg) -> Arg {
    control.help("Control socket of the proxy (by default that of the only running one)")
}

/// Hides the options that [`SessionOptions::check`] refuses, and those that no proxy accepts.
fn of_session(option: Arg) -> Arg {
    let is_refused = matches!(option.get_id().as_str(), "ask" | "fd" | "keep" | "metrics" | "sandbox");
    if is_refused { option.hide(true) } else { describe_for_proxy(option) }
}

/// Replaces the help of those options of `tombolo serve` that differ for a proxy.
pub fn describe_for_proxy(option: Arg) -> Arg {
    let (summary, details) = match option.get_id().as_str() {
        "coherence" => (
            "Cache policy of guests and of --fuse mounts: strict, auto (the default), always or push",
            "strict caches nothing. auto revalidates with the proxy at each open, and caches names and attributes \
             for 1 second. always caches everything for a day. push caches everything until the proxy reports a \
             change; it requires --fuse, no guests, and --contract exclusive or immutable for all files. \
             Freshness of the proxy's own cache is determined by --contract.",
        ),
        "read_only" => (
            "Refuse all changes",
            "Overrides --mode and the mode of each --rule; not allowed with --mode write-back. --mode read-only \
             applies only to files without a --rule that has another mode.",
        ),
        "fuse" => (
            "Mount the tree on this host, through FUSE, from the same server; repeatable",
            "`allow_other` admits users other than the proxy's own.",
        ),
        "host_watch" => (
            "Watch an origin that is a local directory for changes by other processes of this host",
            "Requires root. Implied by --coherence push. No effect on other origins, for which --coherence push \
             requires no root.",
        ),
        _ => return option,
    };
    option.help(summary).long_help(format!("{summary}.\n\n{details}")).hide_possible_values(true)
}

/// Parser of the arguments of `tombolo session create` without the program's name and command.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Words {
    #[command(flatten)]
    options: SessionOptions,
    #[command(flatten)]
    _log: LogArgs,
}

impl SessionOptions {
    /// Parses these words; relative paths are resolved against `directory`.
    pub fn of_words(words: &[String], directory: &Path) -> Result<Self, Failure> {
        let parsed = Words::try_parse_from(words.iter().map(OsString::from));
        let mut options = parsed.map_err(|error| Failure::usage(error.to_string()))?.options;
        options.server.count_from(directory);
        options.cache.count_from(directory);
        options.check()?;
        Ok(options)
    }

    /// Refuses `--metrics`, `--sandbox` and `--fd`, which exist once per proxy, the name `default`, and
    /// anything but one location without an export name.
    pub fn check(&self) -> Result<(), Failure> {
        let (name, server) = (&self.name, &self.server);
        let refused = |problem: String, remedy: &str| Err(Failure::usage(problem).remedy(remedy));
        match server.dir.as_slice() {
            _ if name.as_str() == DEFAULT_SESSION => refused(
                format!("the session {name} is that of the proxy's own command line"),
                "choose another name",
            ),
            [tree] if tree.name.is_none() => match () {
                () if server.metrics.is_some() => {
                    refused("--metrics applies to the proxy as a whole".into(), "leave it out")
                }
                () if server.sandbox.is_some() => {
                    refused("--sandbox applies to the proxy as a whole".into(), "leave it out")
                }
                () if !server.fd.is_empty() => {
                    refused("--fd is only for the proxy's own command line".into(), "use --virtiofs SOCKET")
                }
                () => Ok(()),
            },
            [_] => refused(format!("the session {name} is served as /{name}"), "leave out =/NAME"),
            _ => refused(
                "exactly one location is required".into(),
                "write `tombolo session create NAME nfs://HOST/NAME --fuse MOUNTPOINT …`",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_name_is_one_component() {
        for good in ["src", "a.b-c_1", "9"] {
            assert_eq!(good.parse::<SessionName>().expect("good").as_str(), good);
        }
        for bad in ["", ".", "..", "-a", "a/b", "a b", "ä", &"a".repeat(65)] {
            assert!(bad.parse::<SessionName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn session_paths_resolve_against_callers_directory() {
        let words = ["src", "nfs://far/src", "--fuse", "mnt", "--policy", "p.toml"].map(String::from);
        let options = SessionOptions::of_words(&words, Path::new("/home/me")).expect("good");
        assert_eq!(options.server.fuse[0].mountpoint, Path::new("/home/me/mnt"));
        assert_eq!(options.cache.policy.as_deref(), Some(Path::new("/home/me/p.toml")));
        assert_eq!(options.server.dir[0].dir, Path::new("nfs://far/src"));
        for bad in [
            &["default", "x", "--nfs", "0"][..],
            &["a", "x=/y", "--nfs", "0"],
            &["a", "--nfs", "0"],
            &["a", "x", "--metrics", "1"],
            &["a", "x", "--cache", "y"],
        ] {
            let words: Vec<_> = bad.iter().map(|word| String::from(*word)).collect();
            assert!(SessionOptions::of_words(&words, Path::new("/")).is_err(), "{bad:?}");
        }
    }
}
