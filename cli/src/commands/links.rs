//! `tombolo links`: lists shared-memory links.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::json;
use tombolo_host_links::registry::{Announcement, Directory, GuestEntry, Registry, RegistryError};
use tombolo_host_service::control;

use crate::commands::files::shown;
use crate::failure::{OrCannot, Outcome};
use crate::table::table;

/// List this user's servers over shared memory, and their clients.
///
/// A row is a client (guest), on this host or in a VM: the state of its heartbeat (late: busy, stopped or
/// dying), the age of its link, the numbers of requests answered and under way, how often the server slept,
/// and how often it woke the client. The numbers are at most a second old.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct LinksArgs {
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tombolo links
  tombolo links --json | jq '.servers[].guests'";

impl LinksArgs {
    /// Prints the list, and removes the entries of killed servers from the registry.
    pub fn run(&self) -> Outcome {
        let servers = list().or_cannot("list the links")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let text = match (self.json, servers.as_slice()) {
            (true, servers) => json!({ "servers": servers }).to_string(),
            (false, []) => NO_SERVER.into(),
            (false, servers) => {
                servers.iter().map(|server| as_text(server, now)).collect::<Vec<_>>().join("\n\n")
            }
        };
        match writeln!(io::stdout().lock(), "{text}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            printed => printed.or_cannot("print the links"),
        }
    }
}

const NO_SERVER: &str = "no server of this user offers links (start tombolo serve with --shm or --shm-file)";

/// Returns the directory in which servers register the links that they offer.
pub fn directory() -> PathBuf {
    control::default_directory().join("links")
}

fn list() -> Result<Vec<Announcement>, RegistryError> {
    let directory = directory();
    // Listing does not create the directory.
    if !directory.exists() { Ok(Vec::new()) } else { Directory::open(&directory)?.list() }
}

const HEADER: &[&str] = &["guest", "export", "heart", "since", "requests", "under way", "sleeps", "rings"];

/// Formats a title, the server's endpoints, and its guests.
fn as_text(server: &Announcement, now_secs: u64) -> String {
    let mut lines =
        vec![format!("{}  pid {}  up {}", server.name, server.pid, age(server.since_secs, now_secs))];
    lines.extend(server.places.iter().map(|place| format!("  {}", shown::name(place.as_bytes()))));
    lines.push(if server.guests.is_empty() {
        "no clients".into()
    } else {
        table(HEADER, server.guests.iter().map(|guest| row(guest, now_secs)), 3)
    });
    lines.join("\n")
}

fn row(guest: &GuestEntry, now_secs: u64) -> Vec<String> {
    let heart = match guest.silence_ms / 1000 {
        0 => guest.health.clone(),
        silence_secs => format!("{} by {silence_secs} s", guest.health),
    };
    vec![
        // Label and export are chosen by the guest.
        shown::name(guest.label.as_bytes()),
        shown::name(guest.export.as_bytes()),
        heart,
        age(guest.since_secs, now_secs),
        guest.answers.to_string(),
        guest.in_flight.to_string(),
        guest.sleeps.to_string(),
        guest.rings.to_string(),
    ]
}

/// Formats the time since `since_secs` as hours, minutes and seconds.
fn age(since_secs: u64, now_secs: u64) -> String {
    let secs = now_secs.saturating_sub(since_secs);
    format!("{}:{:02}:{:02}", secs / 3600, secs / 60 % 60, secs % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_listed_below_their_server() {
        let mut server = Announcement::of_this_process("src");
        (server.pid, server.since_secs) = (7, 100);
        server.places.push("shm:/run/s/src".into());
        let alone = "src  pid 7  up 0:01:01\n  shm:/run/s/src\nno clients";
        assert_eq!(as_text(&server, 161), alone);
        server.guests.push(GuestEntry {
            label: "evil\u{1b}[2J:9".into(),
            export: "/src".into(),
            since_secs: 160,
            health: "late".into(),
            silence_ms: 3456,
            answers: 12,
            in_flight: 1,
            sleeps: 3,
            rings: 4,
        });
        let text = as_text(&server, 161);
        assert!(!text.contains('\u{1b}') && text.contains("evil\\u{1b}[2J:9"), "{text}");
        assert!(text.contains("/src    late by 3 s  0:00:01        12          1       3      4"), "{text}");
    }
}
