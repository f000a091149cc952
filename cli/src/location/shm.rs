//! Exports over shared memory: of a server on this host, at a socket (`shm:SOCKET/NAME`), or across memory
//! shared between a guest and its host or between guests (`shm+file:FILE/NAME`, `shm+pci:[BDF]/NAME`,
//! `shm+mmapper:/NAME`).
//!
//! The file system determines where the path of a socket or file ends and the export's name begins: nothing
//! lies below a socket or a file.

use std::fmt;
use std::fs::{self, FileType};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{PathBuf, absolute};

use tombolo_host_links::shared_memory::MemoryLocation;

use crate::failure::Reason;

/// Location over shared memory: the endpoint of a server and the name of an export, as one path. Commands
/// that take a file accept a path within the export after that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmLocation {
    scheme: Scheme,
    path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Socket,
    File,
    Pci,
    Mmapper,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmParts {
    pub at: ShmEndpoint,
    /// Export's name, and perhaps a path in the export: `/` and components.
    pub rest: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShmEndpoint {
    Socket(PathBuf),
    Memory(MemoryLocation),
}

/// Reason that a path contains no socket or file of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReachable {
    /// `true` if a server may still create the socket or file.
    pub is_transient: bool,
    pub reason: String,
    /// `true` if the location requires a file (`shm+file:`), not a socket.
    pub file: bool,
}

/// UML's device of shared memory.
const MMAPPER: &str = "/dev/mmapper";

impl ShmLocation {
    /// Returns `true` if the word before the `:` is a scheme of such locations.
    pub fn is_scheme(word: &str) -> bool {
        Scheme::of(word).is_some()
    }

    /// Parses `text`, which followed `scheme:`.
    pub fn new(scheme: &str, text: &str) -> Result<Self, String> {
        let kind = Scheme::of(scheme).ok_or_else(|| format!("unknown scheme {scheme}:"))?;
        let fits = match (kind, text.split_once('/')) {
            (_, None) => false,
            (Scheme::Socket | Scheme::File, Some(_)) => text.rfind('/') != Some(0),
            (Scheme::Pci, Some(_)) => true,
            (Scheme::Mmapper, Some((front, _))) => front.is_empty(),
        };
        if fits {
            Ok(Self { scheme: kind, path: text.into() })
        } else {
            Err(format!("{scheme}:{text}: the name is missing: write {}", kind.usage()))
        }
    }

    pub fn append(&mut self, name: &str) {
        if !self.path.ends_with('/') {
            self.path.push('/');
        }
        self.path.push_str(name);
    }

    /// Returns the location with the path of its socket or file made absolute.
    pub fn absolute(&self) -> io::Result<Self> {
        if matches!(self.scheme, Scheme::Pci | Scheme::Mmapper) {
            return Ok(self.clone());
        }
        let path = absolute(&self.path)?.into_os_string().into_string();
        let path = path.map_err(|_| io::Error::from(io::ErrorKind::InvalidFilename))?;
        Ok(Self { scheme: self.scheme, path })
    }

    /// Returns the last component, unless it is `.` or `..`.
    pub fn name(&self) -> Option<&str> {
        let names = self.path.rsplit('/');
        names.into_iter().find(|name| !name.is_empty()).filter(|name| !matches!(*name, "." | ".."))
    }

    /// Returns `true` if the endpoint is a socket, and not memory.
    pub fn is_at_socket(&self) -> bool {
        self.scheme == Scheme::Socket
    }

    /// Splits the location into endpoint and remainder.
    pub fn parts(&self) -> Result<ShmParts, NotReachable> {
        let at_first = |at: fn(&str) -> MemoryLocation| {
            let (front, rest) = self.path.split_at(self.path.find('/').unwrap_or(self.path.len()));
            ShmParts { at: ShmEndpoint::Memory(at(front)), rest: name_of(rest) }
        };
        match self.scheme {
            Scheme::Socket => {
                let (path, rest) = self.split("socket", FileTypeExt::is_socket)?;
                Ok(ShmParts { at: ShmEndpoint::Socket(path), rest })
            }
            Scheme::File => {
                let (path, rest) = self.split("file", FileType::is_file)?;
                Ok(ShmParts { at: ShmEndpoint::Memory(MemoryLocation::File(path)), rest })
            }
            Scheme::Pci => Ok(at_first(|bdf| MemoryLocation::Pci((!bdf.is_empty()).then(|| bdf.to_owned())))),
            Scheme::Mmapper => Ok(at_first(|_| MemoryLocation::Mmapper(MMAPPER.into()))),
        }
    }

    /// Splits the path after the first component of the wanted file type.
    fn split(&self, kind: &str, fits: fn(&FileType) -> bool) -> Result<(PathBuf, String), NotReachable> {
        let file = self.scheme == Scheme::File;
        let lasting = |reason: String| NotReachable { is_transient: false, reason, file };
        let transient = |reason: String| NotReachable { is_transient: true, reason, file };
        for end in self.path.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0) {
            let (front, rest) = self.path.split_at(end);
            match fs::metadata(front) {
                Ok(metadata) if metadata.is_dir() => {}
                Ok(metadata) if fits(&metadata.file_type()) => return Ok((front.into(), name_of(rest))),
                Ok(_) => return Err(lasting(format!("{front} is not a {kind}"))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(transient(format!("no such {kind}: {front}")));
                }
                Err(error) => {
                    return Err(lasting(format!("{front}: {}", String::from(Reason::from(&error)))));
                }
            }
        }
        if fs::metadata(&self.path).is_ok_and(|metadata| fits(&metadata.file_type())) {
            let usage = self.scheme.usage();
            return Err(lasting(format!(
                "{}: the name of an export is missing after the {kind}: write {usage}",
                self.path
            )));
        }
        Err(transient(format!("the path has no {kind}, only directories")))
    }
}

/// Normalizes the text behind an endpoint to `/` and components, without a slash at the end.
fn name_of(rest: &str) -> String {
    format!("/{}", rest.trim_matches('/'))
}

impl Scheme {
    fn of(word: &str) -> Option<Self> {
        [Self::Socket, Self::File, Self::Pci, Self::Mmapper].into_iter().find(|scheme| scheme.word() == word)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Socket => "shm",
            Self::File => "shm+file",
            Self::Pci => "shm+pci",
            Self::Mmapper => "shm+mmapper",
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Self::Socket => "shm:SOCKET/NAME",
            Self::File => "shm+file:FILE/NAME",
            Self::Pci => "shm+pci:[BDF]/NAME",
            Self::Mmapper => "shm+mmapper:/NAME",
        }
    }
}

impl fmt::Display for ShmLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scheme.word(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_socket_ends_where_nothing_can_lie_below() {
        let top = tempfile::tempdir().expect("a directory");
        let _listener = UnixListener::bind(top.path().join("s")).expect("a socket");
        fs::create_dir(top.path().join("dir")).expect("made");
        fs::write(top.path().join("plain"), "x").expect("made");
        let top = top.path().to_str().expect("a path in UTF-8");
        let parts = |scheme: &str, rest: &str| {
            ShmLocation::new(scheme, &format!("{top}/{rest}")).expect(rest).parts()
        };
        for (written, rest) in [("s/src", "/src"), ("s//a/b/", "/a/b"), ("s/", "/"), ("dir/../s/x", "/x")] {
            let parts = parts("shm", written).expect(written);
            assert!(matches!(&parts.at, ShmEndpoint::Socket(path) if path.ends_with("s")), "{parts:?}");
            assert_eq!(parts.rest, rest, "{written}");
        }
        let away = |scheme: &str, rest: &str| parts(scheme, rest).map_err(|no| no.is_transient);
        assert_eq!(away("shm", "none/src"), Err(true));
        assert_eq!(away("shm", "dir/src"), Err(true));
        assert_eq!(away("shm", "plain/src"), Err(false));
        for (scheme, rest) in [("shm", "s"), ("shm", "dir/../s"), ("shm+file", "plain")] {
            let why = parts(scheme, rest).expect_err(rest);
            assert!(!why.is_transient && why.reason.contains("the name of an export is missing"), "{why:?}");
        }
        assert!(parts("shm", "plain").expect_err("a file").reason.contains("no socket"));
        assert_eq!(away("shm+file", "s/src"), Err(false));
        assert_eq!(parts("shm+file", "plain/src").expect("a file").rest, "/src");
    }

    #[test]
    fn devices_are_named_before_the_slash() {
        let at = |scheme: &str, text: &str| {
            let parts = ShmLocation::new(scheme, text).expect(text).parts().expect(text);
            (parts.at, parts.rest)
        };
        let pci = |bdf: Option<&str>| ShmEndpoint::Memory(MemoryLocation::Pci(bdf.map(Into::into)));
        assert_eq!(at("shm+pci", "/src"), (pci(None), "/src".into()));
        assert_eq!(at("shm+pci", "00:03.0/a/b"), (pci(Some("00:03.0")), "/a/b".into()));
        let mmapper = ShmEndpoint::Memory(MemoryLocation::Mmapper("/dev/mmapper".into()));
        assert_eq!(at("shm+mmapper", "/"), (mmapper, "/".into()));
    }

    #[test]
    fn a_place_has_a_meeting_point_and_a_name() {
        for (scheme, text) in [
            ("shm", ""),
            ("shm", "x"),
            ("shm", "/x"),
            ("shm+file", "x"),
            ("shm+pci", "00:03.0"),
            ("shm+mmapper", "x/y"),
        ] {
            let mistake = ShmLocation::new(scheme, text).expect_err(text);
            assert!(mistake.contains(&format!("write {scheme}:")), "{mistake}");
        }
        assert!(ShmLocation::new("shm+usb", "/x").is_err());
        let place = ShmLocation::new("shm", "s/src/y/").expect("good");
        assert_eq!((place.name(), place.to_string().as_str()), (Some("y"), "shm:s/src/y/"));
        assert!(place.absolute().expect("a directory to start from").path.starts_with('/'));
        let device = ShmLocation::new("shm+pci", "/src").expect("good");
        assert_eq!(device.absolute().expect("as it is"), device);
    }
}
