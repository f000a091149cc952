//! READDIRPLUS of a whole directory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::super::Wait;
use super::super::client::{Connection, Handle, Mounted, Page, Reply, page, readdirplus};
use crate::error::{Doing, Error, Result};
use crate::measure::{Clock, Work};
use crate::peer::Nfs;

/// What a client asks for at a time (`maxcount`), in bytes.
pub(super) const PAGE_BYTES: u32 = 64 << 10;

/// Reads a directory from end to end; `before` is told where each call begins. Returns how many entries there are, `.` and `..`
/// left out.
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

/// Whether a listing was whole.
pub(super) fn check(found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let answer = format!("{found} entries of {expected}");
    Err(Error::Wrong { what: "READDIRPLUS".to_owned(), answer })
}

/// The same directory again and again.
pub struct WarmList {
    connection: Connection,
    directory: Handle,
    entries: usize,
    reply: Reply,
}

impl WarmList {
    /// Of the directory `path`, which has so many entries.
    pub fn new(server: &Nfs, path: &str, wait: Wait, entries: usize) -> Result<Self> {
        let mut mounted = Mounted::new(server, wait)?;
        let directory = mounted.walk(path)?;
        Ok(Self { connection: mounted.into_connection(), directory, entries, reply: Reply::default() })
    }
}

impl Work for WarmList {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        for _ in 0..count {
            clock.start();
            let found = list_all(&mut self.connection, &self.directory, &mut self.reply, |_| {})?;
            clock.lap();
            check(found, self.entries)?;
        }
        Ok(())
    }
}

/// A directory that the server has never seen, nor any file in it. The host has just made them, so that its kernel knows all.
pub struct ColdList {
    mounted: Mounted,
    /// Where new directories are made, as the server has it and as the host.
    folder: Handle,
    on_host: PathBuf,
    name: String,
    entries: usize,
    number: u64,
    reply: Reply,
}

impl ColdList {
    /// In the folder `path`, with so many entries; `name` tells contestants apart.
    pub fn new(
        server: &Nfs,
        shared: &Path,
        path: &str,
        wait: Wait,
        name: &str,
        entries: usize,
    ) -> Result<Self> {
        let mut mounted = Mounted::new(server, wait)?;
        let folder = mounted.walk(path)?;
        let name = name.to_owned();
        let on_host = shared.join(path);
        Ok(Self { mounted, folder, on_host, name, entries, number: 0, reply: Reply::default() })
    }
}

impl Work for ColdList {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        for _ in 0..count {
            self.number += 1;
            let name = format!("{}.{}", self.name, self.number);
            let folder = self.on_host.join(&name);
            fill(&folder, self.entries)?;
            let directory = self.mounted.lookup(&self.folder, &name)?;
            clock.start();
            let found = list_all(self.mounted.connection(), &directory, &mut self.reply, |_| {})?;
            clock.lap();
            fs::remove_dir_all(&folder).doing_to("remove", &folder)?;
            check(found, self.entries)?;
        }
        Ok(())
    }

    fn count_max(&self) -> u64 {
        1
    }
}

/// Makes a directory with so many empty files.
pub fn fill(folder: &Path, entries: usize) -> Result<()> {
    fs::create_dir(folder).doing_to("make", folder)?;
    for number in 0..entries {
        let path = folder.join(format!("entry-{number:06}"));
        File::create_new(&path).doing_to("create", &path)?;
    }
    Ok(())
}
