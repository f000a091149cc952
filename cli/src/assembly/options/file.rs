//! Configuration file: TOML with the names of the command line.

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error};
use tombolo_host_links::shared_memory::MemoryLocation;

use super::ServerOptions;
use super::bell::BellArg;
use super::virtiofs::VirtioFsSocket;
use crate::assembly::plan::tree::Tree;
use crate::failure::{Failure, OrCannot};

impl ServerOptions {
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let reading = format!("read the configuration {}", path.display());
        let text = fs::read_to_string(path).or_cannot(&reading)?;
        let mut options =
            parse(&text).map_err(|reason| Failure::usage(format!("cannot {reading}: {reason}")))?;
        options.count_from(path.parent().unwrap_or(Path::new("")));
        Ok(options)
    }

    /// Resolves relative paths against `base`: the directory of the configuration file, or the working
    /// directory of the command that created a session.
    pub fn count_from(&mut self, base: &Path) {
        // Locations such as `shm:` are not plain paths.
        let dirs = self.dir.iter_mut().map(|arg| &mut arg.dir).filter(|dir| !Tree::is_location(dir));
        let sockets = self.virtiofs.iter_mut().filter_map(|arg| match &mut arg.socket {
            VirtioFsSocket::Path(path) => Some(path),
            VirtioFsSocket::Inherited(_) => None,
        });
        let (places, bells): (Vec<_>, Vec<_>) =
            self.shm_file.iter_mut().map(|arg| (&mut arg.place, &mut arg.bell)).unzip();
        let files = places.into_iter().filter_map(|place| match place {
            MemoryLocation::File(path) => Some(path),
            MemoryLocation::Pci(_) | MemoryLocation::Mmapper(_) => None,
        });
        let bells =
            bells.into_iter().filter_map(|bell| if let BellArg::At(path) = bell { Some(path) } else { None });
        let paths = dirs.chain(sockets).chain(files).chain(bells);
        let paths = paths.chain(self.shm.iter_mut().map(|arg| &mut arg.socket));
        let paths = paths.chain(self.fuse.iter_mut().map(|arg| &mut arg.mountpoint));
        let paths = paths.chain(&mut self.control).chain(&mut self.state).chain(&mut self.shm_policy);
        for path in paths.chain(&mut self.tls_dir).chain(&mut self.tls_users) {
            *path = base.join(&path);
        }
        self.disk.iter_mut().for_each(|disk| disk.count_from(base));
    }
}

fn parse(text: &str) -> Result<ServerOptions, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        format!("line {line}: {}", error.message())
    })
}

/// A string of the configuration file, parsed like the same word on the command line.
struct Word<T>(T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(Error::custom)
    }
}

pub fn list<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let words = Vec::<Word<T>>::deserialize(deserializer)?;
    Ok(words.into_iter().map(|Word(value)| value).collect())
}

pub fn one<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Word::deserialize(deserializer).map(|Word(value)| Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembly::options::coherence::Coherence;
    use crate::assembly::options::doorbell::Doorbell;

    #[test]
    fn file_keys_match_command_line_options() {
        let options = parse(
            "dir = ['/srv/src=/src', 'docs']\nvirtiofs = ['vm.sock,tag=t,export=/src']\nread-only = true\n\
             coherence = 'strict'\nmetrics = ':9464'\nshm = ['a.sock,export=/src']\ndoorbell = 'event'\n\
             socket-mode = '0660'\nallow = ['10.0.0.0/8']\n",
        )
        .expect("good");
        assert_eq!(options.dir[1].dir, Path::new("docs"));
        assert_eq!(options.virtiofs[0].tag, "t");
        assert_eq!((options.read_only, options.coherence), (Some(true), Some(Coherence::Strict)));
        assert_eq!((options.shm.len(), options.doorbell), (1, Some(Doorbell::Event)));
        assert_eq!((options.socket_mode.map(|mode| mode.0), options.allow.len()), (Some(0o660), 1));
        assert_eq!(options.metrics.expect("an address").to_string(), "0.0.0.0:9464");
    }

    #[test]
    fn command_line_overrides_configuration_file() {
        let below = parse("dir = ['a']\nvirtiofs = ['x.sock']\nreadonly = true\nanonuid = 7").expect("good");
        let mut above = ServerOptions { read_only: Some(false), ..ServerOptions::default() };
        above.fd.push(super::super::virtiofs::VirtioFsArg::inherited("3").expect("good"));
        let options = above.over(below);
        assert_eq!((options.read_only, options.anonuid, options.dir.len()), (Some(false), Some(7), 1));
        assert_eq!(options.virtiofs.len(), 1);
        assert_eq!(options.virtiofs[0].socket, VirtioFsSocket::Inherited(3));
    }

    #[test]
    fn configuration_errors_name_the_line() {
        let mistake = |text| parse(text).expect_err("a mistake");
        assert!(mistake("read-only = true\nsocket = 'x'").starts_with("line 2: unknown field `socket`"));
        assert_eq!(
            mistake("virtiofs = [\n's,tug=x']"),
            "line 1: \"tug=x\" is none of tag=TAG, export=/NAME, queues=N"
        );
        assert!(mistake("\n\ncoherence = 'sometimes'").starts_with("line 3"));
        assert!(mistake("\nsocket-mode = '9'").starts_with("line 2: \"9\" is not a mode"));
        assert!(mistake("fd = ['3']").starts_with("line 1: unknown field `fd`"));
    }

    #[test]
    fn disk_table_matches_options_and_errors_name_key() {
        let mut options = parse(
            "[[disk]]\nfile = 'vm.img'\nvhost-user = ['vm.sock']\nqueues = 4\nblock-size = '4K'\nserial = 'root'\n\
             [[disk]]\nfile = 'nbd://ship/vm'\nname = 'far'\nnbd = ['./s', '10809']\nread-only = true\nblock-size = 512\n",
        )
        .expect("good");
        options.count_from(Path::new("/srv"));
        let [first, second] = &options.disk[..] else { panic!("{:?}", options.disk) };
        assert_eq!(first.file, Path::new("/srv/vm.img"));
        assert_eq!(first.vhost_user, [Path::new("/srv/vm.sock")]);
        assert_eq!((first.queues, first.block_size, first.read_only), (4, 4096, false));
        assert_eq!((second.queues, second.block_size, second.read_only), (1, 512, true));
        assert_eq!(second.file, Path::new("nbd://ship/vm"));
        assert_eq!(second.nbd[0], "/srv/./s".parse().expect("good"));

        let mistake =
            |text: &str| parse(&format!("[[disk]]\nfile = 'vm.img'\n{text}\n")).expect_err("a mistake");
        for (text, wanted) in [
            ("serial = 'a b'", "line 3: serial: 1 to 20 visible"),
            ("queues = 65", "line 3: queues: a number from 1 to 64"),
            ("block-size = '3K'", "line 3: block-size: a power of two"),
            ("block-size = true", "line 3: block-size: neither a string nor a number"),
            ("name = 'a/b'", "line 3: name: "),
            ("format = 'vmdk'", "line 3: unknown variant `vmdk`"),
            ("keep = true", "line 3: unknown field `keep`"),
            ("nbd = ['x']", "line 3: \"x\" is neither an address"),
        ] {
            assert!(mistake(text).starts_with(wanted), "{}", mistake(text));
        }
        assert!(parse("[[disk]]\nserial = 'x'").expect_err("no file").contains("missing field `file`"));
    }
}
