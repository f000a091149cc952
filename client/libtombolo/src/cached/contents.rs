//! Cached contents of files, links and directories.

use std::sync::Arc;

use tombolo_core::fs::{FileType, NameBuf, NodeId, OpenFlags, Version};
use tombolo_core::{Error, Result};
use tombolo_mem::Buffer;

use super::table::Weighed;
use super::walk::{Names, Resolved};
use super::{Cache, CachedNode};
use crate::file::File;
use crate::path::Last;

/// An entry of a directory; never `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Name of the entry.
    pub name: NameBuf,
    /// Type of the entry, if the directory reports it.
    pub file_type: Option<FileType>,
    /// File number of the entry.
    pub fileid: u64,
}

impl Listed {
    /// Returns the approximate size of the entry in memory, in bytes.
    fn size_bytes(&self) -> u64 {
        (size_of::<Self>() + self.name.as_name().as_bytes().len()) as u64
    }
}

/// Contents of a node, valid for one version.
pub(super) struct Remembered {
    /// Keeps the node referenced: its number is the key in the table and must not go to another node.
    _known: Arc<CachedNode>,
    version: Version,
    contents: Contents,
}

/// Whole contents of a file, a symbolic link or a directory.
#[derive(Clone)]
pub(super) enum Contents {
    Data(Arc<[u8]>),
    Target(Arc<[u8]>),
    Listing(Arc<[Listed]>),
}

impl Remembered {
    /// Approximate memory overhead of an entry, in bytes.
    pub const OWN_BYTES: u64 = 512;
}

impl Weighed for Arc<Remembered> {
    fn weight(&self) -> u64 {
        let bytes = match &self.contents {
            Contents::Data(bytes) | Contents::Target(bytes) => bytes.len() as u64,
            Contents::Listing(entries) => entries.iter().map(Listed::size_bytes).sum(),
        };
        bytes + Remembered::OWN_BYTES
    }
}

impl Cache {
    /// Returns the cached contents of the node at the end of a path, or the cached [`Error::NotFound`];
    /// `None` if nothing is cached or it is no longer valid.
    #[inline]
    pub(super) fn believed_contents(&self, path: &[u8], last: Last) -> Option<Result<Contents>> {
        let place = self.believed(path, last)?;
        let contents = match place.found() {
            Ok(end) => Ok(self.contents_of(end.known.id(), end.version)?),
            Err(error) => Err(error),
        };
        self.counters.answered();
        Some(contents)
    }

    /// Returns the contents of a node, if cached for this version.
    #[inline]
    pub(super) fn contents_of(&self, node: NodeId, version: Version) -> Option<Contents> {
        let remembered = self.contents.get(node.0, &[])?;
        (remembered.version == version).then(|| remembered.contents.clone())
    }

    /// Caches contents that were requested after `version` was read from the server's change counters.
    fn remember_contents(&self, known: &Arc<CachedNode>, version: Option<Version>, contents: Contents) {
        // An outdated version is useless; often the read itself outdated it by setting the access time.
        if let Some(version) = version.filter(|version| self.holds(*version)) {
            let remembered = Remembered { _known: Arc::clone(known), version, contents };
            self.contents.insert(known.id().0, &[], Arc::new(remembered));
        }
    }

    /// Returns the bytes of a file; `None` if it is larger than the options allow.
    pub(super) async fn read(&self, path: &[u8], names: Names) -> Result<Option<Arc<[u8]>>> {
        let Resolved { known, attr, version } = self.find(path, Last::Follow, names).await?;
        match attr.file_type {
            FileType::Regular if attr.size > self.options.file_bytes_max => return Ok(None),
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::InvalidArgument),
        }
        if let Some(Contents::Data(bytes)) = version.and_then(|version| self.contents_of(known.id(), version))
        {
            return Ok(Some(bytes));
        }
        self.counters.request();
        let file = known.node.open(OpenFlags::READ).await?;
        let mut bytes = self.read_up_to(&file, attr.size).await?;
        if bytes.is_none() {
            // The file has grown, or does not report its size.
            bytes = self.read_up_to(&file, self.options.file_bytes_max).await?;
        }
        if let Some(bytes) = &bytes {
            self.remember_contents(&known, version, Contents::Data(Arc::clone(bytes)));
        }
        Ok(bytes)
    }

    /// Reads the whole file; `None` if it is larger than `size_max`.
    async fn read_up_to(&self, file: &File, size_max: u64) -> Result<Option<Arc<[u8]>>> {
        let size_max = usize::try_from(size_max).map_err(|_| Error::NoMemory)?;
        let mut buffer = Buffer::new(size_max.checked_add(1).ok_or(Error::NoMemory)?);
        let count = file.read_at(0, buffer.sink(0..buffer.len())).resolve().await?.count;
        if count > size_max {
            return Ok(None);
        }
        Ok(Some(match buffer.as_slice().and_then(|bytes| bytes.get(..count)) {
            Some(bytes) => bytes.into(),
            // The file system still refers to the memory.
            None => buffer.source(0..count).to_vec(count).into(),
        }))
    }

    pub(super) async fn read_link(&self, path: &[u8], names: Names) -> Result<Arc<[u8]>> {
        let Resolved { known, attr, version } = self.find(path, Last::Keep, names).await?;
        if attr.file_type != FileType::Symlink {
            return Err(Error::InvalidArgument);
        }
        match version.and_then(|version| self.contents_of(known.id(), version)) {
            Some(Contents::Target(target)) => Ok(target),
            _ => self.target(&known, version).await,
        }
    }

    /// Requests the target of a link, and caches it with `version`, the link's version before this request.
    pub(super) async fn target(&self, link: &Arc<CachedNode>, version: Option<Version>) -> Result<Arc<[u8]>> {
        self.counters.request();
        let target: Arc<[u8]> = link.node.read_link().resolve().await?.into();
        self.remember_contents(link, version, Contents::Target(Arc::clone(&target)));
        Ok(target)
    }

    pub(super) async fn list(&self, path: &[u8], names: Names) -> Result<Arc<[Listed]>> {
        let Resolved { known, attr, version } = self.find(path, Last::Follow, names).await?;
        if attr.file_type != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        if let Some(Contents::Listing(entries)) =
            version.and_then(|version| self.contents_of(known.id(), version))
        {
            return Ok(entries);
        }
        self.counters.request();
        let mut listing = known.node.list(false).await?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while let Some(page) = listing.next_page().await? {
            for item in page {
                let entry = Listed { name: item.name, file_type: item.file_type, fileid: item.fileid };
                bytes += entry.size_bytes();
                entries.push(entry);
            }
            // A faulty server can send entries without end.
            if bytes > self.options.content_bytes_max {
                return Err(Error::TooBig);
            }
        }
        let entries: Arc<[Listed]> = entries.into();
        self.remember_contents(&known, version, Contents::Listing(Arc::clone(&entries)));
        Ok(entries)
    }
}
