//! Access policy for links: the processes that may use each export, as configured by the operator.
//!
//! ```toml
//! # A process has access if one of these rules allows it. Without a file: root, and the server's user.
//! [[allow]]
//! exports = ["/src"]        # without it: all
//! users = [1000, 1001]      # effective user ids
//! groups = [100]            # effective group ids; supplementary groups do not count
//!
//! [[allow]]
//! exports = ["/public"]
//! everybody = true
//! identities = "own"        # of requests: "own" or "any"; default: "any" for root and the server's user,
//!                           # "own" for others
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;
use tombolo_sys::creds;

use super::server::Credentials;

/// Access rules for links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    exports: Option<Vec<String>>,
    #[serde(default)]
    users: Vec<u32>,
    #[serde(default)]
    groups: Vec<u32>,
    #[serde(default)]
    everybody: bool,
    identities: Option<Identities>,
}

/// Identities available to a process under a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Identities {
    /// The process's own user, with its own groups.
    Own,
    /// Any identity, including root's.
    Any,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    allow: Vec<Rule>,
}

/// Reason why a policy file is not used.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// System error.
        #[source]
        source: io::Error,
    },
    /// Users other than root and the server's could change the file.
    #[error("{}: owned by user {uid} with mode {mode:03o}: other users could change the policy", path.display())]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// User id of the file's owner.
        uid: u32,
        /// Permission bits of the file.
        mode: u32,
    },
    /// The file exceeds the maximum length.
    #[error("{}: longer than {FILE_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The file is malformed.
    #[error("{}: {source}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Location and reason.
        #[source]
        source: toml::de::Error,
    },
    /// A rule allows no process, which is rarely intended.
    #[error("{}: rule {number} names no users and no groups, and does not say everybody = true", path.display())]
    NoUsers {
        /// The file.
        path: PathBuf,
        /// Number of the rule, from 1.
        number: usize,
    },
}

/// Maximum length of a policy file, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

impl Policy {
    /// Returns the default policy: root and the user of this process may have links to all exports.
    pub fn own_user() -> Policy {
        let (uid, _) = creds::own_ids();
        Policy {
            rules: vec![Rule {
                exports: None,
                users: vec![0, uid],
                groups: vec![],
                everybody: false,
                identities: None,
            }],
        }
    }

    /// Loads the rules of a file, which replace the default. The file is read once.
    pub fn load(path: &Path) -> Result<Policy, PolicyError> {
        let io = |source| PolicyError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        let (own_uid, _) = creds::own_ids();
        let (uid, mode) = (metadata.uid(), metadata.mode() & 0o777);
        if (uid != 0 && uid != own_uid) || mode & 0o022 != 0 {
            return Err(PolicyError::Unsafe { path: path.to_owned(), uid, mode });
        }
        let mut text = String::new();
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(io)?;
        if read as u64 > FILE_BYTES_MAX {
            return Err(PolicyError::TooLong { path: path.to_owned() });
        }
        let Text { allow: rules } =
            toml::from_str(&text).map_err(|source| PolicyError::Syntax { path: path.to_owned(), source })?;
        let allows_none = |rule: &Rule| rule.users.is_empty() && rule.groups.is_empty() && !rule.everybody;
        match rules.iter().position(allows_none) {
            Some(at) => Err(PolicyError::NoUsers { path: path.to_owned(), number: at + 1 }),
            None => Ok(Policy { rules }),
        }
    }

    /// Returns `true` if any link is allowed to this process.
    pub fn admits(&self, credentials: Credentials) -> bool {
        self.rules.iter().any(|rule| rule.fits(credentials))
    }

    /// Returns `true` if a process with these credentials may have a link to this export. Names are compared
    /// literally.
    pub fn allows(&self, credentials: Credentials, export: &str) -> bool {
        self.rules_of(credentials, export).next().is_some()
    }

    /// Returns `true` if a process may use any identity for `export`. Otherwise it can act only under its own
    /// identity.
    pub fn may_use_any_identity(&self, credentials: Credentials, export: &str) -> bool {
        // Root and this process's own user could do the same without this server.
        let could_anyway = credentials.uid == 0 || credentials.uid == creds::own_ids().0;
        self.rules_of(credentials, export).any(|rule| match rule.identities {
            Some(identities) => identities == Identities::Any,
            None => could_anyway,
        })
    }

    fn rules_of(&self, credentials: Credentials, export: &str) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| {
            let named = rule.exports.as_ref().is_none_or(|names| names.iter().any(|name| name == export));
            named && rule.fits(credentials)
        })
    }
}

impl Rule {
    fn fits(&self, credentials: Credentials) -> bool {
        self.everybody || self.users.contains(&credentials.uid) || self.groups.contains(&credentials.gid)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn peer(uid: u32, gid: u32) -> Credentials {
        Credentials { pid: 1, uid, gid }
    }

    fn load(text: &str) -> Result<Policy, PolicyError> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("links.toml");
        fs::write(&path, text).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("chmod");
        Policy::load(&path)
    }

    #[test]
    fn default_policy_allows_root_and_server_user() {
        let (uid, _) = creds::own_ids();
        let policy = Policy::own_user();
        assert!(policy.allows(peer(uid, 5), "/any"));
        assert!(policy.allows(peer(0, 0), "/any"));
        assert!(!policy.admits(peer(uid + 1, 5)));
        assert!(!policy.allows(peer(uid + 1, 0), "/any"));
    }

    #[test]
    fn the_rules_of_a_file_replace_the_default() {
        let policy = load(
            "[[allow]]\nexports = ['/src']\nusers = [1000]\n[[allow]]\ngroups = [100]\n\
             [[allow]]\nexports = ['/public']\neverybody = true\n",
        )
        .expect("rules");
        assert!(policy.allows(peer(1000, 1), "/src"));
        assert!(!policy.allows(peer(1000, 1), "/other"));
        assert!(!policy.allows(peer(1000, 1), "/src/below"));
        assert!(policy.allows(peer(7, 100), "/other"));
        assert!(policy.allows(peer(7, 7), "/public"));
        assert!(!policy.allows(peer(7, 7), "/src"));
        assert!(!policy.allows(peer(0, 0), "/src"), "not even root");
        assert!(!load("").expect("no rules").admits(peer(0, 0)));
    }

    #[test]
    fn any_identity_is_limited_to_root_and_server_user() {
        let (own, _) = creds::own_ids();
        let other = own + 1;
        assert!(Policy::own_user().may_use_any_identity(peer(own, 5), "/any"));
        assert!(Policy::own_user().may_use_any_identity(peer(0, 0), "/any"));
        assert!(!Policy::own_user().may_use_any_identity(peer(other, 0), "/any"));
        let policy = load(
            "[[allow]]\neverybody = true\n[[allow]]\nexports = ['/vm']\ngroups = [100]\nidentities = 'any'\n",
        )
        .expect("rules");
        assert!(policy.may_use_any_identity(peer(own, 5), "/src"));
        assert!(!policy.may_use_any_identity(peer(other, 100), "/src"));
        assert!(policy.may_use_any_identity(peer(other, 100), "/vm"));
        assert!(!policy.may_use_any_identity(peer(other, 5), "/vm"));
        let own_only = load("[[allow]]\neverybody = true\nidentities = 'own'\n").expect("rules");
        assert!(!own_only.may_use_any_identity(peer(0, 0), "/src"), "not even root");
    }

    #[test]
    fn malformed_or_unsafe_policy_file_is_refused() {
        for text in [
            "[[allow]]\nuser = [1]\n",
            "[[allow]]\nusers = ['root']\n",
            "allow = 3",
            "[[allow]]\nusers = [-1]",
            "[[allow]]\neverybody = true\nidentities = 'root'",
        ] {
            assert!(matches!(load(text), Err(PolicyError::Syntax { .. })), "{text}");
        }
        assert!(matches!(
            load("[[allow]]\neverybody = true\n[[allow]]\nexports = ['/x']"),
            Err(PolicyError::NoUsers { number: 2, .. })
        ));
        assert!(matches!(
            load(&"#".repeat(usize::try_from(FILE_BYTES_MAX).expect("small") + 1)),
            Err(PolicyError::TooLong { .. })
        ));
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("links.toml");
        assert!(matches!(Policy::load(&path), Err(PolicyError::Io { .. })));
        fs::write(&path, "").expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).expect("chmod");
        assert!(matches!(Policy::load(&path), Err(PolicyError::Unsafe { mode: 0o664, .. })));
    }
}
