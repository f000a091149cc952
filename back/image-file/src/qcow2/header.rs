//! Header of a qcow2 image and its extensions (the qcow2 specification, "Header", "Header extensions").

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use thiserror::Error as ThisError;
use tombolo_core::block::{SECTOR_BYTES, SIZE_BYTES_MAX};

const MAGIC: u32 = 0x5146_49fb;

/// Header length of version 2, and minimum of version 3, in bytes.
const LEN_V2: usize = 72;
const LEN_V3: usize = 104;

/// Types of header extensions; those not listed set [`Header::has_more`].
const END: u32 = 0;
const BACKING_FORMAT: u32 = 0xe279_2aca;
const FEATURE_NAMES: u32 = 0x6803_f857;
const DATA_FILE_NAME: u32 = 0x4441_5441;

/// Bits of the incompatible features, a field of version 3 at offset 72.
const IS_DIRTY: u64 = 1;
const IS_CORRUPT: u64 = 1 << 1;
const HAS_DATA_FILE: u64 = 1 << 2;
const HAS_COMPRESSION_TYPE: u64 = 1 << 3;
const HAS_EXTENDED_L2: u64 = 1 << 4;

/// Maximum length of a backing file's name, and maximum total length of extensions read, in bytes.
const NAME_BYTES_MAX: usize = 1023;
const EXTENSIONS_BYTES_MAX: usize = 64 << 10;

/// An unsupported incompatible feature of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum Unsupported {
    /// Encryption by LUKS or by the format's own AES.
    #[error("it is encrypted: decrypt it with qemu-img convert")]
    Encryption,
    /// Compressed clusters in another format than zlib's, mostly zstd.
    #[error("its compression type is zstd or another than zlib: convert it with qemu-img convert -O qcow2")]
    Compression,
    /// Subclusters.
    #[error("it has extended L2 entries: convert it with qemu-img convert -O qcow2")]
    ExtendedL2,
    /// Stale refcounts (`lazy_refcounts`): the image was not closed cleanly.
    #[error("it is dirty, because it was not closed cleanly: repair it with qemu-img check -r all")]
    Dirty,
    /// A size beyond the supported limit.
    #[error("its size is {0} bytes, and disks of more than {max} are not supported", max = SIZE_BYTES_MAX)]
    Size(u64),
    /// Features of a later specification.
    #[error("it has unknown incompatible features: {0:#x}")]
    Unknown(u64),
}

/// Reasons why a header, or a table it references, is rejected.
#[derive(Debug, ThisError)]
pub(super) enum HeaderError {
    #[error(transparent)]
    Damaged(#[from] io::Error),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

/// The fields of the header and its extensions that this crate uses; imago reads the header for itself.
#[derive(Debug, Default)]
pub(super) struct Header {
    pub cluster_bits: u32,
    /// Size of the disk, in bytes.
    pub size_bytes: u64,
    pub l1_entries: u32,
    pub l1_offset: u64,
    pub refcount_table_offset: u64,
    pub refcount_table_clusters: u32,
    /// Binary logarithm of the bits per refcount.
    pub refcount_order: u32,
    /// Backing file, as stored.
    pub backing_file: Option<String>,
    pub backing_format: Option<String>,
    pub data_file: Option<String>,
    pub has_data_file: bool,
    /// `true` if snapshots or unknown extensions, such as bitmaps, which are not examined, may reference
    /// clusters.
    pub has_more: bool,
}

pub(super) fn damaged(what: &'static str) -> io::Error {
    io::Error::other(what)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes)
}

impl Header {
    /// Reads the header and its extensions; fails if they are damaged or need an unsupported feature.
    pub fn read(file: &File) -> Result<Self, HeaderError> {
        let mut bytes = [0; LEN_V3];
        // A version 2 image may be shorter than a version 3 header.
        file.read_exact_at(&mut bytes[..LEN_V2], 0).map_err(|_| damaged("it is too short"))?;
        if u32_at(&bytes, 0) != MAGIC {
            return Err(damaged("it has no qcow2 header").into());
        }
        let version = u32_at(&bytes, 4);
        if !(2..=3).contains(&version) {
            return Err(damaged("its version is neither 2 nor 3").into());
        }
        let is_long = version == 3;
        if is_long {
            file.read_exact_at(&mut bytes, 0).map_err(|_| damaged("it is too short"))?;
        }
        let mut header = Self {
            cluster_bits: u32_at(&bytes, 20),
            size_bytes: u64_at(&bytes, 24),
            l1_entries: u32_at(&bytes, 36),
            l1_offset: u64_at(&bytes, 40),
            refcount_table_offset: u64_at(&bytes, 48),
            refcount_table_clusters: u32_at(&bytes, 56),
            refcount_order: if is_long { u32_at(&bytes, 96) } else { 4 },
            has_more: u32_at(&bytes, 60) > 0,
            ..Self::default()
        };
        let features = if is_long { u64_at(&bytes, 72) } else { 0 };
        check_features(features, u32_at(&bytes, 32))?;
        header.has_data_file = features & HAS_DATA_FILE != 0;
        if !(9..=21).contains(&header.cluster_bits) || header.refcount_order > 6 {
            return Err(damaged("its header is damaged").into());
        }
        header.check_size()?;
        let len = if is_long { u32_at(&bytes, 100) as usize } else { LEN_V2 };
        if is_long && !(LEN_V3..=header.cluster_bytes() as usize).contains(&len) {
            return Err(damaged("its header is damaged").into());
        }
        header.read_names(file, len, u64_at(&bytes, 8), u32_at(&bytes, 16) as usize)?;
        Ok(header)
    }

    pub fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Returns the binary logarithm of the number of refcounts in a block.
    pub fn block_bits(&self) -> u32 {
        self.cluster_bits + 3 - self.refcount_order
    }

    /// Fails if the size exceeds what the L1 table can map, or the supported limit, or is not in whole
    /// sectors.
    fn check_size(&self) -> Result<(), HeaderError> {
        if self.size_bytes > SIZE_BYTES_MAX {
            return Err(Unsupported::Size(self.size_bytes).into());
        }
        if !self.size_bytes.is_multiple_of(SECTOR_BYTES.into()) {
            return Err(damaged("its size is not a multiple of the sector size").into());
        }
        // An L2 table is one cluster of 8-byte entries.
        let mapped_bits = 2 * self.cluster_bits - 3;
        if self.size_bytes.div_ceil(1 << mapped_bits) > self.l1_entries.into() {
            return Err(damaged("its L1 table is too small for its size").into());
        }
        Ok(())
    }

    fn read_names(&mut self, file: &File, len: usize, name_at: u64, name_len: usize) -> io::Result<()> {
        if name_at != 0 && name_len != 0 {
            if name_len > NAME_BYTES_MAX {
                return Err(damaged("the name of its backing file is too long"));
            }
            let mut name = vec![0; name_len];
            file.read_exact_at(&mut name, name_at)?;
            self.backing_file = Some(text(name)?);
        }
        let end = if name_at == 0 { self.cluster_bytes() } else { name_at.min(self.cluster_bytes()) };
        let mut rest = vec![0; (end as usize).saturating_sub(len).min(EXTENSIONS_BYTES_MAX)];
        let mut filled = 0;
        // The file may end within the cluster.
        while filled < rest.len() {
            match file.read_at(&mut rest[filled..], (len + filled) as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        rest.truncate(filled);
        self.take_extensions(&rest)
    }

    fn take_extensions(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while rest.len() >= 8 && u32_at(rest, 0) != END {
            let len = u32_at(rest, 4) as usize;
            let data = rest.get(8..).and_then(|data| data.get(..len));
            let data = data.ok_or_else(|| damaged("an extension of its header is too long"))?;
            match u32_at(rest, 0) {
                BACKING_FORMAT => self.backing_format = Some(text(data.to_vec())?),
                DATA_FILE_NAME => self.data_file = Some(text(data.to_vec())?),
                FEATURE_NAMES => {}
                _ => self.has_more = true,
            }
            rest = rest.get(8 + len.next_multiple_of(8)..).unwrap_or(&[]);
        }
        Ok(())
    }
}

/// Fails if the image is marked as corrupt, or uses an unsupported feature.
fn check_features(features: u64, crypt_method: u32) -> Result<(), HeaderError> {
    if crypt_method != 0 {
        return Err(Unsupported::Encryption.into());
    }
    if features & IS_CORRUPT != 0 {
        return Err(damaged("it is marked as corrupt").into());
    }
    let unsupported = [
        (IS_DIRTY, Unsupported::Dirty),
        (HAS_COMPRESSION_TYPE, Unsupported::Compression),
        (HAS_EXTENDED_L2, Unsupported::ExtendedL2),
    ];
    if let Some((_, found)) = unsupported.iter().find(|(feature, _)| features & feature != 0) {
        return Err((*found).into());
    }
    match features & !HAS_DATA_FILE {
        0 => Ok(()),
        unknown => Err(Unsupported::Unknown(unknown).into()),
    }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| damaged("a name in its header is not valid UTF-8"))
}
