//! System log of the processes of a background mount, the only ones that log to `Destination::Background`.
//! Each line is a datagram to `/dev/log`, where journald or another syslog daemon listens. A datagram begins
//! with the priority (RFC 3164 §4.1.1) and, unlike those of syslog(3), has no time, which the daemon adds.
//! Without a daemon, or while it is busy, lines do not reach the system log, but the log file has them.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Socket of the syslog daemon, as in syslog(3).
pub(crate) const PLACE: &str = "/dev/log";

/// `true` once this process has left its terminal: before that the user reads standard error.
static IN_BACKGROUND: AtomicBool = AtomicBool::new(false);

pub(crate) fn begin() {
    IN_BACKGROUND.store(true, Ordering::Relaxed);
}

/// Writer that sends each line as a datagram.
pub(crate) struct Syslog {
    socket: UnixDatagram,
    place: PathBuf,
}

impl Syslog {
    pub(crate) fn new(place: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // A busy daemon must not block the caller.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, place: place.to_owned() })
    }
}

/// Writer of one line of the log, with the severity of its event.
pub(crate) struct Line<'a> {
    syslog: &'a Syslog,
    severity: u8,
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { syslog: self, severity: INFORMATIONAL }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line<'a> {
        let severity = match *meta.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => INFORMATIONAL,
            Level::DEBUG | Level::TRACE => 7,
        };
        Line { syslog: self, severity }
    }
}

const INFORMATIONAL: u8 = 6;

/// Facility of system daemons.
const FACILITY: u8 = 3;

impl Write for Line<'_> {
    /// Sends a line, which `tracing_subscriber` writes in one call, once this process has left its terminal.
    /// Never fails: the log file has the line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if IN_BACKGROUND.load(Ordering::Relaxed) {
            let priority = FACILITY * 8 + self.severity;
            let mut datagram = format!("<{priority}>tombolo[{}]: ", std::process::id()).into_bytes();
            datagram.extend_from_slice(line.trim_ascii_end());
            let _ = self.syslog.socket.send_to(&datagram, &self.syslog.place);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn syslog_lines_are_datagrams_after_detaching() {
        let folder = tempfile::tempdir().expect("a directory");
        let place = folder.path().join("log");
        let layer = crate::logging::syslog_layer(&place).expect("a socket");
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::error!("no daemon listens");
            let daemon = UnixDatagram::bind(&place).expect("bind");
            daemon.set_nonblocking(true).expect("set");
            tracing::error!("the terminal is still there");
            begin();
            tracing::warn!(server = "nas", "not responding");
            let mut datagram = [0; 200];
            let len = daemon.recv(&mut datagram).expect("a line");
            let text = String::from_utf8_lossy(&datagram[..len]);
            let (head, said) = text.split_once("]: ").expect("a head");
            assert_eq!(head, format!("<28>tombolo[{}", std::process::id()));
            assert!(said.ends_with("not responding server=\"nas\"") && !said.contains('\u{1b}'), "{said}");
            assert!(daemon.recv(&mut datagram).is_err(), "one line, one datagram");
        });
    }
}
