//! Identities of the source and the copy of a conversion: `--resume` starts over if one of them has changed.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use libtombolo::{Last, block_on};
use tombolo_core::block::BlockDevice;
use tombolo_core::fs::{Attr, Create, Exclusive, Mode, NewMode, OpenFlags, SetAttr};

use crate::assembly::plan::disk::DiskSource;
use crate::commands::files::open_path::{Opener, attr_of};
use crate::failure::{Failure, OrCannot, Outcome};
use crate::location::{End, Location};

/// Version of a source: a text that any detectable change alters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub text: String,
    /// `true` if changes are detected. For block devices and NBD servers only the length is known.
    pub tells: bool,
}

impl Version {
    pub fn of(source: &DiskSource, disk: &dyn BlockDevice) -> Result<Self, Failure> {
        let mut version =
            Self { text: format!("{} {}", source.format(), disk.geometry().size_bytes), tells: true };
        for layer in source.layers()? {
            match &layer.source {
                DiskSource::Nbd(_) => version.tells = false,
                source if source.location().is_some() => {
                    source.location().map_or(Ok(()), |location| version.add_file_of_server(location))?;
                }
                _ => layer
                    .files()
                    .try_for_each(|path| version.add(path))
                    .or_cannot(format_args!("get attributes of {source}"))?,
            }
        }
        Ok(version)
    }

    fn add_file_of_server(&mut self, location: &Location) -> Outcome {
        let Attr { fsid, fileid, size, mtime, ctime, .. } = attr_of(location)?;
        self.text +=
            &format!(" {fsid}:{fileid}:{size}:{}.{}:{}.{}", mtime.secs, mtime.nanos, ctime.secs, ctime.nanos);
        Ok(())
    }

    fn add(&mut self, path: &Path) -> std::io::Result<()> {
        let it = fs::metadata(path)?;
        if it.file_type().is_block_device() {
            self.text += &format!(" {}", it.rdev());
            self.tells = false;
            return Ok(());
        }
        self.text += &format!(
            " {}:{}:{}:{}.{}:{}.{}",
            it.dev(),
            it.ino(),
            it.size(),
            it.mtime(),
            it.mtime_nsec(),
            it.ctime(),
            it.ctime_nsec()
        );
        Ok(())
    }
}

/// Returns `true` if two remote names refer to the same file, or disk of an NBD server, whatever the
/// certificates. The time distinguishes files with equal numbers on two servers.
pub fn is_one_file(one: &DiskSource, other: &DiskSource) -> bool {
    if let (DiskSource::Nbd(one), DiskSource::Nbd(other)) = (one, other) {
        return (&one.server, &one.export) == (&other.server, &other.export);
    }
    let (DiskSource::File(one), DiskSource::File(other)) = (one, other) else { return false };
    let known = |location| attr_of(location).map(|Attr { fsid, fileid, ctime, .. }| (fsid, fileid, ctime));
    // A nonexistent file equals no other.
    known(other).is_ok_and(|other| known(one).is_ok_and(|one| one == other))
}

/// Returns an identifier of a copy. For a local file it includes the format and, if the file system records
/// it, the birth time, so that it differs from that of a later file of the same name. Empty for a disk of an
/// NBD server.
pub fn of_copy(source: &DiskSource) -> Result<String, Failure> {
    if let Some(location) = source.location() {
        let Attr { fsid, fileid, .. } = attr_of(location)?;
        return Ok(format!("{fsid}:{fileid}"));
    }
    match source.file() {
        None => Ok(String::new()),
        Some(path) => {
            let it = fs::metadata(path).or_cannot(format_args!("get attributes of {}", path.display()))?;
            // Inode numbers are reused; birth times are not.
            let born = it.created().ok().and_then(|born| born.duration_since(std::time::UNIX_EPOCH).ok());
            let (format, born) = (source.format(), born.unwrap_or_default());
            Ok(format!("{format} {}:{}:{}:{born:?}", it.dev(), it.ino(), it.rdev()))
        }
    }
}

/// Returns the length of the file, if it exists.
pub fn len_of(location: &Location) -> Result<Option<u64>, Failure> {
    let place = Opener::new().open(location, End::Target)?;
    match place.find(Last::Follow) {
        Ok(node) => node
            .attr_now()
            .wait()
            .map(|attr| Some(attr.size))
            .map_err(|error| place.cannot("get attributes of", &error)),
        Err(tombolo_core::Error::NotFound) => Ok(None),
        Err(error) => Err(place.cannot("get attributes of", &error)),
    }
}

/// Creates a sparse file of this length. It must not exist, unless `is_there`: then it is truncated.
pub fn make(location: &Location, size_bytes: u64, mode: Mode, is_there: bool) -> Result<(), Failure> {
    let place = Opener::new().open(location, End::Target)?;
    let made = block_on(async {
        let (dir, name) = place.tree.find_target(&place.path).await?;
        let how = Create {
            mode: NewMode { mode, umask: place.tree.umask() },
            flags: OpenFlags::READ | OpenFlags::WRITE,
            exclusive: if is_there { Exclusive::No } else { Exclusive::Yes },
        };
        let file = dir.create(name.as_name(), how).await?;
        for size in [0, size_bytes] {
            file.set_attr(&SetAttr { size: Some(size), ..SetAttr::default() }).resolve().await?;
        }
        Ok(())
    });
    made.map_err(|error| place.cannot("create", &error))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::assembly::options::disk::ImageOptions;

    #[test]
    fn certificates_do_not_distinguish_disks() {
        let disk = |url| DiskSource::of_word(Path::new(url), &ImageOptions::default()).expect("good");
        let one = disk("nbds://ship/disk?tlsdir=a");
        assert!(is_one_file(&one, &disk("nbds://ship:10809/disk?tlsdir=b")));
        assert!(!is_one_file(&one, &disk("nbds://ship/other?tlsdir=a")));
    }
}
