//! CREATE, MKDIR, SYMLINK, MKNOD, LINK (RFC 1813 §3.3.8 to §3.3.11, §3.3.15).

use std::sync::Arc;

use tombolo_core::Ctx;
use tombolo_core::fs::{
    Attr, Change, Create, Created, Device, Exclusive, FileType, Made, Mode, Name, NewMode, NodeId, OpenFlags,
    SetAttr,
};
use tombolo_wire_nfs3::args::{
    CreateArgs, CreateHow, DirOpArgs, LinkArgs, MkdirArgs, MknodArgs, MknodKind, SymlinkArgs,
};
use tombolo_wire_nfs3::attr::{device, fattr3, set_attr};
use tombolo_wire_nfs3::results::{CreateOk, CreateReply, LinkReply, LinkWcc};
use tombolo_wire_nfs3::{FileHandle, Reply, Sattr3, Status, WccData};
use tombolo_wire_xdr::Encoder;

use crate::caller::{CallTarget, Caller};
use crate::failure::{Failure, Result, write_failure};
use crate::nodes::{Node, NodeGuard};

/// Default mode of a new node: access for the owner only.
const DEFAULT_MODE: u32 = 0o600;
/// Default mode of a new directory.
const DEFAULT_DIRECTORY_MODE: u32 = 0o700;

/// A node that was created, or found by an unchecked create.
struct NewNode {
    node: Arc<Node>,
    attr: Attr,
    dir: Change,
}

/// Executes CREATE (RFC 1813 §3.3.8).
pub(crate) async fn create(caller: &Caller<'_>, args: CreateArgs<'_>, results: &mut Encoder<'_>) {
    let DirOpArgs { dir, name } = args.location;
    answer(caller, dir, results, async |dir| create_in(dir, name, &args.how).await).await;
}

/// Executes MKDIR (§3.3.9).
pub(crate) async fn mkdir(caller: &Caller<'_>, args: MkdirArgs<'_>, results: &mut Encoder<'_>) {
    make(caller, args.location, &args.attributes, results, async |dir, name, set| {
        let mode = mode_of(set, DEFAULT_DIRECTORY_MODE);
        Ok(dir.export.file_system.mkdir(&dir.cx, dir.node.id, name, mode).resolve().await?)
    })
    .await;
}

/// Executes SYMLINK (§3.3.10).
pub(crate) async fn symlink(caller: &Caller<'_>, args: SymlinkArgs<'_>, results: &mut Encoder<'_>) {
    make(caller, args.location, &args.attributes, results, async |dir, name, set| {
        // The waist creates symbolic links without a mode (RFC 1813 §3.3.10 leaves that to the server).
        set.mode = None;
        Ok(dir.export.file_system.symlink(&dir.cx, dir.node.id, name, args.target).resolve().await?)
    })
    .await;
}

/// Executes MKNOD (§3.3.11); BADTYPE for types that have procedures of their own.
pub(crate) async fn mknod(caller: &Caller<'_>, args: MknodArgs<'_>, results: &mut Encoder<'_>) {
    let none = Device::default();
    let (file_type, attributes, rdev) = match args.what {
        MknodKind::CharDevice(attributes, rdev) => (FileType::CharDevice, attributes, device(rdev)),
        MknodKind::BlockDevice(attributes, rdev) => (FileType::BlockDevice, attributes, device(rdev)),
        MknodKind::Socket(attributes) => (FileType::Socket, attributes, none),
        MknodKind::Fifo(attributes) => (FileType::Fifo, attributes, none),
        MknodKind::Other(_) => {
            let refused = async |_: &mut CallTarget| Err(Failure(Status::BadType));
            return answer(caller, args.location.dir, results, refused).await;
        }
    };
    make(caller, args.location, &attributes, results, async |dir, name, set| {
        let mode = mode_of(set, DEFAULT_MODE);
        let file_system = &dir.export.file_system;
        Ok(file_system.mknod(&dir.cx, dir.node.id, name, file_type, mode, rdev).resolve().await?)
    })
    .await;
}

/// Executes LINK (§3.3.15).
pub(crate) async fn link(caller: &Caller<'_>, args: LinkArgs<'_>) -> LinkReply {
    let (file, dir) = match (caller.target(args.file).await, caller.target(args.link.dir).await) {
        (Ok(file), Ok(dir)) => (file, dir),
        (Err(Failure(Status::Stale)), Ok(dir)) => {
            let Failure(status) = gone_file_failure(&dir, args.link.name).await;
            return Reply::Failed(status, LinkWcc { attributes: None, dir_wcc: dir.wcc_now().await });
        }
        (Err(Failure(status)), _) | (_, Err(Failure(status))) => {
            return Reply::Failed(status, LinkWcc { attributes: None, dir_wcc: WccData::NONE });
        }
    };
    match link_in(&file, &dir, args.link.name).await {
        Ok(made) => Reply::Ok(LinkWcc {
            attributes: Some(fattr3(&made.entry.attr)),
            dir_wcc: dir.wcc(&made.dir).await,
        }),
        Err(failure) => {
            let (status, dir_wcc) = dir.change_failed(failure).await;
            Reply::Failed(status, LinkWcc { attributes: file.post_op().await, dir_wcc })
        }
    }
}

/// Returns the failure of a LINK of a file that no longer exists: for a duplicate of a failed request the
/// recorded one, otherwise STALE.
async fn gone_file_failure(dir: &CallTarget, name: &[u8]) -> Failure {
    let name = match new_name(name) {
        Ok(name) => name,
        Err(failure) => return failure,
    };
    match dir.export.file_system.link(&dir.cx, NodeId::NONE, dir.node.id, name).resolve().await {
        Err(error) => error.into(),
        Ok(made) => {
            drop(NodeGuard::new(&dir.export.file_system, dir.export.session, made.entry.node));
            Failure(Status::Stale)
        }
    }
}

async fn link_in(file: &CallTarget, dir: &CallTarget, name: &[u8]) -> Result<Made> {
    if !file.shares_export_with(dir) {
        return Err(Failure(Status::XDev));
    }
    let name = new_name(name)?;
    let export = &dir.export;
    let made = export.file_system.link(&dir.cx, file.node.id, dir.node.id, name).resolve().await?;
    // The node is adopted only to forget the reply's look-up.
    drop(export.adopt(made.entry.node).await);
    export.settle(&dir.node).await?;
    Ok(made)
}

/// Executes MKDIR, SYMLINK or MKNOD: `step` makes the node, and clears the attributes it has set.
async fn make(
    caller: &Caller<'_>,
    location: DirOpArgs<'_>,
    attributes: &Sattr3,
    results: &mut Encoder<'_>,
    step: impl AsyncFnOnce(&CallTarget, Name<'_>, &mut SetAttr) -> Result<Made>,
) {
    let made = async |dir: &mut CallTarget| {
        let name = new_name(location.name)?;
        let mut set = set_attr(attributes, None)?;
        // Only regular files have a size to set.
        set.size = None;
        let made = step(dir, name, &mut set).await?;
        let node = dir.export.adopt(made.entry.node).await?;
        finish(dir, node, made.entry.attr, made.dir, set).await
    };
    answer(caller, location.dir, results, made).await;
}

async fn create_in(dir: &CallTarget, name: &[u8], how: &CreateHow) -> Result<NewNode> {
    let name = new_name(name)?;
    match how {
        CreateHow::Exclusive(verifier) => {
            let mode = NewMode::settled(Mode::new(DEFAULT_MODE));
            let created = open_new(dir, name, mode, Exclusive::Verifier(verifier.0)).await?;
            let node = entered(dir, &created).await?;
            // The verifier is stored in the file's attributes.
            dir.export.settle_attributes(&node, FileType::Regular).await?;
            finish(dir, node, created.entry.attr, created.dir, SetAttr::default()).await
        }
        CreateHow::Guarded(attributes) => create_new(dir, name, attributes).await,
        CreateHow::Unchecked(attributes) => match create_new(dir, name, attributes).await {
            Err(Failure(Status::Exist)) => open_existing(dir, name, attributes).await,
            outcome => outcome,
        },
    }
}

async fn create_new(dir: &CallTarget, name: Name<'_>, attributes: &Sattr3) -> Result<NewNode> {
    let mut set = set_attr(attributes, None)?;
    let mode = mode_of(&mut set, DEFAULT_MODE);
    set.size = set.size.filter(|&size| size > 0);
    let created = open_new(dir, name, mode, Exclusive::Yes).await?;
    let node = entered(dir, &created).await?;
    finish(dir, node, created.entry.attr, created.dir, set).await
}

/// Returns the existing file for an unchecked create, which sets only its size (RFC 1813 §3.3.8). For a
/// duplicate, returns the file that the original request found.
async fn open_existing(dir: &CallTarget, name: Name<'_>, attributes: &Sattr3) -> Result<NewNode> {
    if let Some(handle) = dir.export.unchecked_creates.handle(&dir.cx) {
        let file = CallTarget {
            export: dir.export.clone(),
            node: dir.export.resolve(&handle).await?,
            cx: dir.cx.clone(),
        };
        let attr = file.attr().await?;
        return Ok(NewNode { node: file.node, attr, dir: Change::default() });
    }
    let entry = dir.child(name).await?.ok_or(Failure(Status::Jukebox))?;
    let node = dir.export.adopt(entry.node).await?;
    if entry.attr.file_type != FileType::Regular {
        return Err(Failure(Status::Exist));
    }
    let file = CallTarget { export: dir.export.clone(), node, cx: dir.cx.clone() };
    if let Some(size) = attributes.size {
        super::attributes::change(&file, &SetAttr { size: Some(size), ..SetAttr::default() }).await?;
    }
    let attr = file.attr().await?;
    // The call that created the file may not have been answered yet: its name may not be stable.
    dir.export.settle(&dir.node).await?;
    dir.export.unchecked_creates.record(&dir.cx, &file.node.handle);
    Ok(NewNode { node: file.node, attr, dir: Change::default() })
}

async fn open_new(dir: &CallTarget, name: Name<'_>, mode: NewMode, exclusive: Exclusive) -> Result<Created> {
    let how = Create { mode, flags: OpenFlags::READ | OpenFlags::WRITE, exclusive };
    let file_system = &dir.export.file_system;
    let create = || file_system.create(&dir.cx, dir.node.id, name, &how);
    Ok(dir.export.openings.with_eviction(create).await?)
}

/// Caches the opening of a create, for the WRITE that usually follows.
async fn entered(dir: &CallTarget, created: &Created) -> Result<Arc<Node>> {
    dir.export.openings.enter_created(created.entry.node, created.open);
    Ok(dir.export.adopt(created.entry.node).await?)
}

/// Sets the remaining attributes and makes the new node stable if the export's durability requires it: a sync
/// of the directory covers the node as it was made, but not attributes set afterwards.
async fn finish(
    dir: &CallTarget,
    node: Arc<Node>,
    mut attr: Attr,
    change: Change,
    set: SetAttr,
) -> Result<NewNode> {
    let export = &dir.export;
    let remaining = without_ownership(set, &dir.cx);
    if remaining != SetAttr::default() {
        attr = export.file_system.setattr(&dir.cx, node.id, None, &remaining).resolve().await?.0;
        export.settle_attributes(&node, attr.file_type).await?;
    }
    export.settle(&dir.node).await?;
    Ok(NewNode { node, attr, dir: change })
}

/// Drops the owner and group unless the caller is the superuser: other callers send the owner that a new node
/// gets anyway, or, if they are squashed, one that it does not get. The decision depends on the call alone,
/// so that a duplicate sets the same attributes.
fn without_ownership(set: SetAttr, cx: &Ctx) -> SetAttr {
    let gives = cx.identity.uid == 0;
    SetAttr {
        uid: set.uid.filter(|&uid| gives && uid != cx.identity.uid),
        gid: set.gid.filter(|_| gives),
        ..set
    }
}

/// Takes the mode out of the attributes; the node is created with it.
fn mode_of(set: &mut SetAttr, default: u32) -> NewMode {
    NewMode::settled(set.mode.take().unwrap_or(Mode::new(default)))
}

/// Checks a new name; `.` and `..` exist in every directory.
fn new_name(name: &[u8]) -> Result<Name<'_>> {
    match name {
        b"." | b".." => Err(Failure(Status::Exist)),
        _ => Ok(Name::new(name)?),
    }
}

async fn answer(
    caller: &Caller<'_>,
    dir: FileHandle<'_>,
    results: &mut Encoder<'_>,
    make: impl AsyncFnOnce(&mut CallTarget) -> Result<NewNode>,
) {
    let written = caller.change(dir, async |dir| {
        let new = make(dir).await?;
        results.value(&CreateReply::Ok(CreateOk {
            object: Some(new.node.wire_handle()),
            attributes: Some(fattr3(&new.attr)),
            dir_wcc: dir.wcc(&new.dir).await,
        }));
        Ok(())
    });
    write_failure(&written.await, results);
}
