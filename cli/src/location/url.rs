//! `nfs://HOST[:PORT]/NAME[/PATH][?OPTION[=VALUE]&…]` (RFC 2224 §2, plus options), and
//! `nfs+ssh://[USER@]HOST[:PORT]/PATH…` for a server started through ssh(1).

use std::fmt;
use std::str::FromStr;

use super::host::Host;
use super::percent::{decoded, encoded};
use super::{NfsOption, NfsOptions};
use crate::setting::Setting;
use crate::suggestion::unknown;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsUrl {
    /// Set if the server is reached through ssh.
    pub ssh: Option<Ssh>,
    /// Host of the server, or the one that ssh connects to.
    pub host: Host,
    pub port: Option<u16>,
    /// Path on the server, from its root: `/` and components. Only the server knows how many of the
    /// components name the export.
    pub path: Vec<u8>,
    pub options: NfsOptions,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ssh {
    /// User on the other host; by default ssh determines it.
    pub user: Option<String>,
}

impl NfsUrl {
    /// Parses `HOST:/PATH`, as accepted by mount.nfs(8): without escapes and options.
    pub fn of_mount_word(text: &str) -> Result<Self, String> {
        let wrong = |reason: String| format!("{text:?}: {reason}: write HOST:/NAME or {FORM}");
        let (host, rest) = Host::cut(text).map_err(wrong)?;
        let path = rest.strip_prefix(':').unwrap_or(rest);
        let path = checked_path(path.as_bytes()).map_err(wrong)?;
        Ok(Self { ssh: None, host, port: None, path, options: NfsOptions::default() })
    }

    /// Returns the source shown in the list of mounts: `HOST:/PATH`, or through ssh the URL without
    /// options.
    pub fn mount_word(&self) -> String {
        match self.ssh {
            None => format!("{}:{}", self.host, String::from_utf8_lossy(&self.path)),
            Some(_) => self.bare().to_string(),
        }
    }

    fn bare(&self) -> Self {
        Self { options: NfsOptions::default(), ..self.clone() }
    }

    /// Refuses options that do not apply to this transport.
    pub fn check(&self, options: &NfsOptions) -> Result<(), String> {
        let problem = |option: &NfsOption| match (option, &self.ssh) {
            (NfsOption::SshCommand(_) | NfsOption::RemoteProgram(_), None) => Some("is only for nfs+ssh://"),
            (
                NfsOption::Transport(_)
                | NfsOption::Port(_)
                | NfsOption::MountPort(_)
                | NfsOption::ReservedPort(_)
                | NfsOption::Security(_)
                | NfsOption::TlsDir(_),
                Some(_),
            ) => Some("does not apply to nfs+ssh://"),
            _ => None,
        };
        let mut said = options.iter().zip(options.words());
        let wrong = said.find_map(|(option, word)| Some(format!("option {word} {}", problem(&option)?)));
        wrong.map_or(Ok(()), Err)
    }
}

const FORM: &str = "nfs://HOST[:PORT]/NAME";
const SSH_FORM: &str = "nfs+ssh://[USER@]HOST[:PORT]/PATH";
const NFS: &str = "nfs://";
const NFS_SSH: &str = "nfs+ssh://";

impl FromStr for NfsUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let over_ssh = text.strip_prefix(NFS_SSH);
        let form = if over_ssh.is_some() { SSH_FORM } else { FORM };
        let wrong = |reason: String| format!("{text}: {reason}: write {form}");
        let rest = over_ssh.or(text.strip_prefix(NFS)).ok_or_else(|| wrong("not an NFS URL".into()))?;
        let (ssh, rest) = match over_ssh {
            Some(rest) => cut_user(rest).map(|(user, rest)| (Some(Ssh { user }), rest)).map_err(wrong)?,
            None => (None, rest),
        };
        let (host, rest) = Host::cut(rest).map_err(wrong)?;
        let (port, rest) = cut_port(rest).map_err(wrong)?;
        let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
        if path.contains('#') || options.contains('#') {
            return Err(format!("{text}: fragments are not supported: write %23 for #"));
        }
        let path = decoded(path).and_then(|path| checked_path(&path)).map_err(wrong)?;
        let options = parsed_options(options).map_err(|reason| format!("{text}: {reason}"))?;
        let url = Self { ssh, host, port, path, options };
        url.check(&url.options).map_err(|reason| format!("{text}: {reason}"))?;
        Ok(url)
    }
}

/// Splits `[USER@]` off the front of `text`. A user must not look like an option to other programs.
fn cut_user(text: &str) -> Result<(Option<String>, &str), String> {
    let authority = text.find(['/', '?', '#']).and_then(|end| text.get(..end)).unwrap_or(text);
    let Some((user, _)) = authority.rsplit_once('@') else { return Ok((None, text)) };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if user.is_empty() || user.starts_with('-') || !user.bytes().all(is_plain) {
        return Err(format!("{user:?} is not a valid user name"));
    }
    Ok((Some(user.into()), text.get(user.len() + 1..).unwrap_or_default()))
}

/// Splits `[:PORT]` off the front of `text`.
fn cut_port(text: &str) -> Result<(Option<u16>, &str), String> {
    let Some(rest) = text.strip_prefix(':') else { return Ok((None, text)) };
    let (digits, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match digits.parse() {
        Ok(port) if port != 0 => Ok((Some(port), rest)),
        _ => Err(format!("{digits:?} is not a port")),
    }
}

/// Normalizes a path; `..` is refused, because servers may interpret it differently.
fn checked_path(path: &[u8]) -> Result<Vec<u8>, String> {
    if path.first() != Some(&b'/') {
        return Err("the name is missing".into());
    }
    let components = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let mut plain = Vec::with_capacity(path.len());
    for component in components {
        if component == b".." {
            return Err("`..` is not allowed in a path on a server".into());
        }
        plain.push(b'/');
        plain.extend_from_slice(component);
    }
    Ok(if plain.is_empty() { b"/".to_vec() } else { plain })
}

/// Parses `NAME[=VALUE]&…`.
pub(super) fn parsed_options(text: &str) -> Result<NfsOptions, String> {
    let mut options = NfsOptions::default();
    for option in text.split('&').filter(|option| !option.is_empty()) {
        let option = String::from_utf8(decoded(option)?).map_err(|_| "an option is not valid text")?;
        let setting = Setting::from(&*option);
        if !options.add(setting).map_err(|reason| format!("option {reason}"))? {
            return Err(unknown("option", setting.name, NfsOptions::names()));
        }
    }
    Ok(options)
}

impl fmt::Display for NfsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ssh {
            None => f.write_str(NFS)?,
            Some(Ssh { user: None }) => f.write_str(NFS_SSH)?,
            Some(Ssh { user: Some(user) }) => write!(f, "{NFS_SSH}{user}@")?,
        }
        write!(f, "{}", self.host)?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(&encoded(&self.path))?;
        for (index, option) in self.options.words().enumerate() {
            let Setting { name, value, .. } = Setting::from(option);
            write!(f, "{}{}", if index == 0 { '?' } else { '&' }, encoded(name.as_bytes()))?;
            if let Some(value) = value {
                write!(f, "={}", encoded(value.as_bytes()))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_written_as_it_is_read() {
        for text in [
            "nfs://host/name",
            "nfs://host.example:2049/a/b%20c",
            "nfs://[fe80::1]:20049/",
            "nfs://10.0.0.1/gr%C3%B6%C3%9Fe?proto=udp&hard&inflight=32",
            "nfs+ssh://host/srv/a",
            "nfs+ssh://joe.b@host:22/srv/a?ssh=ssh%20-i%20k&tombolo=/opt/tombolo&nconnect=4",
        ] {
            assert_eq!(text.parse::<NfsUrl>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn parts_are_where_they_belong() {
        let url: NfsUrl = "nfs://[::1]:1234//srv/./data%2Fx%3f/?soft".parse().expect("good");
        assert_eq!((url.port, &*url.path), (Some(1234), &b"/srv/data/x?"[..]));
        assert_eq!(url.host.to_string(), "[::1]");
        assert_eq!(url.options.words().collect::<Vec<_>>(), ["soft"]);
        let url = NfsUrl::of_mount_word("host:/100%/a?b").expect("good");
        assert_eq!((url.port, &*url.path), (None, &b"/100%/a?b"[..]));
    }

    #[test]
    fn mistakes_are_one_line_with_remedy() {
        let mistake = |text: &str| text.parse::<NfsUrl>().expect_err(text);
        assert_eq!(mistake("nfs://"), "nfs://: the host is missing: write nfs://HOST[:PORT]/NAME");
        assert_eq!(mistake("nfs://h"), "nfs://h: the name is missing: write nfs://HOST[:PORT]/NAME");
        assert_eq!(mistake("nfs://h:0/a"), "nfs://h:0/a: \"0\" is not a port: write nfs://HOST[:PORT]/NAME");
        assert!(mistake("nfs://h:70000/a").contains("\"70000\" is not a port"));
        assert!(mistake("nfs://h:/a").contains("\"\" is not a port"));
        assert!(mistake("nfs://::1/a").contains("the host is missing"));
        assert!(mistake("nfs://[::1/a").contains("missing ]"));
        assert!(mistake("nfs://[host]/a").contains("[host] is not an IPv6 address"));
        assert!(mistake("nfs://joe@host/a").contains("includes a user"));
        assert_eq!(
            mistake("nfs+ssh://host"),
            "nfs+ssh://host: the name is missing: write nfs+ssh://[USER@]HOST[:PORT]/PATH"
        );
        for user in ["", "-oProxyCommand", "a b", "a@b", "a:b"] {
            let said = mistake(&format!("nfs+ssh://{user}@host/a"));
            assert!(said.contains(&format!("{user:?} is not a valid user name")), "{said}");
        }
        assert!(mistake("nfs+ssh://-oProxyCommand/a").contains("is not a valid host name"));
        assert!(mistake("nfs+ssh://h/a?udp").ends_with("option udp does not apply to nfs+ssh://"));
        assert!(mistake("nfs://h/a?ssh=x").ends_with("option ssh=x is only for nfs+ssh://"));
        assert!(mistake("nfs://ho st/a").contains("\"ho st\" is not a valid host name"));
        assert!(mistake("nfs://h/a/../b").contains("`..`"));
        assert!(mistake("nfs://h/a%zz").contains("two hexadecimal digits"));
        assert!(mistake("nfs://h/a#b").contains("%23"));
        assert_eq!(mistake("nfs://h/a?sofd"), "nfs://h/a?sofd: unknown option \"sofd\": did you mean soft?");
        assert!(mistake("nfs://h/a?rsize=1").contains("option rsize=1: a number of bytes from 1024"));
    }
}
