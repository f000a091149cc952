//! The files that a side shows and trusts, and the sessions that it begins with them.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, pem};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use thiserror::Error as ThisError;
use tombolo_host_runtime::rate_limit::RateLimit;

use crate::session::Session;
use crate::{ALPN, TlsError};

/// The CAs that are trusted, one after the other.
pub(crate) const CA_FILE: &str = "ca.pem";
/// What is shown: the certificate, and what leads from it to its CA.
pub(crate) const CERTIFICATE_FILE: &str = "cert.pem";
pub(crate) const KEY_FILE: &str = "key.pem";
/// What the CAs have revoked. It need not be there, unless [`REVOKES`] stands in [`CA_FILE`].
pub(crate) const REVOKED_FILE: &str = "crl.pem";
/// The line before a CA that has lists (RFC 7468 §5.2 allows text there): without it a list that was lost
/// would be one that never was.
pub(crate) const REVOKES: &str = "# This CA revokes: crl.pem has to lie beside.\n";
const FILES: [&str; 4] = [CA_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE];

/// Why the files cannot be used.
#[derive(Debug, ThisError)]
pub enum SetupError {
    /// One cannot be read.
    #[error("{}", .path.display())]
    Read {
        /// It.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// One is no PEM, or has nothing of its kind in it.
    #[error("{}: no {what} in PEM", .path.display())]
    Pem {
        /// It.
        path: PathBuf,
        /// What should be in it.
        what: &'static str,
    },
    /// What is in them is of no use.
    #[error("{}", .dir.display())]
    Unusable {
        /// Where they are.
        dir: PathBuf,
        /// Why: the key is not the certificate's, say.
        source: rustls::Error,
    },
    /// The revocation lists are of no use.
    #[error("{}: {why}", .path.display())]
    Revoked {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// What a server is called in its certificate: a host's name or address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(ServerName<'static>);

/// No certificate can have this name.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[error("{0}: neither a host name nor an address")]
pub struct BadHostName(String);

impl FromStr for HostName {
    type Err = BadHostName;

    fn from_str(text: &str) -> Result<Self, BadHostName> {
        ServerName::try_from(text.to_owned()).map(Self).map_err(|_| BadHostName(text.to_owned()))
    }
}

/// The serving side: it shows its certificate and demands one.
#[derive(Debug)]
pub struct ServerTls(Loaded<ServerConfig>);

impl ServerTls {
    /// With the files in this directory.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn open(dir: &Path) -> Result<Self, SetupError> {
        Loaded::open(dir, server_config).map(Self::warned)
    }

    /// The same for NBD, which asks for TLS in words of its own and has no name in the handshake.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn open_for_nbd(dir: &Path) -> Result<Self, SetupError> {
        Loaded::open(dir, nameless_server_config).map(Self::warned)
    }

    fn warned(loaded: Loaded<ServerConfig>) -> Self {
        if !loaded.made.lock().unwrap_or_else(PoisonError::into_inner).revokes {
            let dir = loaded.dir.display();
            tracing::warn!(%dir, "there is no crl.pem: certificates of lost keys are good until they expire");
        }
        Self(loaded)
    }

    /// The server's side of a session, before its handshake.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn session(&self) -> Result<Session, TlsError> {
        let config = self.0.config();
        let names_rpc = !config.alpn_protocols.is_empty();
        Ok(Session::new(ServerConnection::new(config)?.into(), names_rpc))
    }
}

/// Whether a client shows a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presents {
    /// It does (`xprtsec=mtls`).
    Certificate,
    /// It only wants to see the server's (`xprtsec=tls`).
    Nothing,
}

/// The calling side, for one server.
#[derive(Debug)]
pub struct ClientTls {
    loaded: Loaded<ClientConfig>,
    server: ServerName<'static>,
}

impl ClientTls {
    /// With the files in this directory; the server's certificate must be for `host`, a name or an address.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn open(dir: &Path, host: HostName, presents: Presents) -> Result<Self, SetupError> {
        let config = match presents {
            Presents::Certificate => client_config,
            Presents::Nothing => anonymous_client_config,
        };
        Ok(Self { loaded: Loaded::open(dir, config)?, server: host.0 })
    }

    /// The same for NBD, which has no name in the handshake. A certificate is shown to servers that ask for
    /// one.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn open_for_nbd(dir: &Path, host: HostName) -> Result<Self, SetupError> {
        Ok(Self { loaded: Loaded::open(dir, nameless_client_config)?, server: host.0 })
    }

    /// The client's side of a session, before its handshake.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn session(&self) -> Result<Session, TlsError> {
        let config = self.loaded.config();
        let names_rpc = !config.alpn_protocols.is_empty();
        Ok(Session::new(ClientConnection::new(config, self.server.clone())?.into(), names_rpc))
    }
}

/// What was made of the files, and made again once they have changed.
struct Loaded<T> {
    dir: PathBuf,
    make: Make<T>,
    made: Mutex<Made<T>>,
    log: RateLimit,
}

type Lists = Vec<CertificateRevocationListDer<'static>>;
type Make<T> = fn(&Path, Lists) -> Result<T, SetupError>;

struct Made<T> {
    stamp: Stamp,
    /// A revocation list is among the files, and has to be from then on.
    revokes: bool,
    config: Arc<T>,
}

impl<T> Made<T> {
    /// Makes one of the files. A list has to be among them if one was `before`, or if a CA says that it
    /// revokes.
    fn of(dir: &Path, make: Make<T>, before: bool) -> Result<Self, SetupError> {
        // Before they are read: what changes meanwhile is read again.
        let stamp = stamp(dir);
        // An unreadable file is an error below.
        let authority = read(&dir.join(CA_FILE)).unwrap_or_default();
        let marks = |line: &[u8]| line == REVOKES.trim_end().as_bytes();
        let must_revoke = before || authority.windows(REVOKES.len() - 1).any(marks);
        let lists = revocation_lists(dir)?;
        let revokes = !lists.is_empty();
        if must_revoke && !revokes {
            let why =
                "it is missing, and certificates may be revoked in it: copy that of the CA there".into();
            return Err(SetupError::Revoked { path: dir.join(REVOKED_FILE), why });
        }
        Ok(Self { stamp, revokes, config: Arc::new(make(dir, lists)?) })
    }
}

/// By which a changed file is known: when each was written, and how long it is.
type Stamp = [Option<(SystemTime, u64)>; FILES.len()];

fn stamp(dir: &Path) -> Stamp {
    FILES.map(|file| {
        fs::metadata(dir.join(file)).ok().and_then(|meta| Some((meta.modified().ok()?, meta.len())))
    })
}

impl<T> Loaded<T> {
    fn open(dir: &Path, make: Make<T>) -> Result<Self, SetupError> {
        let made = Mutex::new(Made::of(dir, make, false)?);
        Ok(Self { dir: dir.to_owned(), make, made, log: RateLimit::default() })
    }

    /// What the files say now. While they are of no use it stays what they said before: a half-written file
    /// shall stop no session, and a lost list revokes on.
    fn config(&self) -> Arc<T> {
        let now = stamp(&self.dir);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.stamp != now {
            match Made::of(&self.dir, self.make, made.revokes) {
                Ok(anew) => *made = anew,
                Err(error) => {
                    if self.log.allow().is_some() {
                        let source = std::error::Error::source(&error).map(ToString::to_string);
                        tracing::error!(%error, source, "the TLS files changed and cannot be used: going on with those before");
                    }
                }
            }
        }
        made.config.clone()
    }
}

impl<T> fmt::Debug for Loaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("dir", &self.dir).finish_non_exhaustive()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// No session is resumed: each connection shows its certificate anew, or a revoked one would be good for as
/// long as a ticket is.
fn server_config(dir: &Path, lists: Lists) -> Result<ServerConfig, SetupError> {
    let unusable = |source| SetupError::Unusable { dir: dir.to_owned(), source };
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(dir)?, provider())
        .with_crls(lists)
        .only_check_end_entity_revocation()
        .build()
        .map_err(|error| SetupError::Revoked { path: dir.join(REVOKED_FILE), why: error.to_string() })?;
    let (certificates, key) = own(dir)?;
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(unusable)?.with_client_cert_verifier(verifier);
    let mut config = builder.with_single_cert(certificates, key).map_err(unusable)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

fn nameless_server_config(dir: &Path, lists: Lists) -> Result<ServerConfig, SetupError> {
    let mut config = server_config(dir, lists)?;
    config.alpn_protocols.clear();
    Ok(config)
}

fn client_config(dir: &Path, lists: Lists) -> Result<ClientConfig, SetupError> {
    let (certificates, key) = own(dir)?;
    client_config_of(dir, lists, |builder| builder.with_client_auth_cert(certificates, key))
}

fn nameless_client_config(dir: &Path, lists: Lists) -> Result<ClientConfig, SetupError> {
    let mut config = client_config(dir, lists)?;
    config.alpn_protocols.clear();
    Ok(config)
}

fn anonymous_client_config(dir: &Path, lists: Lists) -> Result<ClientConfig, SetupError> {
    client_config_of(dir, lists, |builder| Ok(builder.with_no_client_auth()))
}

type ClientBuilder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn client_config_of(
    dir: &Path,
    lists: Lists,
    finish: impl FnOnce(ClientBuilder) -> Result<ClientConfig, rustls::Error>,
) -> Result<ClientConfig, SetupError> {
    let unusable = |source| SetupError::Unusable { dir: dir.to_owned(), source };
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(dir)?, provider())
        .with_crls(lists)
        .only_check_end_entity_revocation()
        .build()
        .map_err(|error| SetupError::Revoked { path: dir.join(REVOKED_FILE), why: error.to_string() })?;
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let mut config = finish(builder.map_err(unusable)?.with_webpki_verifier(verifier)).map_err(unusable)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Our certificate with what leads to its CA, and its key.
fn own(dir: &Path) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), SetupError> {
    let path = dir.join(KEY_FILE);
    let key = PrivateKeyDer::from_pem_slice(&read(&path)?);
    let key = key.map_err(|_| SetupError::Pem { path, what: "private key" })?;
    Ok((all(&dir.join(CERTIFICATE_FILE), "certificate")?, key))
}

fn roots(dir: &Path) -> Result<Arc<RootCertStore>, SetupError> {
    let mut roots = RootCertStore::empty();
    for certificate in all(&dir.join(CA_FILE), "certificate")? {
        roots.add(certificate).map_err(|source| SetupError::Unusable { dir: dir.to_owned(), source })?;
    }
    Ok(Arc::new(roots))
}

fn revocation_lists(dir: &Path) -> Result<Lists, SetupError> {
    let path = dir.join(REVOKED_FILE);
    // That it is not there must be certain: what cannot be seen may revoke.
    match path.try_exists() {
        Ok(false) => Ok(Vec::new()),
        _ => all(&path, "revocation list"),
    }
}

/// All that a file has of one kind, at least one.
fn all<T: PemObject>(path: &Path, what: &'static str) -> Result<Vec<T>, SetupError> {
    let found: Result<Vec<T>, pem::Error> = T::pem_slice_iter(&read(path)?).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| SetupError::Pem { path: path.to_owned(), what })
}

fn read(path: &Path) -> Result<Vec<u8>, SetupError> {
    fs::read(path).map_err(|source| SetupError::Read { path: path.to_owned(), source })
}
