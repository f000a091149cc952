//! Databases in files: passwd(5), group(5), nsswitch.conf(5), and hosts(5).

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::PathBuf;

use super::LookUpError;

/// Maximum number of bytes read from a file.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Services that nsswitch.conf names for a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Services {
    /// `true` for the files in `/etc`.
    pub(super) files: bool,
    /// `true` for any other service.
    pub(super) others: bool,
}

/// A user entry of passwd(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) group: u32,
}

impl User {
    /// Parses a line of passwd(5). Returns `None` if it is malformed, or another user's.
    pub(super) fn parse(line: &[u8], uid: u32) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b':');
        let name = name_of(fields.next()?)?;
        let _password = fields.next()?;
        let (found, group) = (number(fields.next()?)?, number(fields.next()?)?);
        (found == uid).then_some(Self { name, group })
    }
}

/// Returns the id of a group from its line in group(5), or `None` if the line is malformed.
pub(super) fn id_of_group(line: &[u8]) -> Option<u32> {
    let mut fields = line.split(|&byte| byte == b':');
    name_of(fields.next()?)?;
    let _password = fields.next()?;
    number(fields.next()?)
}

/// Returns the name that a line begins with. Lines of NIS (`+`, `-`) and comments have none.
fn name_of(field: &[u8]) -> Option<String> {
    let is_name = !field.is_empty() && !b"+-#".contains(&field[0]);
    is_name.then(|| String::from_utf8(field.to_vec()).ok()).flatten()
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// The databases that are files of a directory.
pub(super) struct Databases {
    etc: PathBuf,
}

impl Databases {
    pub(super) fn new(etc: PathBuf) -> Self {
        Self { etc }
    }

    /// Returns the services of the first of `databases` that nsswitch.conf contains, or else the files alone.
    pub(super) fn services(&self, databases: &[&str]) -> Result<Services, LookUpError> {
        let lines = self.lines("nsswitch.conf", |line| {
            let line = line.split(|&byte| byte == b'#').next()?;
            let (name, services) = std::str::from_utf8(line).ok()?.split_once(':')?;
            Some((name.trim().to_owned(), services_of(services)))
        })?;
        let of = |database: &&str| lines.iter().find(|(name, _)| name == database).map(|(_, found)| *found);
        Ok(databases.iter().find_map(of).unwrap_or(Services { files: true, others: false }))
    }

    pub(super) fn user(&self, uid: u32) -> Result<Option<User>, LookUpError> {
        Ok(self.lines("passwd", |line| User::parse(line, uid))?.into_iter().next())
    }

    pub(super) fn group_id(&self, name: &str) -> Result<Option<u32>, LookUpError> {
        let found = self.lines("group", |line| {
            let is_it = line.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b":"));
            is_it.then(|| id_of_group(line)).flatten()
        })?;
        Ok(found.into_iter().next())
    }

    /// Returns the groups that have this member.
    pub(super) fn groups_with(&self, member: &str) -> Result<Vec<u32>, LookUpError> {
        self.lines("group", |line| {
            let id = id_of_group(line)?;
            let members = line.split(|&byte| byte == b':').nth(3)?;
            members
                .split(|&byte| byte == b',')
                .any(|name| name.trim_ascii() == member.as_bytes())
                .then_some(id)
        })
    }

    pub(super) fn addresses_of(&self, host: &str) -> Result<Vec<IpAddr>, LookUpError> {
        self.lines("hosts", |line| {
            let line = std::str::from_utf8(line.split(|&byte| byte == b'#').next()?).ok()?;
            let mut words = line.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words.any(|name| name.eq_ignore_ascii_case(host)).then_some(address)
        })
    }

    /// Returns the results of `of` for the lines of a file. A missing file has none.
    fn lines<T>(&self, name: &str, of: impl Fn(&[u8]) -> Option<T>) -> Result<Vec<T>, LookUpError> {
        let path = self.etc.join(name);
        let read = || -> io::Result<Vec<T>> {
            let file = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                file => file?.take(FILE_BYTES_MAX),
            };
            let lines = BufReader::new(file).split(b'\n');
            lines.filter_map(|line| line.map(|line| of(&line)).transpose()).collect()
        };
        read().map_err(|error| LookUpError::File(path.clone(), error))
    }
}

/// Parses services, ignoring actions such as `[NOTFOUND=return]`.
fn services_of(line: &str) -> Services {
    let mut services = Services { files: false, others: false };
    let mut is_action = false;
    for word in line.split_whitespace() {
        is_action |= word.starts_with('[');
        match word {
            _ if is_action => is_action = !word.ends_with(']'),
            "files" => services.files = true,
            _ => services.others = true,
        }
    }
    services
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    fn databases(files: &[(&str, &str)]) -> (TempDir, Databases) {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            fs::write(dir.path().join(name), text).expect("write");
        }
        let databases = Databases::new(dir.path().to_owned());
        (dir, databases)
    }

    #[test]
    fn services_are_read_and_actions_are_none() {
        let conf = "# passwd: ldap\npasswd: files systemd\ngroup:files\nshadow:\tfiles\n\
                    netgroup: [ NOTFOUND=return ] files [!UNAVAIL = return]\nhosts: ldap # files\n";
        let (_dir, databases) = databases(&[("nsswitch.conf", conf)]);
        let of = |names: &[&str]| {
            let Services { files, others } = databases.services(names).expect("readable");
            (files, others)
        };
        assert_eq!(of(&["passwd"]), (true, true));
        assert_eq!(of(&["initgroups", "group"]), (true, false));
        assert_eq!(of(&["netgroup"]), (true, false));
        assert_eq!(of(&["hosts"]), (false, true));
        assert_eq!(of(&["none"]), (true, false));
    }

    #[test]
    fn lines_that_are_not_understood_are_passed_over() {
        let passwd =
            b"+::::::\n#0:x:0:0\nshort:x:7\nroot:x:0:0:root:/root:/bin/sh\n\xff:x:5:5::/:\nu:x:-1:x::/:";
        let group = "+:::\nstaff:x:50:ann, bob,\nbig:x:4294967295:bob\nstaff2:x:51:bobby\nlast:x:52:bob";
        let (dir, databases) = databases(&[("group", group)]);
        assert_eq!(databases.user(0).expect("no file"), None);
        fs::write(dir.path().join("passwd"), passwd).expect("write");
        assert_eq!(databases.user(0).expect("readable"), Some(User { name: "root".into(), group: 0 }));
        assert_eq!(databases.user(5).expect("readable"), None);
        assert_eq!(databases.group_id("staff").expect("readable"), Some(50));
        assert_eq!(databases.group_id("sta").expect("readable"), None);
        assert_eq!(databases.groups_with("bob").expect("readable"), [50, u32::MAX, 52]);
    }

    #[test]
    fn hosts_have_several_names_and_addresses() {
        let hosts = "127.0.0.1 localhost\n::1\tlocalhost ip6-localhost # comment\n10.0.0.7 nas.example NAS\n";
        let (_dir, databases) = databases(&[("hosts", hosts)]);
        let of = |name| {
            let found = databases.addresses_of(name).expect("readable");
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of("localhost"), ["127.0.0.1", "::1"]);
        assert_eq!(of("nas"), ["10.0.0.7"]);
        assert!(of("comment").is_empty());
    }
}
