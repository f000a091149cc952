//! Parser for the output of `strace -f -yy`.

use std::collections::HashMap;

/// Traced system calls: all that sync, and all that can carry a reply.
pub const CALLS: &str = "trace=fsync,fdatasync,syncfs,sync,pwritev2,sendto,sendmsg,sendmmsg,write,writev";

/// A traced event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The start of sending a reply.
    Reply,
    /// The end of a sync.
    Synced(Sync),
}

/// A sync that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sync {
    /// Extent of the sync.
    pub kind: SyncKind,
    /// Path of the node.
    pub path: String,
}

/// Extent of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// A file's data.
    Data,
    /// A node's data and attributes.
    Whole,
    /// All of the file system.
    FileSystem,
}

impl Event {
    /// Returns the sync, if it is one.
    pub const fn sync(&self) -> Option<&Sync> {
        match self {
            Self::Synced(sync) => Some(sync),
            Self::Reply => None,
        }
    }
}

impl Sync {
    /// Formats it for the report.
    pub fn told(&self, tree: &str) -> String {
        let path = self.path.strip_prefix(tree).unwrap_or(&self.path);
        let path = if path.is_empty() { "/" } else { path };
        match self.kind {
            SyncKind::Data => format!("data of {path}"),
            SyncKind::Whole => format!("all of {path}"),
            SyncKind::FileSystem => "the file system".into(),
        }
    }
}

/// Returns the events of a trace in order, for a server at `port`.
pub fn events(text: &str, port: u16) -> Vec<Event> {
    let mut begun: HashMap<&str, &str> = HashMap::new();
    let mut events = Vec::new();
    for line in text.lines() {
        let Some((thread, call)) = line.trim_start().split_once(' ') else { continue };
        let call = call.trim_start();
        if let Some(rest) = call.strip_prefix("<... ") {
            let Some((_, end)) = rest.split_once(" resumed>") else { continue };
            let Some(start) = begun.remove(thread) else { continue };
            events.extend(synced(start, end));
        } else if let Some(start) = call.strip_suffix("<unfinished ...>") {
            events.extend(replies(start, port));
            begun.insert(thread, start);
        } else {
            events.extend(replies(call, port));
            events.extend(synced(call, call));
        }
    }
    events
}

/// Parses a reply, which counts from the start of its sending.
fn replies(start: &str, port: u16) -> Option<Event> {
    let (name, arguments) = start.split_once('(')?;
    let sends = matches!(name, "sendto" | "sendmsg" | "sendmmsg" | "write" | "writev");
    let (_, target) = described(arguments)?;
    // The server's own address stands between `TCP:[` and `->`.
    let from = target.strip_prefix("TCP:[")?.split("->").next()?;
    (sends && from.ends_with(&format!(":{port}"))).then_some(Event::Reply)
}

/// Parses a sync, which counts at its end, possibly on another line than its start.
fn synced(start: &str, end: &str) -> Option<Event> {
    let (name, arguments) = start.split_once('(')?;
    let result = end.rsplit_once(" = ")?.1;
    if result.starts_with('-') || result.starts_with('?') {
        return None;
    }
    let kind = match name {
        "fsync" => SyncKind::Whole,
        "fdatasync" => SyncKind::Data,
        "syncfs" => SyncKind::FileSystem,
        "pwritev2" if end.contains("RWF_SYNC") || arguments.contains("RWF_SYNC") => SyncKind::Whole,
        "pwritev2" if end.contains("RWF_DSYNC") || arguments.contains("RWF_DSYNC") => SyncKind::Data,
        _ => return None,
    };
    let (_, path) = described(arguments)?;
    Some(Event::Synced(Sync { kind, path: path.to_owned() }))
}

/// Splits `12</a/path>` into number and path.
fn described(arguments: &str) -> Option<(&str, &str)> {
    let (number, rest) = arguments.split_once('<')?;
    number.parse::<u32>().ok()?;
    // A socket's description contains `->`, and `(deleted)` may follow that of a file.
    let end = rest.find([',', ')']).unwrap_or(rest.len());
    let description = rest[..end].trim_end();
    Some((number, description.strip_suffix('>').unwrap_or(description)))
}
