//! `tombolo keys ca`, `issue`, `revoke` and `issued`: the certificates of NFS over TLS.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use tombolo_host_tls::{Authority, AuthorityError, Issued, Request};

use crate::assembly::hints::nfs::host_name;
use crate::certificates::authority_dir;
use crate::failure::{Failure, Outcome};

#[derive(Subcommand)]
pub enum TlsAction {
    /// Make a certificate authority.
    ///
    /// Its key (ca-key.pem) is all that is needed to be any of them: keep it where no server runs.
    Ca {
        #[command(flatten)]
        ca: CaArg,
    },
    /// Issue a certificate, to a client or to a server.
    ///
    /// The directory that it is put into has all that --tls-dir and tlsdir= take: ca.pem, cert.pem, key.pem,
    /// crl.pem.
    Issue {
        /// To whom. A server maps its clients by this name.
        #[arg(value_name = "NAME")]
        name: String,
        /// The name or address by which clients mount the server that it is for; repeatable. A client needs
        /// none.
        #[arg(long, value_name = "HOST")]
        host: Vec<String>,
        /// How long it is good.
        #[arg(long, value_name = "N", default_value_t = 365)]
        days: u32,
        /// Where to put it (by default NAME in the authority's directory).
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        #[command(flatten)]
        ca: CaArg,
    },
    /// Revoke all certificates that were issued to a name.
    ///
    /// Copy crl.pem, whose path is printed, to all servers (and clients) that shall refuse them: it counts
    /// for the next connection. Connections that are open stay open: restart the server to end them.
    Revoke {
        /// To whom they were issued.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        ca: CaArg,
    },
    /// List the certificates that were issued.
    Issued {
        #[command(flatten)]
        ca: CaArg,
    },
}

#[derive(Args)]
pub struct CaArg {
    /// The authority's directory (by default ca in $XDG_CONFIG_HOME/tombolo, for root /etc/tombolo/ca).
    #[arg(long = "ca", value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl TlsAction {
    pub fn run(self) -> Outcome {
        match self {
            Self::Ca { ca } => {
                let dir = ca.path()?;
                let host: String =
                    host_name().chars().filter(|c| c.is_ascii_alphanumeric() || "-.".contains(*c)).collect();
                let name: String = format!("tombolo-ca.{host}").chars().take(64).collect();
                Authority::create(&dir, &name).map_err(|error| failed("make an authority", &error))?;
                say(format_args!("made {}", dir.display()))
            }
            Self::Issue { name, host, days, out, ca } => {
                let dir = ca.path()?;
                let authority =
                    Authority::open(&dir).map_err(|error| failed("issue a certificate", &error))?;
                let out = out.unwrap_or_else(|| dir.join(&name));
                let until = SystemTime::now() + DAY.saturating_mul(days);
                let issued = authority.issue(&Request { name, hosts: host, until }, &out);
                let issued = issued.map_err(|error| failed("issue a certificate", &error))?;
                say(format_args!("issued {} {} in {}", issued.name, issued.serial, out.display()))
            }
            Self::Revoke { name, ca } => {
                let authority = Authority::open(&ca.path()?).map_err(|error| failed("revoke", &error))?;
                let count = authority.revoke(&name).map_err(|error| failed("revoke", &error))?;
                let list = authority.revocation_list();
                say(format_args!(
                    "revoked {count} of {name}: copy {} to those who shall refuse it",
                    list.display()
                ))
            }
            Self::Issued { ca } => {
                let issued = Authority::open(&ca.path()?).and_then(|authority| authority.issued());
                let issued = issued.map_err(|error| failed("list what was issued", &error))?;
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
        (None, Some(left_s)) => format!("good for {} days", left_s / DAY.as_secs()),
    };
    format!("{}  {}  {state}", issued.serial, issued.name)
}

impl CaArg {
    fn path(self) -> Result<PathBuf, Failure> {
        let found = self.dir.map_or_else(authority_dir, Ok);
        found.map_err(|why| Failure::cannot("find the authority", why).remedy("name its directory with --ca"))
    }
}

fn failed(doing: &str, error: &AuthorityError) -> Failure {
    Failure::cannot(doing, error)
}

fn say(line: std::fmt::Arguments<'_>) -> Outcome {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| Failure::cannot("print", &error))
}
