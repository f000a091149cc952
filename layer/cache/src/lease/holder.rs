//! What the lease file says: which cache holds the lease.

use std::fmt;
use std::time::Duration;

use super::life::Life;

/// The holder of a lease, as people know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The name of its host.
    pub host: String,
    /// The number of its process.
    pub process: String,
    /// When it took the lease, by its own clock.
    pub since: String,
    /// The name of its cache directory, which no other has but a copy.
    pub(crate) id: String,
    /// Where and when it runs.
    pub(crate) life: Box<Life>,
}

const VERSION_LINE: &str = "tombolo lease, version 1";

/// No more of such a file is read.
pub(super) const TEXT_BYTES_MAX: usize = 4096;

/// No more of a field is shown.
const FIELD_CHARS_MAX: usize = 128;

impl Holder {
    /// The lease file's text.
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

    /// What the text of a file says that any program may have written: fields that it lacks are empty.
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

    /// Whether it is the same life of the same cache, and not one before it or a copy.
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
    fn what_was_written_is_read_and_anything_else_is_no_holder() {
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
