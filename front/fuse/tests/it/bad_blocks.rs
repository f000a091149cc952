//! Bad blocks: a program gets an error, neither zeros nor the end of the file.

use crate::common::{Mounted, OneFile, Shared};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tombolo_back_local_dir::LocalDir;
use tombolo_core::fs::Export;
use tombolo_front_fuse::dev::Options;
use tombolo_front_fuse::session::Coherence;

const READABLE_BYTES: u64 = 5 << 12;
const EIO: i32 = 5;

fn mounted(export: &dyn Export, coherence: Coherence) -> Mounted {
    Mounted::new(export, &Options { coherence, ..Options::default() })
}

/// Reads in pieces of `size` to the end; returns the number of bytes read.
fn read_by(file: &File, size: usize) -> Result<u64, i32> {
    let (mut buffer, mut offset) = (vec![1; size], 0);
    loop {
        match file.read_at(&mut buffer, offset) {
            Ok(0) => return Ok(offset),
            Ok(count) => offset += count as u64,
            Err(error) if offset <= READABLE_BYTES => return Err(error.raw_os_error().unwrap()),
            Err(error) => panic!("{offset} bytes were read, and then: {error}"),
        }
    }
}

fn fails_where_it_cannot_be_read(file: &Path) {
    // Pages with and without readable bytes; sizes below and above the read-ahead.
    for size in [4096, 3000, 128 << 10, 1 << 20] {
        assert_eq!(read_by(&File::open(file).unwrap(), size), Err(EIO), "{size}");
    }
    let file = File::open(file).unwrap();
    let mut readable = vec![1; READABLE_BYTES as usize];
    for (page, bytes) in readable.chunks_mut(4096).enumerate() {
        file.read_exact_at(bytes, page as u64 * 4096).expect("what lies before can be read");
    }
    assert!(readable.iter().all(|byte| *byte == 0));
}

#[test]
fn read_into_bad_block_is_an_error() {
    for coherence in [Coherence::Strict, Coherence::Auto] {
        let bad = Arc::new(OneFile { readable_bytes: READABLE_BYTES, ..OneFile::default() });
        let mounted = mounted(&Shared(bad), coherence);
        fails_where_it_cannot_be_read(&mounted.at("file"));
    }
}

/// Uses a file system with bad blocks on this host's disk.
#[test]
fn directory_on_bad_disk_fails_at_bad_blocks() {
    for coherence in [Coherence::Strict, Coherence::Auto] {
        let bad = Arc::new(OneFile { readable_bytes: READABLE_BYTES, ..OneFile::default() });
        let disk = mounted(&Shared(bad), Coherence::Auto);
        let export = LocalDir::open(disk.path(), Default::default()).expect("the export");
        let outer = mounted(&export, coherence);
        fails_where_it_cannot_be_read(&outer.at("file"));
        // The last user of the disk goes first.
        drop((outer, export));
    }
}
