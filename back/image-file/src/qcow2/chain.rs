//! Description of an image's backing chain, without opening the disk.

use std::path::{Path, PathBuf};

use tombolo_core::block::{Geometry, OpenOptions};

use super::Qcow2Image;
use super::header::Header;
use super::opening::{CHAIN_MAX, Opener, Qcow2OpenError};
use crate::opening::size_of;

/// An image, or one of its backing files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainLink {
    /// Path of the file.
    pub path: PathBuf,
    /// `qcow2` or `raw`.
    pub format: &'static str,
    /// Size of the disk, in bytes.
    pub size_bytes: u64,
    /// Allocation unit in bytes, of a qcow2 image.
    pub cluster_bytes: Option<u64>,
    /// External data file, if there is one.
    pub data_file: Option<PathBuf>,
}

impl Qcow2Image {
    /// Returns the image at `path` and its backing files, from the top down, and the error that ended the
    /// chain, if any. Nothing is locked. Backing files are restricted as in [`Qcow2Image::open`].
    pub fn chain(path: &Path, backing_dir: Option<&Path>) -> (Vec<ChainLink>, Option<Qcow2OpenError>) {
        let mut links = Vec::new();
        let walked = Opener::new(path, backing_dir, &OpenOptions { locks: false, ..OpenOptions::default() })
            .and_then(|(opener, path)| walk(&opener, path, &mut links));
        (links, walked.err())
    }
}

fn walk(opener: &Opener, top: PathBuf, links: &mut Vec<ChainLink>) -> Result<(), Qcow2OpenError> {
    let mut next = Some((top, "qcow2"));
    while let Some((path, format)) = next.take() {
        if links.len() > CHAIN_MAX || links.iter().any(|link| link.path == path) {
            return Err(Qcow2OpenError::Chain { path });
        }
        let file = opener.file(&path, false)?;
        if format == "raw" {
            let found =
                size_of(&file).map_err(|source| Qcow2OpenError::Open { path: path.clone(), source })?;
            let size_bytes = Geometry::of_file(found).size_bytes;
            links.push(ChainLink { path, format, size_bytes, cluster_bytes: None, data_file: None });
            return Ok(());
        }
        let header = Header::read(&file).map_err(|error| Qcow2OpenError::of_header(&path, error))?;
        let data_file = header.data_file.as_deref().map(|name| opener.resolve(&path, name)).transpose()?;
        links.push(ChainLink {
            path: path.clone(),
            format,
            size_bytes: header.size_bytes,
            cluster_bytes: Some(header.cluster_bytes()),
            data_file,
        });
        if let Some(name) = &header.backing_file {
            let place = opener.resolve(&path, name)?;
            let format = opener.format(&path, &place, header.backing_format.as_deref())?;
            next = Some((place, format));
        }
    }
    Ok(())
}
