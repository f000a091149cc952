//! Links to shared-memory servers.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_vrpc_client::{Connect, ConnectError as NoSession, Connected, LinkLossPolicy, VrpcExport};
use tombolo_core::fs::Client;
use tombolo_host_links::bell::BellSource;
use tombolo_host_links::connect::{ConnectError, ConnectOptions, connect};
use tombolo_host_links::control_socket::Watcher;
use tombolo_host_links::rendezvous::{self, JoinError};
use tombolo_host_links::shared_memory::{MemoryError, MemoryLocation, SharedMemory};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Features, Incarnation, NAME_BYTES_MAX, Protocol, RefusalCode, Refused};
use tombolo_sys::random;

use super::shm::{NotReachable, ShmEndpoint, ShmLocation, ShmParts};
use super::{NotMounted, Opened};
use crate::failure::Reason;

/// Opens the export that contains the location: the longest name known to the server. Later requests wait for
/// a lost server for up to `limit`, or for ever.
pub fn open(place: &ShmLocation, limit: Option<Duration>) -> Result<Opened, NotMounted> {
    let ShmParts { at, rest } = place.parts()?;
    let (export, within) = longest(&rest, |name| export(at.clone(), name, &LinkOptions::default(), limit))?;
    let export = export.with_link_loss_policy(limit.map_or(LinkLossPolicy::Hard, LinkLossPolicy::Soft));
    Ok(Opened { export: Arc::new(export), path: within.as_bytes().to_vec(), nfs: None })
}

/// Calls `attempt` with `/A/B`, `/A` and `/`, for `rest` = `/A/B`, until the server knows the name. Returns
/// the result and the path after that name. Any other failure of `attempt` ends the search.
pub(super) fn longest<T>(
    rest: &str,
    mut attempt: impl FnMut(&str) -> Result<T, NoLink>,
) -> Result<(T, &str), NotMounted> {
    let mut failed = None;
    for end in ends(rest) {
        let (name, within) = rest.split_at(end);
        match attempt(if name.is_empty() { "/" } else { name }) {
            Ok(found) => return Ok((found, within.trim_start_matches('/'))),
            Err(NoLink { failed: why, unknown_name: true, .. }) => failed = failed.or(Some(why)),
            Err(NoLink { failed: why, .. }) => return Err(why),
        }
    }
    Err(failed.unwrap_or_else(|| NotMounted::new("no export has that name")))
}

/// Links to exactly the export of the location.
pub fn mount(
    place: &ShmLocation,
    link: &LinkOptions,
    link_loss_policy: LinkLossPolicy,
) -> Result<VrpcExport, NotMounted> {
    let ShmParts { at, rest } = place.parts()?;
    let export = export(at, &rest, link, None).map_err(|no| no.failed)?;
    Ok(export.with_link_loss_policy(link_loss_policy))
}

/// Returns the ends of candidate names in `/A/B`, longest first, so that nested exports take precedence. The
/// root, `/`, is the end 0.
fn ends(rest: &str) -> impl Iterator<Item = usize> {
    let inner = rest.rmatch_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
    let whole = (rest.len() > 1).then_some(rest.len());
    // A longer name would be truncated, and could then match another export.
    whole.into_iter().chain(inner).filter(|end| *end <= NAME_BYTES_MAX).chain([0])
}

/// Opens the export of that name, with the link of the first session already made.
fn export(
    at: ShmEndpoint,
    name: &str,
    link: &LinkOptions,
    silence_max: Option<Duration>,
) -> Result<VrpcExport, NoLink> {
    let mut connector = Connector::new(at, name, Protocol::Vrpc, link)?;
    connector.options.silence_max = silence_max;
    let first = connector.link()?;
    let incarnation = connector.options.client;
    Ok(VrpcExport::new(connector).with_first(incarnation, first))
}

/// Maker of links to one export; each session of a [`VrpcExport`], or an NFS client's reconnect, makes one.
pub(super) struct Connector {
    at: ShmEndpoint,
    options: ConnectOptions,
    link: LinkOptions,
}

/// Means by which a client and its server wait for each other.
#[derive(Clone, Default)]
pub struct LinkOptions {
    pub mode: Mode,
    /// Bell of a link over memory; `None` at a socket, or if there is no bell.
    pub bell: Option<Arc<BellSource>>,
}

impl Connect for Connector {
    fn connect(&self, _client: &Client, incarnation: Incarnation) -> Result<Connected, NoSession> {
        self.link_as(incarnation).map_err(|no| Box::new(Unlinked::from(no)) as NoSession)
    }
}

/// Failure to make another link, with the server's refusal.
#[derive(Debug)]
struct Unlinked {
    reason: String,
    refused: Option<Refused>,
}

impl fmt::Display for Unlinked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for Unlinked {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.refused.as_ref().map(|refused| refused as _)
    }
}

impl From<NoLink> for Unlinked {
    fn from(no: NoLink) -> Self {
        Self { reason: no.failed.reason, refused: no.refused }
    }
}

impl Connector {
    /// Prepares links of one client incarnation for a protocol; connects none yet.
    pub(super) fn new(
        at: ShmEndpoint,
        name: &str,
        protocol: Protocol,
        link: &LinkOptions,
    ) -> Result<Self, NotMounted> {
        let mut client = [0; 16];
        random::fill(&mut client)
            .map_err(|errno| NotMounted::new(Reason::from(&std::io::Error::from(errno))))?;
        let options = ConnectOptions::new(name, "tombolo", Incarnation(client))
            .map_err(|error| NotMounted::new(Reason::from(&error)))?;
        // Mounts and commands check nothing in a window, and its mirror costs the server time.
        let offered = options.offered.difference(Features::WINDOW_MIRROR);
        let options = ConnectOptions { protocol, offered, ..options };
        Ok(Self { at, options, link: link.clone() })
    }

    pub(super) fn link(&self) -> Result<Connected, NoLink> {
        self.link_as(self.options.client)
    }

    /// Makes a link for the client incarnation `client`.
    fn link_as(&self, client: Incarnation) -> Result<Connected, NoLink> {
        let options = ConnectOptions { client, ..self.options.clone() };
        match &self.at {
            ShmEndpoint::Socket(socket) => self.link_at(socket, &options),
            ShmEndpoint::Memory(place) => self.link_over(place, &options),
        }
    }

    fn link_at(&self, socket: &Path, options: &ConnectOptions) -> Result<Connected, NoLink> {
        let watcher = Watcher::start().map_err(|error| NotMounted::new(Reason::from(&error)))?;
        let connection = connect(socket, options)?;
        let label = format!("{}{}", socket.display(), self.options.export);
        let (line, control_socket) = connection
            .start(&watcher, label, self.link.mode)
            .map_err(|error| NotMounted::new(Reason::from(&error)))?;
        Ok(Connected { line, keep: Box::new((control_socket, watcher)) })
    }

    fn link_over(&self, place: &MemoryLocation, options: &ConnectOptions) -> Result<Connected, NoLink> {
        let memory = SharedMemory::to_use(place).map_err(NotMounted::from)?;
        let memory = memory.with_bell(self.link.bell.clone());
        let label = format!("{place}{}", self.options.export);
        let joined = rendezvous::join(memory, options, label, self.link.mode);
        let (line, watcher) = joined.map_err(|error| not_joined(place, &error))?;
        Ok(Connected { line, keep: Box::new(watcher) })
    }
}

/// Failure to make a link.
pub(super) struct NoLink {
    pub(super) failed: NotMounted,
    /// `true` if the server does not offer the name to this client; it may offer others.
    pub(super) unknown_name: bool,
    /// Refusal that the server has sent; `None` if it sent none.
    refused: Option<Refused>,
}

const LISTEN: &str = "start a server with tombolo serve DIR --shm SOCKET";
const SERVE_MEMORY: &str =
    "start a server on the other side with tombolo serve DIR --shm-file FILE,size=SIZE";
const OTHER: &str = "the server uses the other protocol: write nfs+shm: instead of shm:, or vice versa";
const ALLOW: &str = "the server's --shm-policy FILE must permit this user";

impl NoLink {
    fn refused(reason: &str, refused: Refused) -> Self {
        let code = refused.code;
        let failed = NotMounted::new(reason);
        let remedy = match code {
            RefusalCode::NotAllowed => Some(ALLOW),
            RefusalCode::Protocol => Some(OTHER),
            _ => None,
        };
        let unknown_name = matches!(code, RefusalCode::NoExport | RefusalCode::NotAllowed);
        Self { failed: NotMounted { remedy, ..failed }, unknown_name, refused: Some(refused) }
    }
}

impl From<ConnectError> for NoLink {
    fn from(error: ConnectError) -> Self {
        let reason = String::from(Reason::from(&error));
        match error {
            ConnectError::Refused { refused, .. } => Self::refused(&reason, refused),
            ConnectError::Away { .. } => {
                NotMounted { remedy: Some(LISTEN), ..NotMounted::unreachable(reason) }.into()
            }
            ConnectError::Closed { .. } | ConnectError::Silent { .. } => {
                NotMounted::unreachable(reason).into()
            }
            _ => NotMounted::new(reason).into(),
        }
    }
}

impl From<MemoryError> for NotMounted {
    fn from(error: MemoryError) -> Self {
        let reason = Reason::from(&error);
        match error {
            // No server has created the rendezvous page yet, or one is creating it now.
            MemoryError::Page { .. } => Self { remedy: Some(SERVE_MEMORY), ..Self::unreachable(reason) },
            _ => Self::new(reason),
        }
    }
}

fn not_joined(place: &MemoryLocation, error: &JoinError) -> NoLink {
    let reason = format!("{place}: {}", String::from(Reason::from(error)));
    match error {
        JoinError::Refused(refused) => NoLink::refused(&reason, refused.clone()),
        JoinError::Busy | JoinError::Silent | JoinError::Ended(_) => {
            NotMounted { remedy: Some(SERVE_MEMORY), ..NotMounted::unreachable(reason) }.into()
        }
        _ => NotMounted::new(reason).into(),
    }
}

impl From<NotMounted> for NoLink {
    fn from(failed: NotMounted) -> Self {
        Self { failed, unknown_name: false, refused: None }
    }
}

impl From<NotReachable> for NotMounted {
    fn from(NotReachable { is_transient, reason, file }: NotReachable) -> Self {
        match is_transient {
            true => {
                Self { remedy: Some(if file { SERVE_MEMORY } else { LISTEN }), ..Self::unreachable(reason) }
            }
            false => Self::new(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_is_tried_first() {
        let tried = |rest: &str| ends(rest).map(|end| rest[..end].to_owned()).collect::<Vec<_>>();
        assert_eq!(tried("/a/b/c"), ["/a/b/c", "/a/b", "/a", ""]);
        let long = "x".repeat(NAME_BYTES_MAX);
        assert_eq!(tried(&format!("/a/{long}")), ["/a", ""]);
        assert_eq!(tried("/a"), ["/a", ""]);
        assert_eq!(tried("/"), [""]);
    }
}
