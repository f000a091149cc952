//! Client ids, the namespace of request sequence numbers.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use tombolo_core::ClientId;
use tombolo_host_links::server::Peer;

/// Bit in the id of a peer whose user the kernel does not report; it is in no user id.
const NO_USER: u64 = 1 << 63;

/// Returns a peer's client id. The peer chooses the incarnation, and a peer that named another peer's would
/// get that peer's replies. The id therefore also has what the peer cannot choose and retains from link to
/// link: the user of its process, or the memory assigned to it.
pub(crate) fn client_id(peer: &Peer) -> ClientId {
    let user = peer.credentials.as_ref().map(|credentials| u64::from(credentials.process.uid));
    let place = || {
        let mut hasher = SipHasher24::new();
        hasher.write(peer.label.as_bytes());
        hasher.finish() | NO_USER
    };
    let mut id = [0; 24];
    id[..16].copy_from_slice(&peer.client.0);
    id[16..].copy_from_slice(&user.unwrap_or_else(place).to_le_bytes());
    ClientId(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_host_links::server::{AllowedIdentities, Credentials, VerifiedPeer};
    use tombolo_shm::link::Incarnation;

    fn peer(incarnation: u8, uid: Option<u32>, label: &str) -> ClientId {
        let credentials = |uid| VerifiedPeer {
            process: Credentials { pid: 1, uid, gid: 1 },
            identities: AllowedIdentities::Own { groups: [].into() },
        };
        let client = Incarnation([incarnation; 16]);
        client_id(&Peer {
            export: "e".into(),
            credentials: uid.map(credentials),
            client,
            label: label.into(),
        })
    }

    #[test]
    fn an_incarnation_alone_does_not_identify_a_client() {
        let one = peer(1, Some(1000), "one");
        assert_eq!(one, peer(1, Some(1000), "one again"), "over another link, perhaps of another process");
        for other in [peer(2, Some(1000), "one"), peer(1, Some(1001), "one"), peer(1, None, "one")] {
            assert_ne!(one, other);
        }
        assert_eq!(peer(1, None, "/dev/shm/one"), peer(1, None, "/dev/shm/one"));
        assert_ne!(peer(1, None, "/dev/shm/one"), peer(1, None, "/dev/shm/other"));
    }
}
