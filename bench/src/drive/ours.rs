//! Tombolo as a client: an export mounted by `back/nfs-client`, called through the waist as a library.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tombolo_back_nfs_client::{NfsExport, Options, Ports, Server, Transport};
use tombolo_core::Stability;
use tombolo_core::fs::{File, OpenFlags, SyncScope, Write};
use tombolo_host_rpc::client::InFlight;
use tombolo_mem::Buffer;

use super::{Client, Direction, DriveArgs, Job, content};
use crate::error::{Error, OrWrong, Result, same};
use crate::session::Session;

/// Maximum of the adaptive in-flight limit.
const ADAPTIVE_MAX: u32 = 128;

pub struct Ours {
    server: Server,
    path: String,
    file: String,
    /// Mounts by request size, which is negotiated when mounting.
    mounts: HashMap<usize, Mount>,
    /// The program's own memory, the source and destination of data.
    memory: Buffer,
}

struct Mount {
    export: NfsExport,
    session: Session,
}

impl Ours {
    /// Creates a client of a server, which the first job mounts.
    pub fn new(args: &DriveArgs) -> Self {
        let ports = if args.nfs.port() == args.mount.port() {
            Ports::One(args.nfs.port())
        } else {
            Ports::Two { nfs: args.nfs.port(), mount: args.mount.port() }
        };
        let address = args.nfs.ip();
        let server =
            Server { name: address.to_string(), address, ports, transport: Transport::Tcp, tls: None };
        let (path, file) = (args.export.clone(), args.file.clone());
        Self { server, path, file, mounts: HashMap::new(), memory: Buffer::new(0) }
    }

    fn mount(&self, piece_bytes: usize) -> Result<Mount> {
        let size_max = u32::try_from(piece_bytes).unwrap_or(u32::MAX);
        let options = Options { read_size_max: size_max, write_size_max: size_max, ..Options::default() };
        let export = NfsExport::mount(&self.server, &self.path, options);
        let export = export.map_err(|error| Error::Absent(error.to_string()))?;
        let session = Session::attached(&export)?;
        Ok(Mount { export, session })
    }
}

impl Client for Ours {
    fn transfer(&mut self, job: &Job) -> Result<Duration> {
        if !self.mounts.contains_key(&job.piece_bytes) {
            let mount = self.mount(job.piece_bytes)?;
            self.mounts.insert(job.piece_bytes, mount);
        }
        self.memory(job.file_bytes);
        let absent = || Error::Absent("no mount".to_owned());
        let mount = self.mounts.get(&job.piece_bytes).ok_or_else(absent)?;
        mount.export.set_in_flight(match job.limit {
            0 => InFlight::Adaptive { max: ADAPTIVE_MAX },
            limit => InFlight::Fixed(limit),
        });
        let name = job.file_name(&self.file);
        let open = Open::new(&mount.session, &name, job.direction)?;
        let begun = Instant::now();
        match job.direction {
            Direction::Read => open.read(job, &self.memory)?,
            Direction::Write | Direction::WriteStable => open.write(job, &self.memory)?,
        }
        Ok(begun.elapsed())
    }

    fn memory(&mut self, file_bytes: usize) -> &[u8] {
        if self.memory.len() < file_bytes {
            self.memory = filled(file_bytes);
        }
        self.memory.as_slice().unwrap_or_default()
    }
}

/// An open file, closed on drop.
struct Open<'a> {
    session: &'a Session,
    file: File,
}

impl<'a> Open<'a> {
    fn new(session: &'a Session, name: &str, direction: Direction) -> Result<Self> {
        let flags = match direction {
            Direction::Read => OpenFlags::READ,
            Direction::Write => OpenFlags::WRITE,
            Direction::WriteStable => OpenFlags::WRITE | OpenFlags::SYNC,
        };
        Ok(Self { session, file: session.open(name.as_ref(), flags)? })
    }

    fn write(&self, job: &Job, memory: &Buffer) -> Result<()> {
        let (Session { fs, cx, .. }, file) = (self.session, self.file);
        let stability =
            if job.direction == Direction::WriteStable { Stability::FileSync } else { Stability::Unstable };
        for (at, bytes) in job.each() {
            let how = Write {
                offset: at as u64,
                stability,
                kill_privileges: false,
                in_place: false,
                // The program's memory does not change before the file is stable.
                retainable: true,
                by_owner: false,
            };
            let written = fs.write(cx, file, &how, memory.source(at..at + bytes)).wait();
            let written = written.or_wrong("write")?;
            same("write", written.count, bytes)?;
        }
        fs.fsync(cx, file, SyncScope::All).wait().or_wrong("fsync")
    }

    fn read(&self, job: &Job, memory: &Buffer) -> Result<()> {
        let (Session { fs, cx, .. }, file) = (self.session, self.file);
        for (at, bytes) in job.each() {
            let read = fs.read(cx, file, at as u64, memory.sink(at..at + bytes)).wait();
            same("read", read.or_wrong("read")?.count, bytes)?;
        }
        Ok(())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let (Session { fs, cx, .. }, file) = (self.session, self.file);
        fs.release(cx, file);
        fs.forget(cx, &[(file.node, 1)]);
    }
}

/// Returns memory filled with [`content`].
pub(super) fn filled(bytes: usize) -> Buffer {
    let mut buffer = Buffer::new(bytes);
    if let Some(memory) = buffer.as_mut_slice() {
        memory.copy_from_slice(&content(bytes));
    }
    buffer
}
