//! What tells one version of a disk from another, so that what was copied of one is not taken for a part of
//! another.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use libtombolo::{Last, block_on};
use tombolo_core::block::BlockDevice;
use tombolo_core::fs::{Attr, Create, Exclusive, Mode, NewMode, OpenFlags, SetAttr};

use crate::assembly::plan::disk::DiskSource;
use crate::commands::files::open_path::{Opener, attr_of};
use crate::failure::{Failure, Outcome};
use crate::location::{End, Location};

/// Of a source: it is another one as soon as anything in it has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub text: String,
    /// Whether it really tells. Of block devices and NBD servers nothing but the length is known.
    pub tells: bool,
}

impl Version {
    pub fn of(source: &DiskSource, disk: &dyn BlockDevice) -> Result<Self, Failure> {
        let looking = |error| Failure::cannot(format_args!("look at {source}"), &error);
        let mut version =
            Self { text: format!("{} {}", source.format(), disk.geometry().size_bytes), tells: true };
        for layer in source.layers()? {
            match &layer.source {
                DiskSource::Nbd(_) => version.tells = false,
                source if source.location().is_some() => {
                    source.location().map_or(Ok(()), |location| version.add_file_of_server(location))?;
                }
                _ => layer.files().try_for_each(|path| version.add(path)).map_err(looking)?,
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

/// Whether two names of files of servers lead to one. The time tells apart those of two servers that number
/// alike.
pub fn is_one_file(one: &DiskSource, other: &DiskSource) -> bool {
    let (DiskSource::File(one), DiskSource::File(other)) = (one, other) else { return false };
    let known = |location| attr_of(location).map(|Attr { fsid, fileid, ctime, .. }| (fsid, fileid, ctime));
    // One that is not there is none.
    known(other).is_ok_and(|other| known(one).is_ok_and(|one| one == other))
}

/// What tells a copy from another that has its name later, or is in another format, whatever is in it.
pub fn of_copy(source: &DiskSource) -> Result<String, Failure> {
    if let Some(location) = source.location() {
        let Attr { fsid, fileid, .. } = attr_of(location)?;
        return Ok(format!("{fsid}:{fileid}"));
    }
    match source.file() {
        None => Ok(String::new()),
        Some(path) => {
            let it = fs::metadata(path)
                .map_err(|error| Failure::cannot(format_args!("look at {}", path.display()), &error))?;
            // Numbers of files that were removed are given again, times of birth are not.
            let born = it.created().ok().and_then(|born| born.duration_since(std::time::UNIX_EPOCH).ok());
            let (format, born) = (source.format(), born.unwrap_or_default());
            Ok(format!("{format} {}:{}:{}:{born:?}", it.dev(), it.ino(), it.rdev()))
        }
    }
}

/// How long the file is, if there is one.
pub fn len_of(location: &Location) -> Result<Option<u64>, Failure> {
    let place = Opener::new().open(location, End::Target)?;
    match place.find(Last::Follow) {
        Ok(node) => node
            .attr_now()
            .wait()
            .map(|attr| Some(attr.size))
            .map_err(|error| place.cannot("look at", &error)),
        Err(tombolo_core::Error::NotFound) => Ok(None),
        Err(error) => Err(place.cannot("look at", &error)),
    }
}

/// Makes a file of this length, all of it a hole. There must be none, unless `is_there`: that becomes one.
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
    made.map_err(|error| place.cannot("make", &error))
}
