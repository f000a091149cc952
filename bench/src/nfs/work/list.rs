//! READDIRPLUS of a complete directory.

use std::fs;
use std::path::Path;

use super::super::Wait;
use super::super::client::{Connection, Handle, Mounted, Page, Reply, page, readdirplus};
use crate::error::{Doing, Error, Result, same};
use crate::files::fill;
use crate::measure::{Clock, Work};
use crate::peer::Nfs;

/// Size of a listing page (`maxcount`), in bytes.
pub(super) const PAGE_BYTES: u32 = 64 << 10;

/// Reads a complete directory; `before` receives the start of each call. Returns the number of entries
/// without `.` and `..`.
pub fn list_all(
    connection: &mut Connection,
    directory: &Handle,
    reply: &mut Reply,
    mut before: impl FnMut(&Page),
) -> Result<usize> {
    let mut at = Page::default();
    let mut entries = 0;
    while !at.end {
        before(&at);
        connection.call(&mut readdirplus(directory, &at, PAGE_BYTES), reply)?;
        let next = page(reply)?;
        if next.entries == 0 && !next.end {
            return Err(Error::Wrong {
                what: "READDIRPLUS".to_owned(),
                answer: "no entries and no end".to_owned(),
            });
        }
        entries += next.named;
        at = next;
    }
    Ok(entries)
}

/// Lists the directory `path`, with this many entries, repeatedly.
pub fn warm_list(server: &Nfs, path: &str, wait: Wait, entries: usize) -> Result<Work<'static>> {
    let mut mounted = Mounted::new(server, wait)?;
    let directory = mounted.walk(path)?;
    let (mut connection, mut reply) = (mounted.into_connection(), Reply::default());
    Ok(Work::new(move |count, clock| {
        for _ in 0..count {
            let found = clock.time(|| list_all(&mut connection, &directory, &mut reply, |_| {}))?;
            same("READDIRPLUS", found, entries)?;
        }
        Ok(())
    }))
}

/// Lists directories unknown to the server, as are their files. The host has just created them, so that its
/// kernel caches everything. They are created in the folder `path`, with this many entries; `name`
/// distinguishes contestants.
pub fn cold_list(
    server: &Nfs,
    shared: &Path,
    path: &str,
    wait: Wait,
    name: &str,
    entries: usize,
) -> Result<Work<'static>> {
    let mut mounted = Mounted::new(server, wait)?;
    let parent = mounted.walk(path)?;
    let (name, on_host) = (name.to_owned(), shared.join(path));
    let (mut number, mut reply) = (0, Reply::default());
    let run = move |count, clock: &mut Clock| {
        for _ in 0..count {
            number += 1;
            let name = format!("{name}.{number}");
            let folder = on_host.join(&name);
            fill_folder(&folder, entries)?;
            let directory = mounted.lookup(&parent, &name)?;
            let found = clock.time(|| list_all(mounted.connection(), &directory, &mut reply, |_| {}))?;
            fs::remove_dir_all(&folder).doing_to("remove", &folder)?;
            same("READDIRPLUS", found, entries)?;
        }
        Ok(())
    };
    Ok(Work::new(run).count_max(1))
}

/// Creates a directory with this many empty files.
pub fn fill_folder(folder: &Path, entries: usize) -> Result<()> {
    fill(folder, (0..entries).map(|number| (format!("entry-{number:06}").into(), 0)))
}
