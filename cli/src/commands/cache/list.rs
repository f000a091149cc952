//! `tombolo cache list`: lists cached files.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tombolo_core::fs::{Timestamp, WeakAttr};
use tombolo_layer_cache::store::Listed;

use crate::commands::files::shown;
use crate::failure::{Failure, OrCannot, Outcome};

#[derive(Args)]
pub struct ListArgs {
    /// Cache directory.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Path within the tree (by default all of it).
    #[arg(value_name = "PATH", default_value = "")]
    path: String,
    /// Print one JSON object per file.
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    pub fn run(self) -> Outcome {
        let store = super::open(&self.dir)?;
        let mut out = io::BufWriter::new(io::stdout().lock());
        let mut written = Ok(());
        let is_known = store.list(self.path.as_bytes(), &mut |file| {
            if written.is_ok() {
                written = if self.json { writeln!(out, "{}", object(&file)) } else { line(&mut out, &file) };
            }
        });
        written.and_then(|()| out.flush()).or_cannot("write")?;
        if !is_known {
            let what = format!("list {}", self.path);
            return Err(
                Failure::cannot(what, "the path is not in the cache").remedy("access it in the tree first")
            );
        }
        Ok(())
    }
}

fn line(out: &mut impl Write, file: &Listed) -> io::Result<()> {
    let path = String::from_utf8_lossy(&file.path);
    let size = shown::short_size(file.version.size);
    match &file.data {
        Some(data) if data.version == file.version => {
            let kept = shown::short_size(data.kept_bytes);
            let (blocks, all) = (data.blocks, data.blocks_max);
            let block = shown::short_size(data.block_bytes.into());
            writeln!(out, "{kept:>8} of {size:>8}  {blocks}/{all} blocks of {block}  {path}")
        }
        Some(_) => writeln!(out, "{:>8} of {size:>8}  outdated version  {path}", 0),
        None => writeln!(out, "{:>8} of {size:>8}  {path}", 0),
    }
}

fn object(file: &Listed) -> serde_json::Value {
    let data = file.data.map(|data| {
        json!({
            "version": version(&data.version),
            "is_current": data.version == file.version,
            "blocks": data.blocks,
            "blocks_max": data.blocks_max,
            "block_bytes": data.block_bytes,
            "kept_bytes": data.kept_bytes,
        })
    });
    json!({
        "path": String::from_utf8_lossy(&file.path),
        "inode": file.id.0,
        "version": version(&file.version),
        "data": data,
    })
}

fn version(version: &WeakAttr) -> serde_json::Value {
    let time = |time: Timestamp| json!({ "secs": time.secs, "nanos": time.nanos });
    json!({ "size_bytes": version.size, "mtime": time(version.mtime), "ctime": time(version.ctime) })
}
