//! `tombolo keys ca`, `issue`, `revoke` and `issued`: certificates of NFS over TLS.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use tombolo_host_tls::{Authority, Issued, Request};

use crate::assembly::hints::nfs::host_name;
use crate::certificates::authority_dir;
use crate::failure::{Failure, OrCannot, Outcome};

#[derive(Subcommand)]
pub enum TlsAction {
    /// Create a certificate authority.
    ///
    /// The holder of its key (ca-key.pem) can impersonate every client and server: store it where no server
    /// runs. The authority is valid for ten years, as is each crl.pem.
    Ca {
        #[command(flatten)]
        ca: CaArg,
    },
    /// Issue a certificate to a client or a server.
    ///
    /// The output directory has all files for --tls-dir and tlsdir=: ca.pem, cert.pem, key.pem, crl.pem.
    Issue {
        /// Subject. A server maps its clients by this name.
        #[arg(value_name = "NAME")]
        name: String,
        /// Name or address under which clients reach the server; repeatable. Not needed for clients.
        #[arg(long, value_name = "HOST")]
        host: Vec<String>,
        /// Days of validity.
        #[arg(long, value_name = "N", default_value_t = 365)]
        days: u32,
        /// Output directory (by default NAME in the authority's directory).
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        #[command(flatten)]
        ca: CaArg,
    },
    /// Revoke all certificates of a subject.
    ///
    /// Copy crl.pem, whose path is printed, to all servers (and clients) that must refuse them; it applies to
    /// new connections. Restart a server to end open ones.
    Revoke {
        /// Subject of the certificates.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        ca: CaArg,
    },
    /// List issued certificates.
    Issued {
        #[command(flatten)]
        ca: CaArg,
    },
}

#[derive(Args)]
pub struct CaArg {
    /// Directory of the authority (by default ca in $XDG_CONFIG_HOME/tombolo, for root /etc/tombolo/ca).
    #[arg(long = "ca", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Hides the global option --state of `tombolo keys` in commands for certificates, which ignore it.
    #[arg(id = "state", long = "state", hide = true)]
    _state: Option<PathBuf>,
    /// Hides the global option --server likewise.
    #[arg(id = "server", long = "server", hide = true)]
    _server: Option<String>,
}

impl TlsAction {
    pub fn run(self) -> Outcome {
        match self {
            Self::Ca { ca } => {
                let dir = ca.path()?;
                let host: String =
                    host_name().chars().filter(|c| c.is_ascii_alphanumeric() || "-.".contains(*c)).collect();
                let name: String = format!("tombolo-ca.{host}").chars().take(64).collect();
                Authority::create(&dir, &name).or_cannot("create an authority")?;
                say(format_args!("created {}", dir.display()))
            }
            Self::Issue { name, host, days, out, ca } => {
                let dir = ca.path()?;
                let authority = Authority::open(&dir).or_cannot("issue a certificate")?;
                let out = out.unwrap_or_else(|| dir.join(&name));
                let until = SystemTime::now() + DAY.saturating_mul(days);
                let issued = authority.issue(&Request { name, hosts: host, until }, &out);
                let issued = issued.or_cannot("issue a certificate")?;
                say(format_args!("issued {} {} in {}", issued.name, issued.serial, out.display()))
            }
            Self::Revoke { name, ca } => {
                let authority = Authority::open(&ca.path()?).or_cannot("revoke")?;
                let count = authority.revoke(&name).or_cannot("revoke")?;
                let list = authority.revocation_list();
                say(format_args!(
                    "revoked {count} of {name}: copy {} to all servers and clients that must refuse them",
                    list.display()
                ))
            }
            Self::Issued { ca } => {
                let issued = Authority::open(&ca.path()?).and_then(|authority| authority.issued());
                let issued = issued.or_cannot("list issued certificates")?;
                issued.iter().try_for_each(|issued| say(format_args!("{}", described(issued))))
            }
        }
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn described(issued: &Issued) -> String {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let state = match (issued.revoked_s, issued.ends_s.checked_sub(now_s)) {
        (Some(_), _) => "revoked".into(),
        (None, None) => "expired".into(),
        (None, Some(left_s)) => format!("valid for {} days", left_s / DAY.as_secs()),
    };
    format!("{}  {}  {state}", issued.serial, issued.name)
}

impl CaArg {
    fn path(self) -> Result<PathBuf, Failure> {
        let found = self.dir.map_or_else(authority_dir, Ok);
        found.map_err(|why| Failure::cannot("find the authority", why).remedy("name its directory with --ca"))
    }
}

fn say(line: std::fmt::Arguments<'_>) -> Outcome {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).or_cannot("print")
}
