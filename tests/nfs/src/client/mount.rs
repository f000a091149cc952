//! Every procedure of MOUNT, typed.

use tombolo_wire_nfs3::mount::{Call, DirPath, DumpReply, ExportReply, MntReply, Status};
use tombolo_wire_nfs3::{FileHandle, FileHandleBuf, Reply};

use super::Nfs;
use super::connection::fresh_xid;
use super::message::{Answer, Message};

/// Root of an export, as returned by MNT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The root's handle.
    pub root: FileHandleBuf,
    /// The credentials that the server takes, by their numbers.
    pub flavors: Vec<u32>,
}

/// MOUNT through the connections of an NFS client: both are served on one port.
impl Nfs {
    fn mount_call(&self, call: &Call<'_>) -> Answer {
        self.send(&Message::mount(fresh_xid(), self.caller(), call))
    }

    /// Calls MOUNT's NULL.
    pub fn mount_null(&self) {
        self.mount_call(&Call::Null).results::<()>();
    }

    /// Calls MNT.
    pub fn mnt(&self, path: &str) -> Reply<Mounted, (), Status> {
        match self.mount_call(&Call::Mnt(dir_path(path))).results::<MntReply<'_>>() {
            Reply::Ok(ok) => {
                let flavors = ok.flavors.iter().map(|flavor| flavor.0).collect();
                Reply::Ok(Mounted { root: FileHandle::to_owned(ok.handle), flavors })
            }
            Reply::Failed(status, ()) => Reply::Failed(status, ()),
        }
    }

    /// Returns the root of an existing export.
    ///
    /// # Panics
    /// If MNT fails.
    #[track_caller]
    pub fn root(&self, path: &str) -> FileHandleBuf {
        match self.mnt(path) {
            Reply::Ok(mounted) => mounted.root,
            Reply::Failed(status, ()) => panic!("MNT of {path}: {status:?}"),
        }
    }

    /// Calls DUMP; returns clients and paths.
    pub fn dump(&self) -> Vec<(String, String)> {
        let answer = self.mount_call(&Call::Dump);
        let mounts = answer.results::<DumpReply<'_>>();
        mounts.into_iter().map(|mount| (text(mount.client.as_bytes()), text(mount.path.as_bytes()))).collect()
    }

    /// Calls UMNT.
    pub fn umnt(&self, path: &str) {
        self.mount_call(&Call::Umnt(dir_path(path))).results::<()>();
    }

    /// Calls UMNTALL.
    pub fn umnt_all(&self) {
        self.mount_call(&Call::UmntAll).results::<()>();
    }

    /// Calls EXPORT; returns paths and the hosts that may mount them.
    pub fn exports(&self) -> Vec<(String, Vec<String>)> {
        let answer = self.mount_call(&Call::Export);
        let exports = answer.results::<ExportReply<'_>>();
        let told = exports.into_iter().map(|export| {
            let groups = export.groups.into_iter().map(|group| text(group.as_bytes()));
            (text(export.path.as_bytes()), groups.collect())
        });
        told.collect()
    }
}

fn dir_path(path: &str) -> DirPath<'_> {
    DirPath::new(path.as_bytes()).expect("a path that the protocol can carry")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
