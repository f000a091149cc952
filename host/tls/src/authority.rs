//! A private certificate authority in a directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType,
    SerialNumber,
};
use rustix::fs::{FlockOperation, flock};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use thiserror::Error as ThisError;
use time::OffsetDateTime;

use crate::certificate::{common_name, hexadecimal};
use crate::credentials::{CA_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE, REVOKES};

const CA_KEY_FILE: &str = "ca-key.pem";
/// Index of issued certificates, one per line: serial number, expiry and revocation in Unix seconds (`-` if
/// not revoked), name.
const INDEX_FILE: &str = "issued";

/// Validity of a CA, and time until the next update that its revocation lists announce: ten years.
const CA_LIFE: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);
/// Tolerance for clock differences: certificates are valid from this long before their issue.
const SKEW: Duration = Duration::from_secs(60 * 60);
/// Length of serial numbers, enough to be unique and unpredictable (RFC 5280 §4.1.2.2 allows 20).
const SERIAL_BYTES: usize = 16;

/// Failure of an authority's operation.
#[derive(Debug, ThisError)]
pub enum AuthorityError {
    /// A file operation failed.
    #[error("{}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// System error.
        source: io::Error,
    },
    /// The directory has an authority already; a new one would make its certificates invalid.
    #[error("{}: authority already exists", .0.display())]
    Exists(PathBuf),
    /// The directory has no authority.
    #[error("{}: no authority; create one with `tombolo keys ca`", .0.display())]
    None(PathBuf),
    /// The name is unsuitable for a directory and a subject.
    #[error("{0:?}: a name is made of letters, digits, dots, hyphens and underscores")]
    Name(String),
    /// A file is malformed.
    #[error("{}: malformed", .0.display())]
    Malformed(PathBuf),
    /// No certificate was issued to this name, or all of them are already revoked.
    #[error("no valid certificate of {0}")]
    NotIssued(String),
    /// The certificate could not be created, for instance because of an invalid host name.
    #[error("cannot make the certificate")]
    Make(#[from] rcgen::Error),
    /// Random numbers are not available.
    #[error("random numbers not available")]
    Random(#[source] tombolo_sys::Errno),
}

type Result<T> = std::result::Result<T, AuthorityError>;

/// A certificate authority, locked against other processes.
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// Lock of the index: one process at a time changes it.
    _lock: File,
}

/// Parameters of a certificate to be issued.
#[derive(Clone, Debug)]
pub struct Request {
    /// Common name of the subject.
    pub name: String,
    /// Names and addresses of a server; empty for a client.
    pub hosts: Vec<String>,
    /// Time until which the certificate is valid.
    pub until: SystemTime,
}

/// An issued certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// Common name of the subject.
    pub name: String,
    /// Serial number, in hexadecimal.
    pub serial: String,
    /// Expiry, in Unix seconds.
    pub ends_s: u64,
    /// Time of revocation, in Unix seconds.
    pub revoked_s: Option<u64>,
}

impl Authority {
    /// Creates an authority; `name` is its certificate's subject.
    ///
    /// # Errors
    /// The name is invalid, or the directory already has an authority or cannot be written to.
    pub fn create(dir: &Path, name: &str) -> Result<Self> {
        let name = checked(name)?;
        fs::create_dir_all(dir).map_err(|source| AuthorityError::File { path: dir.into(), source })?;
        let lock = locked(dir)?;
        if dir.join(CA_KEY_FILE).exists() || dir.join(CA_FILE).exists() {
            return Err(AuthorityError::Exists(dir.into()));
        }
        let key = KeyPair::generate()?;
        write(&dir.join(CA_KEY_FILE), key.serialize_pem().as_bytes(), 0o600)?;
        let params = ca_params(name)?;
        write(&dir.join(CA_FILE), params.self_signed(&key)?.pem().as_bytes(), 0o644)?;
        let authority = Self { dir: dir.into(), issuer: Issuer::new(params, key), _lock: lock };
        authority.put(&[])?;
        Ok(authority)
    }

    /// Opens the authority in a directory.
    ///
    /// # Errors
    /// The directory has no authority, or its files are unusable.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(CA_KEY_FILE);
        let key = match fs::read_to_string(&path) {
            Ok(key) => KeyPair::from_pem(&key).map_err(|_| AuthorityError::Malformed(path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(AuthorityError::None(dir.into()));
            }
            Err(source) => return Err(AuthorityError::File { path, source }),
        };
        let lock = locked(dir)?;
        let path = dir.join(CA_FILE);
        let malformed = || AuthorityError::Malformed(path.clone());
        let certificate = CertificateDer::from_pem_slice(&read(&path)?).map_err(|_| malformed())?;
        let certificate = webpki::EndEntityCert::try_from(&certificate).map_err(|_| malformed())?;
        let name = common_name(certificate.subject()).ok_or_else(malformed)?;
        Ok(Self { dir: dir.into(), issuer: Issuer::new(ca_params(name)?, key), _lock: lock })
    }

    /// Issues a certificate, and writes it with its key, the CA and the revocation list to `out`.
    ///
    /// # Errors
    /// A name is invalid, random numbers are not available, or a file cannot be read or written.
    pub fn issue(&self, request: &Request, out: &Path) -> Result<Issued> {
        let name = checked(&request.name)?;
        let mut serial = [0; SERIAL_BYTES];
        tombolo_sys::random::fill(&mut serial).map_err(AuthorityError::Random)?;
        // The serial number is positive and of fixed length, whatever the random bytes (RFC 5280 §4.1.2.2).
        serial[0] = serial[0] & 0x3f | 0x40;
        let ends_s = unix_s(request.until);
        let mut params = params(name, ends_s)?;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        if !request.hosts.is_empty() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        for host in &request.hosts {
            params.subject_alt_names.push(match IpAddr::from_str(host) {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(host.as_str().try_into()?),
            });
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let issued = Issued { name: name.into(), serial: hexadecimal(&serial), ends_s, revoked_s: None };
        // The index is written first: a certificate missing from it could not be revoked.
        let mut index = self.issued()?;
        index.push(issued.clone());
        self.put(&index)?;
        fs::create_dir_all(out).map_err(|source| AuthorityError::File { path: out.into(), source })?;
        write(&out.join(KEY_FILE), key.serialize_pem().as_bytes(), 0o600)?;
        write(&out.join(CERTIFICATE_FILE), certificate.pem().as_bytes(), 0o644)?;
        write(&out.join(REVOKED_FILE), &read(&self.revocation_list())?, 0o644)?;
        let authority = [REVOKES.as_bytes(), &read(&self.dir.join(CA_FILE))?].concat();
        write(&out.join(CA_FILE), &authority, 0o644)?;
        Ok(issued)
    }

    /// Revokes all certificates of a name that are not revoked, and returns their number. `crl.pem` lists all
    /// revoked certificates, for the peers that must refuse them.
    ///
    /// # Errors
    /// There are no such certificates, or a file cannot be read or written.
    pub fn revoke(&self, name: &str) -> Result<usize> {
        let mut index = self.issued()?;
        let now = now_s();
        let good = index.iter_mut().filter(|issued| issued.name == name && issued.revoked_s.is_none());
        let count = good.map(|issued| issued.revoked_s = Some(now)).count();
        if count == 0 {
            return Err(AuthorityError::NotIssued(name.into()));
        }
        self.put(&index)?;
        Ok(count)
    }

    /// Returns the path of the revocation list.
    #[must_use]
    pub fn revocation_list(&self) -> PathBuf {
        self.dir.join(REVOKED_FILE)
    }

    /// Returns all issued certificates, the oldest first.
    ///
    /// # Errors
    /// The index cannot be read, or is malformed.
    pub fn issued(&self) -> Result<Vec<Issued>> {
        let path = self.dir.join(INDEX_FILE);
        let text = String::from_utf8(read(&path)?).map_err(|_| AuthorityError::Malformed(path.clone()))?;
        text.lines()
            .map(|line| Issued::parse(line).ok_or_else(|| AuthorityError::Malformed(path.clone())))
            .collect()
    }

    /// Writes the index, and the revocation list derived from it.
    fn put(&self, index: &[Issued]) -> Result<()> {
        let lines: String = index.iter().map(Issued::line).collect();
        write(&self.dir.join(INDEX_FILE), lines.as_bytes(), 0o644)?;
        let revoked = |issued: &Issued| {
            Some(RevokedCertParams {
                serial_number: SerialNumber::from_slice(&bytes(&issued.serial)?),
                revocation_time: date(issued.revoked_s?),
                reason_code: None,
                invalidity_date: None,
            })
        };
        let list = CertificateRevocationListParams {
            this_update: date(now_s().saturating_sub(SKEW.as_secs())),
            next_update: date(now_s() + CA_LIFE.as_secs()),
            crl_number: SerialNumber::from(now_s()),
            issuing_distribution_point: None,
            revoked_certs: index.iter().filter_map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        write(&self.revocation_list(), list.signed_by(&self.issuer)?.pem()?.as_bytes(), 0o644)
    }
}

impl Issued {
    fn line(&self) -> String {
        let revoked = self.revoked_s.map_or_else(|| "-".into(), |time| time.to_string());
        format!("{} {} {revoked} {}\n", self.serial, self.ends_s, self.name)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let serial = words.next().filter(|serial| bytes(serial).is_some())?.to_owned();
        let ends_s = words.next()?.parse().ok()?;
        let revoked_s = match words.next()? {
            "-" => None,
            time => Some(time.parse().ok()?),
        };
        Some(Self { name: words.next()?.to_owned(), serial, ends_s, revoked_s })
    }
}

fn bytes(hexadecimal: &str) -> Option<Vec<u8>> {
    let digits = hexadecimal.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// Validates a name, which is also used as a file name and so must contain no path.
fn checked(name: &str) -> Result<&str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_good = (1..=64).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with('.');
    if is_good { Ok(name) } else { Err(AuthorityError::Name(name.into())) }
}

fn params(name: &str, ends_s: u64) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date(now_s().min(ends_s).saturating_sub(SKEW.as_secs()));
    params.not_after = date(ends_s);
    Ok(params)
}

fn ca_params(name: &str) -> Result<CertificateParams> {
    let mut params = params(name, now_s() + CA_LIFE.as_secs())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn now_s() -> u64 {
    unix_s(SystemTime::now())
}

fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn date(unix_s: u64) -> OffsetDateTime {
    i64::try_from(unix_s).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok()).unwrap_or(LAST_DATE)
}

/// End of the year 9999: "no end" in RFC 5280 §4.1.2.5.
const LAST_DATE: OffsetDateTime = match OffsetDateTime::from_unix_timestamp(253_402_300_799) {
    Ok(date) => date,
    Err(_) => OffsetDateTime::UNIX_EPOCH,
};

fn locked(dir: &Path) -> Result<File> {
    let failed = |source: io::Error| AuthorityError::File { path: dir.into(), source };
    let lock = File::open(dir).map_err(failed)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    Ok(lock)
}

/// Writes a file atomically, also with respect to crashes.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let failed = |source| AuthorityError::File { path: path.into(), source };
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|source| AuthorityError::File { path: path.into(), source })
}
