//! Small files made, written and removed, each step stable.

use tombolo_wire_nfs3::args::StableHow;

use super::super::Wait;
use super::super::client::{
    Connection, Handle, Mounted, Reply, create, created, remove, removed, write, written,
};
use crate::error::Result;
use crate::files::Tree;
use crate::measure::{Clock, Work};
use crate::peer::Nfs;

/// CREATE, WRITE of 4 KiB with FILE_SYNC, REMOVE; one call outstanding.
pub struct SmallFiles {
    connection: Connection,
    folder: Handle,
    name: String,
    content: Vec<u8>,
    reply: Reply,
    number: u64,
}

impl SmallFiles {
    /// In the folder `path`; `name` tells contestants apart.
    pub fn new(server: &Nfs, path: &str, wait: Wait, name: &str) -> Result<Self> {
        let mut mounted = Mounted::new(server, wait)?;
        let folder = mounted.walk(path)?;
        Ok(Self {
            connection: mounted.into_connection(),
            folder,
            name: name.to_owned(),
            content: vec![b'z'; Tree::SMALL_BYTES],
            reply: Reply::default(),
            number: 0,
        })
    }
}

impl Work for SmallFiles {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        clock.start();
        for _ in 0..count {
            self.number += 1;
            let name = format!("{}.{}", self.name, self.number);
            let (connection, reply) = (&mut self.connection, &mut self.reply);
            connection.call(&mut create(&self.folder, name.as_bytes()), reply)?;
            let file = created(reply)?;
            connection.call(&mut write(&file, &self.content, StableHow::FileSync), reply)?;
            written(reply, self.content.len(), StableHow::FileSync)?;
            connection.call(&mut remove(&self.folder, name.as_bytes()), reply)?;
            removed(reply)?;
            clock.lap();
        }
        Ok(())
    }

    fn per_second(&self) -> bool {
        true
    }
}
