//! MOUNT version 3 (RFC 1813 appendix I), which gives clients the handle of an export or a directory in it.

use std::sync::Arc;

use tombolo_core::Error;
use tombolo_core::fs::{FileType, Name};
use tombolo_host_rpc::server::{Origin, Peer};
use tombolo_wire_nfs3::mount::{Call, DirPath, Flavors, MntOk, MntReply, MountEntry, MountName, Status};
use tombolo_wire_rpc::AuthFlavor;
use tombolo_wire_xdr::Encoder;

use crate::export::{NfsService, Served};
use crate::nodes::Node;

/// Executes a call and writes its results.
pub(crate) async fn execute(service: &NfsService, peer: &Peer, call: Call<'_>, results: &mut Encoder<'_>) {
    let client = name_of(&peer.origin);
    match call {
        Call::Null => {}
        Call::Mnt(path) => mnt(service, peer, &client, path, results).await,
        Call::Dump => dump(service, results),
        Call::Umnt(path) => service.mounts.remove(&client, path.as_bytes()),
        Call::UmntAll => service.mounts.remove_all(&client),
        Call::Export => export(service, &peer.origin, results),
    }
}

/// Returns a client's name in the mount list.
fn name_of(origin: &Origin) -> String {
    match origin {
        Origin::Network(address) => address.ip().to_string(),
        Origin::Link(link) => link.label.to_string(),
    }
}

async fn mnt(service: &NfsService, peer: &Peer, client: &str, path: DirPath<'_>, results: &mut Encoder<'_>) {
    let found = walk(service, peer, path.as_bytes()).await;
    let text = path.as_bytes().escape_ascii();
    match found {
        Ok(node) => {
            tracing::info!(client, path = %text, "mounted");
            service.mounts.add(client, path.as_bytes());
            let handle = node.wire_handle();
            let reply = match Flavors::new(&[AuthFlavor::SYS, AuthFlavor::NONE]) {
                Some(flavors) => MntReply::Ok(MntOk { handle, flavors }),
                None => MntReply::Failed(Status::ServerFault, ()),
            };
            results.value(&reply);
        }
        Err(status) => {
            tracing::info!(client, path = %text, ?status, "not mounted");
            results.value(&MntReply::Failed(status, ()));
        }
    }
}

/// Returns the directory at a path: an export or a directory in one. Symbolic links are not followed.
async fn walk(service: &NfsService, peer: &Peer, path: &[u8]) -> Result<Arc<Node>, Status> {
    let (export, remaining) = find_export(service, path).ok_or(Status::NoEnt)?;
    if !export.admits(&peer.origin) {
        return Err(Status::Acces);
    }
    let mut node = export.root().await.map_err(|error| status(&error))?;
    for part in remaining.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        let name = Name::new(part).map_err(|_| Status::NoEnt)?;
        let entry = export.file_system.lookup(&export.own_ctx(), node.id, name).resolve().await;
        let entry = entry.map_err(|error| status(&error))?;
        node = export.adopt(entry.node).await.map_err(|error| status(&error))?;
        if entry.attr.file_type != FileType::Directory {
            return Err(Status::NotDir);
        }
    }
    Ok(node)
}

/// Returns the export with the longest name that is a prefix of the path, if any, and the remaining path.
fn find_export<'a>(service: &'a NfsService, path: &'a [u8]) -> Option<(&'a Arc<Served>, &'a [u8])> {
    let remaining_path = |export: &Arc<Served>| {
        let remaining = path.strip_prefix(export.name.trim_end_matches('/').as_bytes())?;
        (remaining.is_empty() || remaining.starts_with(b"/")).then_some(remaining)
    };
    let candidates = service.exports().iter().filter_map(|export| Some((export, remaining_path(export)?)));
    candidates.max_by_key(|(export, _)| export.name.len())
}

fn status(error: &Error) -> Status {
    match error {
        Error::NotPermitted => Status::Perm,
        Error::NotFound | Error::Stale => Status::NoEnt,
        Error::AccessDenied => Status::Acces,
        Error::NotDirectory | Error::SymlinkLoop => Status::NotDir,
        Error::NameTooLong => Status::NameTooLong,
        Error::NotSupported => Status::NotSupp,
        Error::Io { .. } => Status::Io,
        _ => Status::ServerFault,
    }
}

fn dump(service: &NfsService, results: &mut Encoder<'_>) {
    for mounted in service.mounts.all() {
        let (Some(client), Some(path)) =
            (MountName::new(mounted.client.as_bytes()), DirPath::new(&mounted.path))
        else {
            continue;
        };
        results.bool(true).value(&MountEntry { client, path });
    }
    results.bool(false);
}

/// Lists the exports: all for a network client, only its own for a link.
fn export(service: &NfsService, origin: &Origin, results: &mut Encoder<'_>) {
    let shown = |export: &&Arc<Served>| match origin {
        Origin::Network(_) => true,
        Origin::Link(_) => export.admits(origin),
    };
    for export in service.exports().iter().filter(shown) {
        let Some(path) = DirPath::new(export.name.as_bytes()) else { continue };
        results.bool(true).value(&path);
        for network in export.allow.networks() {
            let network = network.to_string();
            let Some(name) = MountName::new(network.as_bytes()) else { continue };
            results.bool(true).value(&name);
        }
        results.bool(false);
    }
    results.bool(false);
}
