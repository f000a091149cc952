//! The content of the lease file, which names the holder.

use std::fmt;
use std::time::Duration;

use super::life::Life;

/// Holder of a lease, described for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Name of the holder's host.
    pub host: String,
    /// Number of the holder's process.
    pub process: String,
    /// Time of acquisition, by the holder's clock.
    pub since: String,
    /// Id of the holder's cache directory, which only copies of that directory have too.
    pub(crate) id: String,
    /// Identification of the holder's process.
    pub(crate) life: Box<Life>,
}

const VERSION_LINE: &str = "tombolo lease, version 1";

/// Maximum size of a lease file that is read, in bytes.
pub(super) const TEXT_BYTES_MAX: usize = 4096;

/// Maximum length of a field, in characters, as fields are shown to people.
const FIELD_CHARS_MAX: usize = 128;

impl Holder {
    /// Returns the text of the holder's lease file, which explains the lease to people.
    pub(super) fn text(&self, refresh: Duration) -> String {
        let Self { host, process, since, id, life } = self;
        let Life { machine, boot, namespace, started, place } = &**life;
        format!(
            "{VERSION_LINE}\nhost: {host}\nprocess: {process}\nsince: {since}\nid: {id}\n\
            machine: {machine}\nboot: {boot}\nnamespace: {namespace}\nstarted: {started}\nplace: {place}\n\n\
            This Tombolo proxy caches the whole tree under --contract exclusive, which assumes that all changes go through it.\n\
            It renews the times of this file every {} seconds and removes the file when it ends. After an unclean end, another\n\
            proxy can take over the lease after a while, or at once with --take-lease.\n",
            refresh.as_secs_f64()
        )
    }

    /// Parses the text of a lease file, which any program may have written. Missing fields are empty.
    pub(super) fn read(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            let shown = value.unwrap_or_default().chars().filter(|c| c.is_ascii_graphic() || *c == ' ');
            shown.take(FIELD_CHARS_MAX).collect()
        };
        let life = Box::new(Life {
            machine: field("machine"),
            boot: field("boot"),
            namespace: field("namespace"),
            started: field("started"),
            place: field("place"),
        });
        let (host, process, since, id) = (field("host"), field("process"), field("since"), field("id"));
        Self { host, process, since, id, life }
    }

    /// Returns `true` if `other` is the same process with the same cache directory, not an earlier one or a
    /// copy.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.id, &self.process, &self.life) == (&other.id, &other.process, &other.life)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.is_empty() {
            true => f.write_str("an unnamed holder"),
            false => write!(f, "process {} on {} since {}", self.process, self.host, self.since),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_survives_encoding_and_other_text_is_rejected() {
        let text = |text: &str| text.to_owned();
        let life = Box::new(Life::of_this_process(text("0a0b")));
        let holder =
            Holder { host: text("ship"), process: text("7"), since: text("1 May"), id: text("00ff"), life };
        assert_eq!(Holder::read(holder.text(Duration::from_secs(10)).as_bytes()), holder);
        assert_eq!(holder.to_string(), "process 7 on ship since 1 May");
        assert_eq!(Holder::read(b"\xff\0 anything"), Holder::default());
        let steering = Holder::read(format!("host: a\u{1b}[2J{}\n", "b".repeat(9999)).as_bytes());
        assert!(steering.host.starts_with("a[2Jb") && steering.host.len() == FIELD_CHARS_MAX);
    }
}
