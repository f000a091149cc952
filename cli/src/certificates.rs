//! Default directories of certificates.

use std::env;
use std::path::PathBuf;

use tombolo_sys::creds;

/// Remedy for a server without usable certificates.
pub const GIVE_TLS_DIR: &str =
    "give the directory of ca.pem, cert.pem and key.pem with --tls-dir (tombolo keys issue makes one)";

/// Returns the directory of the certificates that a client or server presents and trusts.
pub fn tls_dir() -> Result<PathBuf, String> {
    configuration().map(|dir| dir.join("tls"))
}

/// Returns the directory of a certificate authority.
pub fn authority_dir() -> Result<PathBuf, String> {
    configuration().map(|dir| dir.join("ca"))
}

fn configuration() -> Result<PathBuf, String> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let (uid, _) = creds::own_ids();
    match (absolute("XDG_CONFIG_HOME"), absolute("HOME")) {
        (Some(configuration), _) => Ok(configuration.join("tombolo")),
        (None, _) if uid == 0 => Ok(PathBuf::from("/etc/tombolo")),
        (None, Some(home)) => Ok(home.join(".config/tombolo")),
        (None, None) => Err("no directory for certificates: neither XDG_CONFIG_HOME nor HOME is set".into()),
    }
}
