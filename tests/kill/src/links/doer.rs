//! Execution of actions, by the library or on a mount.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tombolo_back_vrpc_client::{Socket, VrpcExport};
use tombolo_core::fs::{
    Client, Create, Exclusive, Export, File as Opening, FileSystem, Mode, Name, NewMode, NodeId, OpenFlags,
    PermissionCheck, RenameFlags, SyncScope, Write as How,
};
use tombolo_core::{Ctx, SessionId};
use tombolo_host_links::connect::ConnectOptions;
use tombolo_mem::Source;
use tombolo_shm::doorbell::Mode as Doorbell;
use tombolo_shm::link::Incarnation;
use tombolo_sys::random;

use crate::links::model::Action;
use crate::links::records::record;

/// The file that records are appended to.
pub const LOG: &str = "log";
/// The file that blocks are written to.
pub const BLOCKS: &str = "blocks";
/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 8192;

/// Performs an action. Returns the number of bytes for an append.
pub type Doer = Box<dyn FnMut(Action) -> Result<u64, String>>;

/// Returns the content of a block.
pub fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK_BYTES as usize / 8)
}

/// Performs actions by system calls below a directory.
pub fn on_mount(root: &Path) -> Result<Doer, String> {
    let root: PathBuf = root.into();
    let said = |error: std::io::Error| error.to_string();
    let options = |append: bool| {
        let mut options = OpenOptions::new();
        options.create(true).write(true).append(append);
        options
    };
    let mut log = options(true).open(root.join(LOG)).map_err(said)?;
    let blocks = options(false).open(root.join(BLOCKS)).map_err(said)?;
    Ok(Box::new(move |action| {
        let at = |name: u64| root.join(name.to_string());
        let done = match action {
            Action::Mkdir(name) => fs::create_dir(at(name)),
            Action::Rmdir(name) => fs::remove_dir(at(name)),
            Action::Create(name) => File::create_new(at(name)).map(drop),
            Action::Unlink(name) => fs::remove_file(at(name)),
            Action::Rename(from, to) => fs::rename(at(from), at(to)),
            Action::Append(number, from) => {
                return log.write(&record(number)[from as usize..]).map(|count| count as u64).map_err(said);
            }
            Action::Write(number, stamp) => {
                blocks.write_all_at(&block(stamp), number * BLOCK_BYTES).and_then(|()| blocks.sync_all())
            }
        };
        done.map(|()| 0).map_err(said)
    }))
}

/// Performs actions by the library.
pub fn in_library(socket: &Path) -> Result<Doer, String> {
    let mut incarnation = [0; 16];
    random::fill(&mut incarnation).map_err(|errno| errno.to_string())?;
    let options =
        ConnectOptions::new("/tree", "chaos", Incarnation(incarnation)).map_err(|error| error.to_string())?;
    let socket = Socket::new(socket, options, Doorbell::default()).map_err(|error| error.to_string())?;
    let client = Client { session: SessionId(1), label: "chaos".into(), checks: PermissionCheck::BackEnd };
    let fs = VrpcExport::new(socket).attach(&client).map_err(|error| error.to_string())?;
    let cx = Ctx::root(client.session);
    let log = opened(&*fs, &cx, LOG, OpenFlags::WRITE | OpenFlags::APPEND)?;
    let blocks = opened(&*fs, &cx, BLOCKS, OpenFlags::WRITE)?;
    Ok(Box::new(move |action| perform(&*fs, &cx, log, blocks, action).map_err(|error| error.to_string())))
}

fn opened(fs: &dyn FileSystem, cx: &Ctx, text: &str, flags: OpenFlags) -> Result<Opening, String> {
    let name = Name::new(text.as_bytes()).map_err(|error| error.to_string())?;
    let how = Create { mode: NewMode::settled(Mode::new(0o644)), flags, exclusive: Exclusive::No };
    let made = fs.create(cx, NodeId::ROOT, name, &how).wait().map_err(|error| error.to_string())?;
    Ok(Opening { node: made.entry.node, open: made.open })
}

fn perform(
    fs: &dyn FileSystem,
    cx: &Ctx,
    log: Opening,
    blocks: Opening,
    action: Action,
) -> tombolo_core::Result<u64> {
    let text = |name: u64| name.to_string().into_bytes();
    let named = |bytes: &[u8], then: &dyn Fn(Name<'_>) -> tombolo_core::Result<()>| match Name::new(bytes) {
        Ok(name) => then(name),
        Err(_) => Err(tombolo_core::Error::InvalidArgument),
    };
    let mode = NewMode::settled(Mode::new(0o755));
    match action {
        Action::Mkdir(name) => named(&text(name), &|name| {
            let made = fs.mkdir(cx, NodeId::ROOT, name, mode).wait()?;
            fs.forget(cx, &[(made.entry.node, 1)]);
            Ok(())
        }),
        Action::Rmdir(name) => named(&text(name), &|name| fs.rmdir(cx, NodeId::ROOT, name).wait().map(drop)),
        Action::Create(name) => named(&text(name), &|name| {
            let how = Create { mode, flags: OpenFlags::WRITE, exclusive: Exclusive::Yes };
            let made = fs.create(cx, NodeId::ROOT, name, &how).wait()?;
            fs.release(cx, Opening { node: made.entry.node, open: made.open });
            fs.forget(cx, &[(made.entry.node, 1)]);
            Ok(())
        }),
        Action::Unlink(name) => {
            named(&text(name), &|name| fs.unlink(cx, NodeId::ROOT, name).wait().map(drop))
        }
        Action::Rename(from, to) => named(&text(from), &|from| {
            named(&text(to), &|to| {
                fs.rename(cx, NodeId::ROOT, from, NodeId::ROOT, to, RenameFlags::empty()).wait().map(drop)
            })
        }),
        Action::Append(number, from) => {
            let bytes = record(number).split_off(from as usize);
            let written = fs.write(cx, log, &How::default(), Source::from(bytes)).wait()?;
            return Ok(written.count as u64);
        }
        Action::Write(number, stamp) => {
            let mut bytes = block(stamp);
            let mut offset = number * BLOCK_BYTES;
            while !bytes.is_empty() {
                let how = How { offset, ..How::default() };
                let count = fs.write(cx, blocks, &how, Source::from(bytes.clone())).wait()?.count;
                (bytes, offset) = (bytes.split_off(count), offset + count as u64);
            }
            fs.fsync(cx, blocks, SyncScope::All).wait()
        }
    }
    .map(|()| 0)
}
