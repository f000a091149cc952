//! Layers of a disk's content.

use std::path::{Path, PathBuf};

use tombolo_back_image_file::{ChainLink, Qcow2Image};

use super::disk::DiskSource;
use crate::assembly::options::disk::HostCache;
use crate::failure::Failure;

/// A layer of a disk: the disk itself, or a disk below it.
pub struct Layer {
    /// Source of the layer as a disk of its own.
    pub source: DiskSource,
    /// Size of the layer's disk in bytes, if the disk has several layers or is a qcow2 image.
    pub size_bytes: Option<u64>,
    /// Allocation unit of a qcow2 image, in bytes.
    pub cluster_bytes: Option<u64>,
    /// External data file, if any.
    pub data_file: Option<PathBuf>,
}

impl Layer {
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.source.file().into_iter().chain(self.data_file.as_deref())
    }

    fn of_link(link: ChainLink, backing_dir: Option<&Path>) -> Self {
        let ChainLink { path, format, size_bytes, cluster_bytes, data_file } = link;
        let source = match format {
            "qcow2" => DiskSource::Qcow2 { path, backing_dir: backing_dir.map(Path::to_owned) },
            _ => DiskSource::Raw { path, cache: HostCache::Host },
        };
        Self { source, size_bytes: Some(size_bytes), cluster_bytes, data_file }
    }
}

impl DiskSource {
    /// Returns the disk and all layers below it, from the top down. Takes no locks.
    pub fn layers(&self) -> Result<Vec<Layer>, Failure> {
        let alone =
            |size_bytes| Layer { source: self.clone(), size_bytes, cluster_bytes: None, data_file: None };
        match self {
            Self::Qcow2 { path, backing_dir } => match Qcow2Image::chain(path, backing_dir.as_deref()) {
                (_, Some(fault)) => Err(Failure::cannot("use a disk", &fault)),
                (links, None) => {
                    let layer = |link| Layer::of_link(link, backing_dir.as_deref());
                    Ok(links.into_iter().map(layer).collect())
                }
            },
            Self::Overlay(overlay) => {
                let header = overlay.header()?;
                let mut layers = vec![alone(Some(header.size_bytes))];
                layers.extend(overlay.base()?.layers()?);
                if let Some(base) = layers.get_mut(1) {
                    base.size_bytes.get_or_insert(header.base_bytes);
                }
                Ok(layers)
            }
            Self::Raw { .. } | Self::Nbd(_) | Self::File(_) => Ok(vec![alone(None)]),
        }
    }
}
