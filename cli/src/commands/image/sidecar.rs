//! Reading and replacing a directory's sidecar.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use tombolo_wire_image::{DIGEST_BYTES, Digest, NAME, PREFIX_BYTES, Sidecar, digest, head_bytes};

use crate::assembly::plan::overlay::sync_name;

/// A sidecar with the digests of its files' blocks.
#[derive(Debug, Default)]
pub struct FullSidecar {
    pub sidecar: Sidecar,
    /// Digests of each file, in the order of `sidecar.files`; empty where omitted.
    pub digests: Vec<Vec<Digest>>,
}

impl FullSidecar {
    /// Reads the sidecar of this directory.
    pub fn read(dir: &Path) -> io::Result<Self> {
        let mut file = File::open(dir.join(NAME))?;
        let file_bytes = file.metadata()?.len();
        let mut head = vec![0; PREFIX_BYTES];
        file.read_exact(&mut head)?;
        let len = head.first_chunk().map(head_bytes).transpose().map_err(io::Error::other)?;
        head.resize(len.unwrap_or_default(), 0);
        file.read_exact(head.get_mut(PREFIX_BYTES..).unwrap_or_default())?;
        let sidecar = Sidecar::decode(&head).map_err(io::Error::other)?;
        let mut digests = Vec::new();
        for (said, table) in sidecar.files.iter().zip(sidecar.tables(head.len())) {
            let table = table.unwrap_or(0..0);
            // Bounds allocations by the actual file length.
            if table.end > file_bytes {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut bytes = vec![0; (table.end - table.start) as usize];
            file.read_exact(&mut bytes)?;
            if said.table.is_some_and(|expected| digest(&bytes) != expected) {
                return Err(io::Error::other("a table of digests is damaged"));
            }
            digests.push(bytes.as_chunks::<DIGEST_BYTES>().0.to_vec());
        }
        Ok(Self { sidecar, digests })
    }

    /// Replaces the sidecar of this directory, keeping its mode.
    pub fn write_again(&self, dir: &Path) -> io::Result<u64> {
        let mode = fs::metadata(dir.join(NAME))?.mode();
        self.write(dir, mode & 0o777)
    }

    /// Replaces the sidecar of this directory atomically and durably, with this mode. Returns its length.
    pub fn write(&self, dir: &Path, mode: u32) -> io::Result<u64> {
        let head = self.sidecar.encode().map_err(io::Error::other)?;
        let (new, path) = (dir.join(format!("{NAME}.{}", std::process::id())), dir.join(NAME));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        let tables = self.digests.iter().map(|table| table.as_flattened());
        let written = [&head[..]].into_iter().chain(tables).try_fold(0, |len, part| {
            file.write_all(part)?;
            Ok(len + part.len() as u64)
        });
        let replaced = written.and_then(|len| {
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync_name(&path)?;
            Ok(len)
        });
        replaced.inspect_err(|_| drop(fs::remove_file(&new)))
    }
}
