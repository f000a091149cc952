//! Small files, created, written and removed, each step stable.

use tombolo_wire_nfs3::args::StableHow;

use super::super::Wait;
use super::super::client::{Mounted, Reply, create, created, remove, removed, write, written};
use crate::error::Result;
use crate::files::Tree;
use crate::measure::{Clock, Work};
use crate::peer::Nfs;

/// Creates, writes (4 KiB with FILE_SYNC) and removes files in the folder `path`, one call outstanding;
/// `name` distinguishes contestants.
pub fn small_files(server: &Nfs, path: &str, wait: Wait, name: &str) -> Result<Work<'static>> {
    let mut mounted = Mounted::new(server, wait)?;
    let folder = mounted.walk(path)?;
    let (mut connection, mut reply) = (mounted.into_connection(), Reply::default());
    let (content, name, mut number) = (vec![b'z'; Tree::SMALL_BYTES], name.to_owned(), 0);
    let run = move |count, clock: &mut Clock| {
        clock.start();
        for _ in 0..count {
            number += 1;
            let name = format!("{name}.{number}");
            connection.call(&mut create(&folder, name.as_bytes()), &mut reply)?;
            let file = created(&reply)?;
            connection.call(&mut write(&file, &content, StableHow::FileSync), &mut reply)?;
            written(&reply, content.len(), StableHow::FileSync)?;
            connection.call(&mut remove(&folder, name.as_bytes()), &mut reply)?;
            removed(&reply)?;
            clock.lap();
        }
        Ok(())
    };
    Ok(Work::new(run).per_second(true))
}
