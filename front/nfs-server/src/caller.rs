//! Caller of a request, and the nodes that its handles name.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use tombolo_core::fs::{Attr, Change, Changing, Entry, FileType, LeaseClient, Name};
use tombolo_core::{Ctx, Error, KeyProperties, RequestId, RequestKey, Want};
use tombolo_host_rpc::server::{Origin, Peer, Transport};
use tombolo_host_runtime::buffer_pool::Buffers;
use tombolo_mem::Source;
use tombolo_wire_nfs3::attr::{fattr3, wcc_data};
use tombolo_wire_nfs3::{FileHandle, PostOpAttr, Procedure, Reply, Status, WccData};
use tombolo_wire_rpc::{CallHeader, Credential};

use crate::digests::Digests;
use crate::export::{NfsService, Served};
use crate::failure::{Failure, Result};
use crate::handle::Signer;
use crate::nodes::Node;
use crate::packer::Packer;

/// Maximum number of bytes of one READ or WRITE over TCP and over a link.
const TCP_TRANSFER_MAX: u32 = 1 << 20;
/// Maximum number of bytes over UDP: with headers it must fit a datagram.
const UDP_TRANSFER_MAX: u32 = 1 << 15;
/// Maximum length of the arguments' prefix that the request's checksum covers.
const CHECKSUM_BYTES: usize = 256;
/// Position of the checksum in a request key, in bits.
const CHECKSUM_SHIFT: u32 = 64;
/// Length of an IPv6 site's prefix in bytes; the site chooses the remaining bytes of its addresses.
const SITE_BYTES: usize = 8;

/// A call's caller and request key.
pub(crate) struct Caller<'a> {
    service: &'a NfsService,
    peer: &'a Peer,
    header: &'a CallHeader<'a>,
    /// The whole call.
    pub record: &'a Source,
    pub buffers: &'a Buffers,
    key: Option<RequestKey>,
    request: RequestId,
}

impl<'a> Caller<'a> {
    /// Creates the caller of an idempotent call.
    pub fn new(
        service: &'a NfsService,
        peer: &'a Peer,
        header: &'a CallHeader<'a>,
        record: &'a Source,
        buffers: &'a Buffers,
    ) -> Self {
        Self { service, peer, header, record, buffers, key: None, request: service.next_request() }
    }

    /// Sets the request key of a call of `procedure` unless it is idempotent. `args` are its arguments.
    pub fn of(self, procedure: Procedure, args: &[u8]) -> Self {
        let key = (!is_idempotent(procedure)).then(|| {
            request_key(
                digest_of(&self.peer.origin),
                self.header.xid.0,
                procedure.number(),
                checksum(args, self.record.len()),
            )
        });
        Self { key, ..self }
    }

    /// Returns the export of a handle; fails if it is not served, or not to this client.
    pub fn export(&self, handle: FileHandle<'_>) -> Result<&Arc<Served>> {
        let id = Signer::export_of(handle.as_bytes())?;
        // The handle may be a valid one of an export that is no longer served.
        let export = self.service.export(id).ok_or(Failure(Status::Stale))?;
        if export.admits(&self.peer.origin) { Ok(export) } else { Err(Failure(Status::Acces)) }
    }

    /// Returns the client's identity for leases; `None` unless the call's AUTH_SYS credential has a stamp
    /// other than 0, by which clients of one party are distinguished.
    pub fn lease_client(&self) -> Option<LeaseClient> {
        match &self.header.credential {
            Credential::Sys(auth) if auth.stamp != 0 => Some(lease_client(self.peer, auth.stamp)),
            _ => None,
        }
    }

    /// Returns the calling peer.
    pub fn peer(&self) -> &Peer {
        self.peer
    }

    /// Recalls other clients' leases before a change, and waits until they are returned or expired and the
    /// grace period is over; `None` if the procedure changes nothing, the handle is of no export that this
    /// client may use, or the export grants no leases. The result must be held until the change is made.
    pub async fn begin_change(&self, handle: FileHandle<'_>) -> Option<Changing> {
        self.key?;
        let leases = self.export(handle).ok()?.leases.as_ref()?;
        let client = self.lease_client().unwrap_or_else(|| lease_client(self.peer, 0));
        leases.change(client).resolve().await.ok()
    }

    /// Resolves a handle to a node and the caller's context for it.
    pub async fn target(&self, handle: FileHandle<'_>) -> Result<CallTarget> {
        let export = self.export(handle)?;
        let node = export.resolve(handle.as_bytes()).await?;
        let credential = &self.header.credential;
        let identity = self.service.identities.identity(export.squash, credential, self.peer).await?;
        let own = Ctx::root(export.session);
        let cx = Ctx { request: self.request, key: self.key, identity, want: Want::CHANGE_ATTRS, ..own };
        Ok(CallTarget { export: export.clone(), node, cx })
    }

    /// Executes a call about a node. A failed reply has the node's current attributes, if it was found.
    pub async fn on<T>(
        &self,
        handle: FileHandle<'_>,
        work: impl AsyncFnOnce(&mut CallTarget) -> Result<T>,
    ) -> Reply<T, PostOpAttr> {
        let mut target = match self.target(handle).await {
            Ok(target) => target,
            Err(Failure(status)) => return Reply::Failed(status, None),
        };
        match work(&mut target).await {
            Ok(results) => Reply::Ok(results),
            Err(failure) => {
                let (status, attributes) = target.failed(failure).await;
                Reply::Failed(status, attributes)
            }
        }
    }

    /// Executes a call that changes a node, as [`Caller::on`] does for others.
    pub async fn change<T>(
        &self,
        handle: FileHandle<'_>,
        work: impl AsyncFnOnce(&mut CallTarget) -> Result<T>,
    ) -> Reply<T, WccData> {
        match self.on(handle, work).await {
            Reply::Ok(results) => Reply::Ok(results),
            Reply::Failed(status, after) => Reply::Failed(status, WccData { before: None, after }),
        }
    }

    /// Begins a subtree listing; see [`NfsService::begin_subtree`].
    pub fn begin_subtree(&self) -> Option<Arc<()>> {
        self.service.begin_subtree()
    }

    /// Returns the cache of digests, shared by all exports.
    pub fn digests(&self) -> &Digests {
        &self.service.digests
    }

    /// Returns the compressor of all exports.
    pub fn packer(&self) -> &Packer {
        &self.service.packer
    }

    /// Returns the maximum number of bytes of a READ or WRITE of this caller.
    pub fn transfer_max(&self) -> u32 {
        match self.peer.transport {
            Transport::Tcp | Transport::Link => TCP_TRANSFER_MAX,
            Transport::Udp => UDP_TRANSFER_MAX,
        }
    }
}

/// Returns `true` if a call may safely be executed twice.
fn is_idempotent(procedure: Procedure) -> bool {
    !matches!(
        procedure,
        Procedure::Setattr
            | Procedure::Write
            | Procedure::Create
            | Procedure::Mkdir
            | Procedure::Symlink
            | Procedure::Mknod
            | Procedure::Remove
            | Procedure::Rmdir
            | Procedure::Rename
            | Procedure::Link
    )
}

/// Returns a call's key: transaction id (RFC 5531 §9), procedure and checksum, four bytes each from the
/// lowest up. The client's port is not part of it: it changes when a client reconnects.
pub(crate) fn request_key(client: u64, xid: u32, procedure: u32, checksum: u32) -> RequestKey {
    let key = u128::from(xid) | u128::from(procedure) << 32 | u128::from(checksum) << CHECKSUM_SHIFT;
    RequestKey { client: client.into(), key, properties: KeyProperties::empty() }
}

/// Derives a request key that also depends on the write verifier: a write repeated under another verifier is
/// executed again.
pub(crate) fn key_under(key: RequestKey, verifier: [u8; 8]) -> RequestKey {
    let verifier = u128::from(u64::from_be_bytes(verifier) as u32) << CHECKSUM_SHIFT;
    RequestKey { key: key.key ^ verifier, ..key }
}

/// Returns a client's number, stable across restarts of the server. Over a network it is derived from the
/// address without the port, which changes on reconnect. Over links it is derived from the client's
/// incarnation, which is the same on all its links; since a client chooses its incarnation, also from
/// properties that it cannot choose: its user, or, if the kernel reports none, the memory assigned to it.
fn digest_of(origin: &Origin) -> u64 {
    let mut hasher = SipHasher13::new();
    match origin {
        Origin::Network(address) => match address.ip() {
            IpAddr::V4(address) => hasher.write(&address.octets()),
            IpAddr::V6(address) => hasher.write(&address.octets()),
        },
        Origin::Link(link) => {
            hasher.write(&link.client.0);
            // Together with the incarnation 24 bytes or more, a length that no address has.
            hasher.write(&link.user.map_or(u64::MAX, u64::from).to_le_bytes());
            if link.user.is_none() {
                hasher.write(link.label.as_bytes());
            }
        }
    }
    hasher.finish()
}

/// Returns a client's identity for leases. Its first part, the party, is a property that the client cannot
/// choose: its certificate, or without one its address (of an IPv6 address the site's network, 64 bits, RFC
/// 4291 §2.5.4); over a link its user or the memory assigned to it. The second part is chosen by the client.
fn lease_client(peer: &Peer, stamp: u32) -> LeaseClient {
    let (mut party, mut own) = (SipHasher13::new(), SipHasher13::new());
    own.write_u32(stamp);
    match (peer.certificate.get(), &peer.origin) {
        (Some(certificate), _) => certificate.hash(&mut party),
        (None, Origin::Network(address)) => match address.ip().to_canonical() {
            IpAddr::V4(address) => party.write(&address.octets()),
            IpAddr::V6(address) => {
                let octets = address.octets();
                let (site, host) = octets.split_at(SITE_BYTES);
                party.write(site);
                own.write(host);
            }
        },
        (None, Origin::Link(link)) => {
            own.write(&link.client.0);
            match link.user {
                Some(user) => party.write(&user.to_le_bytes()),
                None => party.write(link.label.as_bytes()),
            }
            party.write(b"link");
        }
    }
    LeaseClient(party.finish(), own.finish())
}

fn checksum(args: &[u8], record_bytes: usize) -> u32 {
    let mut hasher = SipHasher13::new();
    hasher.write(args.get(..CHECKSUM_BYTES).unwrap_or(args));
    hasher.write_u64(record_bytes as u64);
    hasher.finish() as u32
}

/// A node and the context of the caller that named it.
pub(crate) struct CallTarget {
    pub export: Arc<Served>,
    pub node: Arc<Node>,
    pub cx: Ctx,
}

impl CallTarget {
    /// Returns the node's attributes; STALE if it has no name any more.
    pub async fn attr(&self) -> Result<Attr> {
        Ok(self.export.attr(&self.node).await?)
    }

    /// Returns the attributes of a directory; NOTDIR for other types.
    pub async fn directory_attr(&self) -> Result<Attr> {
        let attr = self.attr().await?;
        if attr.file_type == FileType::Directory { Ok(attr) } else { Err(Failure(Status::NotDir)) }
    }

    /// Returns the attributes of a regular file; ISDIR or INVAL for other types (RFC 1813 §3.3.6, §3.3.7).
    pub async fn file_attr(&self) -> Result<Attr> {
        let attr = self.export.attr_of_file(&self.node).await?;
        match attr.file_type {
            FileType::Regular => Ok(attr),
            FileType::Directory => Err(Failure(Status::IsDir)),
            _ => Err(Failure(Status::Inval)),
        }
    }

    /// Returns the current attributes for a reply, if available.
    pub async fn post_op(&self) -> PostOpAttr {
        self.export.attr(&self.node).await.ok().map(|attr| fattr3(&attr))
    }

    /// Returns the status of a failed call about this node or a name in it, and the node's current
    /// attributes. If the node itself has been removed, NOENT becomes STALE: after NOENT a client would not
    /// look the path up again.
    pub async fn failed(&self, Failure(status): Failure) -> (Status, PostOpAttr) {
        match self.export.attr(&self.node).await {
            Err(Error::Stale) if status == Status::NoEnt => (Status::Stale, None),
            attr => (status, attr.ok().map(|attr| fattr3(&attr))),
        }
    }

    /// Returns the status and attributes of a failed call that changes the directory, as
    /// [`CallTarget::failed`] does for others.
    pub async fn change_failed(&self, failure: Failure) -> (Status, WccData) {
        let (status, after) = self.failed(failure).await;
        (status, WccData { before: None, after })
    }

    /// Returns the node's `wcc_data` after a failure, without the attributes from before.
    pub async fn wcc_now(&self) -> WccData {
        WccData { before: None, after: self.post_op().await }
    }

    /// Returns the node's `wcc_data` of a change. Attributes after the change that the back end did not
    /// return are requested; those from before are then omitted, because others may have changed the node
    /// since.
    pub async fn wcc(&self, change: &Change) -> WccData {
        let mut data = wcc_data(change);
        if data.after.is_none() {
            data.before = None;
            data.after = self.post_op().await;
        }
        data
    }

    /// Returns the directory's entry with this name; `None` if the name does not exist.
    pub async fn child(&self, name: Name<'_>) -> Result<Option<Entry>> {
        match self.export.file_system.lookup(&self.cx, self.node.id, name).resolve().await {
            Ok(entry) => Ok(Some(entry)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns `true` if both targets are in the same export.
    pub fn shares_export_with(&self, other: &CallTarget) -> bool {
        Arc::ptr_eq(&self.export, &other.export)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_host_links::server::IdentityPolicy;
    use tombolo_host_rpc::server::LinkOrigin;
    use tombolo_shm::link::Incarnation;

    fn client(incarnation: u8, user: Option<u32>, label: &str) -> u64 {
        let client = Incarnation([incarnation; 16]);
        let export = "e".into();
        let link =
            LinkOrigin { label: label.into(), export, client, user, identity_policy: IdentityPolicy::Any };
        digest_of(&Origin::Link(Box::new(link)))
    }

    #[test]
    fn an_incarnation_alone_does_not_impersonate_a_client() {
        let one = client(1, Some(1000), "one");
        assert_eq!(one, client(1, Some(1000), "one again"), "over another link, perhaps of another process");
        for other in [client(2, Some(1000), "one"), client(1, Some(1001), "one"), client(1, None, "one")] {
            assert_ne!(one, other);
        }
        assert_eq!(client(1, None, "/dev/shm/one"), client(1, None, "/dev/shm/one"));
        assert_ne!(client(1, None, "/dev/shm/one"), client(1, None, "/dev/shm/other"));
    }
}
