//! CREATE, MKDIR, SYMLINK, MKNOD, LINK (RFC 1813 §3.3.8 to §3.3.11, §3.3.15).

use std::sync::Arc;

use tombolo_core::Ctx;
use tombolo_core::fs::{
    Attr, Change, Create, Created, Device, Exclusive, FileType, Made, Mode, Name, NewMode, NodeId, OpenFlags,
    SetAttr,
};
use tombolo_wire_nfs3::args::{
    CreateArgs, CreateHow, DirOpArgs, LinkArgs, MkdirArgs, MknodArgs, MknodWhat, SymlinkArgs,
};
use tombolo_wire_nfs3::attr::{device, fattr3, set_attr};
use tombolo_wire_nfs3::results::{CreateOk, CreateReply, LinkReply, LinkWcc};
use tombolo_wire_nfs3::{Reply, Sattr3, Status, WccData};
use tombolo_wire_xdr::Encoder;

use crate::caller::{Caller, Target};
use crate::failure::{Failure, Result};
use crate::nodes::{HeldNode, Node};

/// The mode of what is made where the client names none: its owner's alone.
const MODE_UNSAID: u32 = 0o600;
/// The same for a directory.
const DIRECTORY_MODE_UNSAID: u32 = 0o700;

/// A node that was made, or found in its place.
struct New {
    node: Arc<Node>,
    attr: Attr,
    dir: Change,
}

/// CREATE.
pub(crate) async fn create(caller: &Caller<'_>, args: CreateArgs<'_>, results: &mut Encoder<'_>) {
    let dir = caller.target(args.location.dir).await;
    let made = match &dir {
        Ok(dir) => create_in(dir, args.location.name, &args.how).await,
        Err(failure) => Err(*failure),
    };
    answer(dir, made, results).await;
}

/// MKDIR.
pub(crate) async fn mkdir(caller: &Caller<'_>, args: MkdirArgs<'_>, results: &mut Encoder<'_>) {
    make(caller, args.location, &args.attributes, results, async |dir, name, set| {
        let mode = mode_of(set, DIRECTORY_MODE_UNSAID);
        Ok(dir.export.file_system.mkdir(&dir.cx, dir.node.id, name, mode).resolve().await?)
    })
    .await;
}

/// SYMLINK.
pub(crate) async fn symlink(caller: &Caller<'_>, args: SymlinkArgs<'_>, results: &mut Encoder<'_>) {
    make(caller, args.location, &args.attributes, results, async |dir, name, set| {
        // No file system here keeps a mode for links (RFC 1813 §3.3.10 leaves that to the server).
        set.mode = None;
        Ok(dir.export.file_system.symlink(&dir.cx, dir.node.id, name, args.target).resolve().await?)
    })
    .await;
}

/// MKNOD.
pub(crate) async fn mknod(caller: &Caller<'_>, args: MknodArgs<'_>, results: &mut Encoder<'_>) {
    let none = Device::default();
    let (file_type, attributes, rdev) = match args.what {
        MknodWhat::CharDevice(attributes, rdev) => (FileType::CharDevice, attributes, device(rdev)),
        MknodWhat::BlockDevice(attributes, rdev) => (FileType::BlockDevice, attributes, device(rdev)),
        MknodWhat::Socket(attributes) => (FileType::Socket, attributes, none),
        MknodWhat::Fifo(attributes) => (FileType::Fifo, attributes, none),
        MknodWhat::Other(_) => {
            let dir = caller.target(args.location.dir).await;
            return answer(dir, Err(Failure(Status::BadType)), results).await;
        }
    };
    make(caller, args.location, &attributes, results, async |dir, name, set| {
        let mode = mode_of(set, MODE_UNSAID);
        let file_system = &dir.export.file_system;
        Ok(file_system.mknod(&dir.cx, dir.node.id, name, file_type, mode, rdev).resolve().await?)
    })
    .await;
}

/// LINK.
pub(crate) async fn link(caller: &Caller<'_>, args: LinkArgs<'_>) -> LinkReply {
    let (file, dir) = match (caller.target(args.file).await, caller.target(args.link.dir).await) {
        (Ok(file), Ok(dir)) => (file, dir),
        (Err(Failure(Status::Stale)), Ok(dir)) => {
            let Failure(status) = refused_again(&dir, args.link.name).await;
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

/// What a LINK of a file that is gone gets: if it is a duplicate, what the first got when the file was there.
async fn refused_again(dir: &Target, name: &[u8]) -> Failure {
    let name = match new_name(name) {
        Ok(name) => name,
        Err(failure) => return failure,
    };
    match dir.export.file_system.link(&dir.cx, NodeId::NONE, dir.node.id, name).resolve().await {
        Err(error) => error.into(),
        Ok(made) => {
            drop(HeldNode::new(&dir.export.file_system, dir.export.session, made.entry.node));
            Failure(Status::Stale)
        }
    }
}

async fn link_in(file: &Target, dir: &Target, name: &[u8]) -> Result<Made> {
    if !file.shares_export_with(dir) {
        return Err(Failure(Status::XDev));
    }
    let name = new_name(name)?;
    let export = &dir.export;
    let made = export.file_system.link(&dir.cx, file.node.id, dir.node.id, name).resolve().await?;
    // The look-up that came with the answer belongs to a node that we hold already.
    drop(export.adopt(made.entry.node).await);
    export.settle(&dir.node).await?;
    Ok(made)
}

/// What MKDIR, SYMLINK and MKNOD have in common: `step` makes the node, and takes out of the attributes what
/// it has set.
async fn make(
    caller: &Caller<'_>,
    location: DirOpArgs<'_>,
    attributes: &Sattr3,
    results: &mut Encoder<'_>,
    step: impl AsyncFnOnce(&Target, Name<'_>, &mut SetAttr) -> Result<Made>,
) {
    let dir = caller.target(location.dir).await;
    let made = match &dir {
        Ok(dir) => make_in(dir, location.name, attributes, step).await,
        Err(failure) => Err(*failure),
    };
    answer(dir, made, results).await;
}

async fn make_in(
    dir: &Target,
    name: &[u8],
    attributes: &Sattr3,
    step: impl AsyncFnOnce(&Target, Name<'_>, &mut SetAttr) -> Result<Made>,
) -> Result<New> {
    let name = new_name(name)?;
    let mut set = set_attr(attributes, None)?;
    // A directory, a link or a special file has no size to set.
    set.size = None;
    let made = step(dir, name, &mut set).await?;
    let node = dir.export.adopt(made.entry.node).await?;
    finish(dir, node, made.entry.attr, made.dir, set).await
}

async fn create_in(dir: &Target, name: &[u8], how: &CreateHow) -> Result<New> {
    let name = new_name(name)?;
    match how {
        CreateHow::Exclusive(verifier) => {
            let mode = NewMode::settled(Mode::new(MODE_UNSAID));
            let created = open_new(dir, name, mode, Exclusive::Verifier(verifier.0)).await?;
            let node = entered(dir, &created).await?;
            // The verifier is in its attributes.
            dir.export.settle_attributes(&node, FileType::Regular).await?;
            finish(dir, node, created.entry.attr, created.dir, SetAttr::default()).await
        }
        CreateHow::Guarded(attributes) => create_new(dir, name, attributes).await,
        CreateHow::Unchecked(attributes) => match create_new(dir, name, attributes).await {
            Err(Failure(Status::Exist)) => take_existing(dir, name, attributes).await,
            outcome => outcome,
        },
    }
}

async fn create_new(dir: &Target, name: Name<'_>, attributes: &Sattr3) -> Result<New> {
    let mut set = set_attr(attributes, None)?;
    let mode = mode_of(&mut set, MODE_UNSAID);
    set.size = set.size.filter(|&size| size > 0);
    let created = open_new(dir, name, mode, Exclusive::Yes).await?;
    let node = entered(dir, &created).await?;
    finish(dir, node, created.entry.attr, created.dir, set).await
}

/// An unchecked create takes the file that is there, and of the attributes only the size (RFC 1813 §3.3.8).
async fn take_existing(dir: &Target, name: Name<'_>, attributes: &Sattr3) -> Result<New> {
    if let Some(handle) = dir.export.unchecked_creates.handle(&dir.cx) {
        let file = Target {
            export: dir.export.clone(),
            node: dir.export.resolve(&handle).await?,
            cx: dir.cx.clone(),
        };
        let attr = file.attr().await?;
        return Ok(New { node: file.node, attr, dir: Change::default() });
    }
    let entry = dir.child(name).await?.ok_or(Failure(Status::Jukebox))?;
    let node = dir.export.adopt(entry.node).await?;
    if entry.attr.file_type != FileType::Regular {
        return Err(Failure(Status::Exist));
    }
    let file = Target { export: dir.export.clone(), node, cx: dir.cx.clone() };
    if let Some(size) = attributes.size {
        super::attributes::change(&file, &SetAttr { size: Some(size), ..SetAttr::default() }).await?;
    }
    let attr = file.attr().await?;
    // The call that created it a moment ago may not have been answered yet.
    dir.export.settle(&dir.node).await?;
    dir.export.unchecked_creates.record(&dir.cx, &file.node.handle);
    Ok(New { node: file.node, attr, dir: Change::default() })
}

async fn open_new(dir: &Target, name: Name<'_>, mode: NewMode, exclusive: Exclusive) -> Result<Created> {
    let how = Create { mode, flags: OpenFlags::READ | OpenFlags::WRITE, exclusive };
    let file_system = &dir.export.file_system;
    let create = || file_system.create(&dir.cx, dir.node.id, name, &how);
    Ok(dir.export.openings.with_eviction(create).await?)
}

/// Keeps what a create came with: its first write follows.
async fn entered(dir: &Target, created: &Created) -> Result<Arc<Node>> {
    dir.export.openings.enter_created(created.entry.node, created.open);
    Ok(dir.export.adopt(created.entry.node).await?)
}

/// Sets what could not be set at once, and makes it all stable: a sync of the directory has the node as it
/// was made, and need not have what was set afterwards.
async fn finish(dir: &Target, node: Arc<Node>, mut attr: Attr, change: Change, set: SetAttr) -> Result<New> {
    let export = &dir.export;
    let rest = without_ownership(set, &dir.cx);
    if rest != SetAttr::default() {
        attr = export.file_system.setattr(&dir.cx, node.id, None, &rest).resolve().await?.0;
        export.settle_attributes(&node, attr.file_type).await?;
    }
    export.settle(&dir.node).await?;
    Ok(New { node, attr, dir: change })
}

/// Clients name the owner that a new node has anyway, and squashed ones an owner that they are not: a caller
/// that may not give files away gets the node as it would get it from a kernel. Told from the call alone, so
/// that a duplicate of it sets neither more nor less.
fn without_ownership(set: SetAttr, cx: &Ctx) -> SetAttr {
    let gives = cx.identity.uid == 0;
    SetAttr {
        uid: set.uid.filter(|&uid| gives && uid != cx.identity.uid),
        gid: set.gid.filter(|_| gives),
        ..set
    }
}

/// Takes the mode out of the attributes: the node is made with it.
fn mode_of(set: &mut SetAttr, unsaid: u32) -> NewMode {
    NewMode::settled(set.mode.take().unwrap_or(Mode::new(unsaid)))
}

/// A name for something new. The two that every directory has are taken.
fn new_name(name: &[u8]) -> Result<Name<'_>> {
    match name {
        b"." | b".." => Err(Failure(Status::Exist)),
        _ => Ok(Name::new(name)?),
    }
}

async fn answer(dir: Result<Target>, made: Result<New>, results: &mut Encoder<'_>) {
    match (&dir, &made) {
        (Ok(dir), Ok(new)) => {
            let reply = CreateReply::Ok(CreateOk {
                object: Some(new.node.wire_handle()),
                attributes: Some(fattr3(&new.attr)),
                dir_wcc: dir.wcc(&new.dir).await,
            });
            results.value(&reply);
        }
        (Ok(dir), Err(failure)) => {
            let (status, wcc) = dir.change_failed(*failure).await;
            results.value(&CreateReply::Failed(status, wcc));
        }
        (Err(Failure(status)), _) => {
            results.value(&CreateReply::Failed(*status, WccData::NONE));
        }
    }
}
