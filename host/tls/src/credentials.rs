//! Certificate files of a server ([`ServerTls`]) or client ([`ClientTls`]), and the sessions begun with them.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, pem};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use thiserror::Error as ThisError;
use tombolo_host_runtime::lock;
use tombolo_host_runtime::rate_limit::RateLimit;

use crate::session::Session;
use crate::{ALPN, TlsError};

/// Trusted CA certificates, concatenated.
pub(crate) const CA_FILE: &str = "ca.pem";
/// Own certificate, followed by its chain up to the CA.
pub(crate) const CERTIFICATE_FILE: &str = "cert.pem";
pub(crate) const KEY_FILE: &str = "key.pem";
/// Revocation lists of the CAs. Optional, unless [`CA_FILE`] contains [`REVOKES`] or lists were used before.
pub(crate) const REVOKED_FILE: &str = "crl.pem";
/// Line before the certificate of a CA that issues revocation lists (RFC 7468 §5.2 allows text there). A
/// missing [`REVOKED_FILE`] is then an error; without the line it could not be known that one was lost.
pub(crate) const REVOKES: &str = "# This CA revokes: crl.pem has to lie beside.\n";
const FILES: [&str; 4] = [CA_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE];

/// Reason why the files cannot be used.
#[derive(Debug, ThisError)]
pub enum SetupError {
    /// A file cannot be read.
    #[error("{}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// System error.
        source: io::Error,
    },
    /// A file is not PEM, or lacks the required object.
    #[error("{}: no {what} in PEM", .path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Required object.
        what: &'static str,
    },
    /// The contents are unusable.
    #[error("{}", .dir.display())]
    Unusable {
        /// The directory.
        dir: PathBuf,
        /// The reason, such as a key that does not match the certificate.
        source: rustls::Error,
    },
    /// The revocation lists are unusable, or required and missing.
    #[error("{}: {why}", .path.display())]
    Revoked {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

/// Name of a server in its certificate: a host name or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(ServerName<'static>);

/// Invalid host name.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[error("{0}: neither a host name nor an address")]
pub struct BadHostName(String);

impl FromStr for HostName {
    type Err = BadHostName;

    fn from_str(text: &str) -> Result<Self, BadHostName> {
        ServerName::try_from(text.to_owned()).map(Self).map_err(|_| BadHostName(text.to_owned()))
    }
}

/// Configuration of the server side, which presents a certificate and requires one.
#[derive(Debug)]
pub struct ServerTls(Loaded<ServerConfig>);

impl ServerTls {
    /// Loads the files in a directory, for RPC.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn open(dir: &Path) -> Result<Self, SetupError> {
        Loaded::open(dir, server_config).map(Self::warned)
    }

    /// Loads the files for NBD, which negotiates TLS itself and uses no ALPN.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn open_for_nbd(dir: &Path) -> Result<Self, SetupError> {
        Loaded::open(dir, nameless_server_config).map(Self::warned)
    }

    fn warned(loaded: Loaded<ServerConfig>) -> Self {
        if !lock(&loaded.made).has_revocation_list {
            let dir = loaded.dir.display();
            tracing::warn!(%dir, "no crl.pem: certificates of lost keys stay valid until they expire");
        }
        Self(loaded)
    }

    /// Returns the server's side of a session, before its handshake.
    ///
    /// # Errors
    /// Random numbers are not available.
    pub fn session(&self) -> Result<Session, TlsError> {
        let config = self.0.config();
        let requires_rpc = !config.alpn_protocols.is_empty();
        Ok(Session::new(ServerConnection::new(config)?.into(), requires_rpc))
    }
}

/// Authentication of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presents {
    /// By a certificate (`xprtsec=mtls`).
    Certificate,
    /// The client presents no certificate; only the server is authenticated (`xprtsec=tls`).
    Nothing,
}

/// Configuration of the client side, for one server.
#[derive(Debug)]
pub struct ClientTls {
    loaded: Loaded<ClientConfig>,
    server: ServerName<'static>,
}

impl ClientTls {
    /// Loads the files in a directory, for RPC; the server's certificate must be for `host`, a name or an
    /// address.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn open(dir: &Path, host: HostName, presents: Presents) -> Result<Self, SetupError> {
        let config = match presents {
            Presents::Certificate => client_config,
            Presents::Nothing => anonymous_client_config,
        };
        Ok(Self { loaded: Loaded::open(dir, config)?, server: host.0 })
    }

    /// Loads the files for NBD, which uses no ALPN. A certificate is presented to servers that request one.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn open_for_nbd(dir: &Path, host: HostName) -> Result<Self, SetupError> {
        Ok(Self { loaded: Loaded::open(dir, nameless_client_config)?, server: host.0 })
    }

    /// Returns the client's side of a session, before its handshake.
    ///
    /// # Errors
    /// Random numbers are not available.
    pub fn session(&self) -> Result<Session, TlsError> {
        let config = self.loaded.config();
        let requires_rpc = !config.alpn_protocols.is_empty();
        Ok(Session::new(ClientConnection::new(config, self.server.clone())?.into(), requires_rpc))
    }
}

/// A configuration loaded from files, and reloaded when they change.
struct Loaded<T> {
    dir: PathBuf,
    /// Function that builds the configuration from the files in a directory and the revocation lists.
    make: Make<T>,
    made: Mutex<LoadedFiles<T>>,
    log: RateLimit,
}

type Lists = Vec<CertificateRevocationListDer<'static>>;
type Make<T> = fn(&Path, Lists) -> Result<T, SetupError>;

struct LoadedFiles<T> {
    stamp: Stamp,
    /// `true` if the files contain a revocation list, which is required from then on.
    has_revocation_list: bool,
    config: Arc<T>,
}

impl<T> LoadedFiles<T> {
    /// Loads the files. A revocation list is required if one was present `before`, or if a CA has the line
    /// [`REVOKES`].
    fn of(dir: &Path, make: Make<T>, before: bool) -> Result<Self, SetupError> {
        // The stamp is taken before reading, so that concurrent changes cause a reload.
        let stamp = stamp(dir);
        // An unreadable file is reported by `make`, which reads it again.
        let authority = read(&dir.join(CA_FILE)).unwrap_or_default();
        let marks = |line: &[u8]| line == REVOKES.trim_end().as_bytes();
        let must_revoke = before || authority.windows(REVOKES.len() - 1).any(marks);
        let lists = revocation_lists(dir)?;
        let has_revocation_list = !lists.is_empty();
        if must_revoke && !has_revocation_list {
            let why = "missing, although it may revoke certificates: copy it from the CA".into();
            return Err(SetupError::Revoked { path: dir.join(REVOKED_FILE), why });
        }
        Ok(Self { stamp, has_revocation_list, config: Arc::new(make(dir, lists)?) })
    }
}

/// Times of modification and lengths of the files, to detect changes.
type Stamp = [Option<(SystemTime, u64)>; FILES.len()];

fn stamp(dir: &Path) -> Stamp {
    FILES.map(|file| {
        fs::metadata(dir.join(file)).ok().and_then(|meta| Some((meta.modified().ok()?, meta.len())))
    })
}

impl<T> Loaded<T> {
    fn open(dir: &Path, make: Make<T>) -> Result<Self, SetupError> {
        let made = Mutex::new(LoadedFiles::of(dir, make, false)?);
        Ok(Self { dir: dir.to_owned(), make, made, log: RateLimit::default() })
    }

    /// Returns the current configuration. While the files are unusable the previous one is retained: a
    /// half-written file must not prevent sessions, and a lost list must not reinstate certificates.
    fn config(&self) -> Arc<T> {
        let now = stamp(&self.dir);
        let mut made = lock(&self.made);
        if made.stamp != now {
            match LoadedFiles::of(&self.dir, self.make, made.has_revocation_list) {
                Ok(reloaded) => *made = reloaded,
                Err(error) => {
                    if self.log.allow().is_some() {
                        let source = std::error::Error::source(&error).map(ToString::to_string);
                        tracing::error!(%error, source, "changed TLS files are unusable: keeping the previous ones");
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

/// Returns the configuration of a server. Sessions are never resumed: each connection presents its
/// certificate, as a revoked one would otherwise stay valid for the life of a ticket.
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

/// Returns the configuration of an NBD server: without ALPN.
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

/// Returns the own certificate with its chain, and its key.
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
    // The list counts as absent only if that is certain: a file that cannot be examined may contain
    // revocations.
    match path.try_exists() {
        Ok(false) => Ok(Vec::new()),
        _ => all(&path, "revocation list"),
    }
}

/// Returns all objects of one kind in a file, at least one.
fn all<T: PemObject>(path: &Path, what: &'static str) -> Result<Vec<T>, SetupError> {
    let found: Result<Vec<T>, pem::Error> = T::pem_slice_iter(&read(path)?).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| SetupError::Pem { path: path.to_owned(), what })
}

fn read(path: &Path) -> Result<Vec<u8>, SetupError> {
    fs::read(path).map_err(|source| SetupError::Read { path: path.to_owned(), source })
}
