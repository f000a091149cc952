//! `nfs://HOST[:PORT]/NAME[/PATH][?OPTION[=VALUE]&…]` (RFC 2224 §2, with options after the question mark).

use std::fmt;
use std::str::FromStr;

use super::NfsOptions;
use super::host::Host;
use super::percent::{decoded, encoded};
use crate::setting::Setting;
use crate::suggestion::unknown;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsUrl {
    /// The server.
    pub host: Host,
    pub port: Option<u16>,
    /// The path on the server, from its root: `/` and components. Which of them name the export only the server knows.
    pub path: Vec<u8>,
    pub options: NfsOptions,
}

impl NfsUrl {
    /// `HOST:/PATH`, as mount.nfs(8) takes it: nothing is escaped, and there are no options.
    pub fn of_mount_word(text: &str) -> Result<Self, String> {
        let wrong = |reason: String| format!("{text:?}: {reason}: write HOST:/NAME or {FORM}");
        let (host, rest) = Host::cut(text).map_err(wrong)?;
        let path = rest.strip_prefix(':').unwrap_or(rest);
        let path = checked_path(path.as_bytes()).map_err(wrong)?;
        Ok(Self { host, port: None, path, options: NfsOptions::default() })
    }

    /// `HOST:/PATH`, as mounts are listed.
    pub fn mount_word(&self) -> String {
        format!("{}:{}", self.host, String::from_utf8_lossy(&self.path))
    }
}

const FORM: &str = "nfs://HOST[:PORT]/NAME";

impl FromStr for NfsUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |reason: String| format!("{text}: {reason}: write {FORM}");
        let rest = text.strip_prefix("nfs://").ok_or_else(|| wrong("not a URL of NFS".into()))?;
        let (host, rest) = Host::cut(rest).map_err(wrong)?;
        let (port, rest) = cut_port(rest).map_err(wrong)?;
        let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
        if path.contains('#') || options.contains('#') {
            return Err(format!("{text}: # has no meaning here: write %23 for it"));
        }
        let path = decoded(path).and_then(|path| checked_path(&path)).map_err(wrong)?;
        let options = parsed_options(options).map_err(|reason| format!("{text}: {reason}"))?;
        Ok(Self { host, port, path, options })
    }
}

/// `[:PORT]` off the front of `text`, and what follows.
fn cut_port(text: &str) -> Result<(Option<u16>, &str), String> {
    let Some(rest) = text.strip_prefix(':') else { return Ok((None, text)) };
    let (digits, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match digits.parse() {
        Ok(port) if port != 0 => Ok((Some(port), rest)),
        _ => Err(format!("{digits:?} is not a port")),
    }
}

/// `/` and components: none is empty, `.` or `..`, because what those mean would be the server's guess.
fn checked_path(path: &[u8]) -> Result<Vec<u8>, String> {
    if path.first() != Some(&b'/') {
        return Err("a name is missing".into());
    }
    let components = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let mut plain = Vec::with_capacity(path.len());
    for component in components {
        if component == b".." {
            return Err("`..` has no place in a path on a server".into());
        }
        plain.push(b'/');
        plain.extend_from_slice(component);
    }
    Ok(if plain.is_empty() { b"/".to_vec() } else { plain })
}

/// `NAME[=VALUE]&…`.
pub(super) fn parsed_options(text: &str) -> Result<NfsOptions, String> {
    let mut options = NfsOptions::default();
    for option in text.split('&').filter(|option| !option.is_empty()) {
        let option = String::from_utf8(decoded(option)?).map_err(|_| "an option that is not text")?;
        let setting = Setting::from(&*option);
        if !options.add(setting).map_err(|reason| format!("option {reason}"))? {
            return Err(unknown("option", setting.name, NfsOptions::names()));
        }
    }
    Ok(options)
}

impl fmt::Display for NfsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nfs://{}", self.host)?;
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
    fn a_mistake_is_one_line_that_says_what_to_write() {
        let mistake = |text: &str| text.parse::<NfsUrl>().expect_err(text);
        assert_eq!(mistake("nfs://"), "nfs://: a host is missing: write nfs://HOST[:PORT]/NAME");
        assert_eq!(mistake("nfs://h"), "nfs://h: a name is missing: write nfs://HOST[:PORT]/NAME");
        assert_eq!(mistake("nfs://h:0/a"), "nfs://h:0/a: \"0\" is not a port: write nfs://HOST[:PORT]/NAME");
        assert!(mistake("nfs://h:70000/a").contains("\"70000\" is not a port"));
        assert!(mistake("nfs://h:/a").contains("\"\" is not a port"));
        assert!(mistake("nfs://::1/a").contains("a host is missing"));
        assert!(mistake("nfs://[::1/a").contains("a ] is missing"));
        assert!(mistake("nfs://[host]/a").contains("[host] is not an IPv6 address"));
        assert!(mistake("nfs://joe@host/a").contains("names a user"));
        assert!(mistake("nfs://ho st/a").contains("\"ho st\" is not the name of a host"));
        assert!(mistake("nfs://h/a/../b").contains("`..`"));
        assert!(mistake("nfs://h/a%zz").contains("two hexadecimal digits"));
        assert!(mistake("nfs://h/a#b").contains("%23"));
        assert_eq!(mistake("nfs://h/a?sofd"), "nfs://h/a?sofd: unknown option \"sofd\": did you mean soft?");
        assert!(mistake("nfs://h/a?rsize=1").contains("option rsize=1: a number of bytes from 1024"));
    }
}
