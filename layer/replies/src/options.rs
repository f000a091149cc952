use std::time::Duration;

/// How the layer behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What is kept of operations that must not run twice: those that make, remove or move a name, and
    /// guarded or cutting changes of attributes.
    pub durable: Limits,
    /// What is kept of all others, writes above all, in memory only. Apart, so that a stream of writes does
    /// not push the former out.
    pub fleeting: Limits,
}

/// How long, and how many, outcomes are kept. Past them a duplicate is a new request and gets the plain
/// answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of all clients together. When there are so many, old ones make room.
    pub entries: usize,
    /// Entries of one client. One that numbers its requests makes room for its own when it has so many: the
    /// slots of a link are no more. An address may have more until there are as many as may be.
    pub entries_per_client: usize,
    /// Time since the answer.
    pub age: Duration,
}

impl Default for Limits {
    /// 16,384 entries, 1,024 of one client when all are in use, for two minutes: a Linux client sends a call
    /// again after one minute over TCP and has at most some hundred under way.
    fn default() -> Self {
        Self { entries: 16_384, entries_per_client: 1024, age: Duration::from_secs(120) }
    }
}
