//! What an image stands on, looked at without opening it.

use std::path::{Path, PathBuf};

use tombolo_core::block::{Geometry, OpenOptions};

use super::Qcow2Image;
use super::header::Header;
use super::opening::{CHAIN_MAX, Opener, Qcow2OpenError};
use crate::opening::size_of;

/// An image, or one that it stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainLink {
    /// Where it lies.
    pub path: PathBuf,
    /// `qcow2` or `raw`.
    pub format: &'static str,
    /// How long its disk is, in bytes.
    pub size_bytes: u64,
    /// The unit that room is taken in, in bytes, where it is a qcow2 image.
    pub cluster_bytes: Option<u64>,
    /// The other file that its data lie in, where it has one.
    pub data_file: Option<PathBuf>,
}

impl Qcow2Image {
    /// The image at `path` and those that it stands on, from the top down, and why there are no more where
    /// something is wrong with them. Nothing is locked. The rules of [`Qcow2Image::open`] hold for what may
    /// be named.
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
        let data_file = header.data_file.as_deref().map(|name| opener.place(&path, name)).transpose()?;
        links.push(ChainLink {
            path: path.clone(),
            format,
            size_bytes: header.size_bytes,
            cluster_bytes: Some(header.cluster_bytes()),
            data_file,
        });
        if let Some(name) = &header.backing_file {
            let place = opener.place(&path, name)?;
            let format = opener.format(&path, &place, header.backing_format.as_deref())?;
            next = Some((place, format));
        }
    }
    Ok(())
}
