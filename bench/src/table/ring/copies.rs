//! Number of copies of each byte between file and program, observed from outside: the server's system calls
//! show the kernel's destination, and the caller's page tables show which pages of the link it has accessed.

use std::fs;
use std::ops::Range;

use tombolo_shm::doorbell::Mode;

use super::idle_client::IdleClient;
use super::server::{EndpointKind, LinkServer};
use super::session::Operation;
use super::{FILE_BYTES, Plan, speed};
use crate::error::{Doing, Result};
use crate::measure::{Moved, MovedMeter};
use crate::report::{Figure, Report, Unit};

const COPIES: &str = "copies of a byte";
const KERNEL: &str = "the server's kernel, between the file and the link's memory";
const ELSEWHERE: &str = "the server's kernel, between the file and other memory";
const TOUCHED: &str = "the link's memory that the caller touched";

/// Rows: the operation, and whether the data end in the program's own memory or stay in the link's.
const ROWS: [(&str, &str, Operation); 4] = [
    ("read, 1 MiB", speed::IN_PLACE, Operation::ReadInPlace(FILE_BYTES)),
    ("read, 1 MiB", speed::COPIED, Operation::Read(FILE_BYTES)),
    ("write, 1 MiB", speed::IN_PLACE, Operation::WriteInPlace(FILE_BYTES)),
    ("write, 1 MiB", speed::COPIED, Operation::Write(FILE_BYTES)),
];
/// Tolerance for the link's own pages besides data.
const ONE: f64 = 1.1;

pub fn run(plan: &Plan) -> Result<Report> {
    let title = "Copies between a file and a program, over a link";
    let mut report = plan.report("ring-copies", title);
    let folder = plan.folder()?;
    for (number, (row, column, operation)) in ROWS.into_iter().enumerate() {
        let at = folder.path().join(number.to_string());
        fs::create_dir(&at).doing_to("make", &at)?;
        let (shared, _) = speed::lay_out(&at)?;
        let server = LinkServer::start(&shared, &at, EndpointKind::Sockets)?;
        let Counted { moved, touched_bytes } = count(&server, operation)?;
        let share = |bytes: u64| bytes as f64 / FILE_BYTES as f64;
        let inside = share(moved.received_inside + moved.sent_inside);
        let outside = share(moved.received_outside + moved.sent_outside);
        let touched = share(touched_bytes);
        // Data that bypassed the link's memory were copied through other memory.
        let copies = inside + 2.0 * outside + touched;
        for (part, value) in [(COPIES, copies), (KERNEL, inside), (ELSEWHERE, outside), (TOUCHED, touched)] {
            report.figures.push(Figure::single(row, part, column, Unit::Times, value));
        }
        let (target, met) = match column {
            speed::IN_PLACE => ("one copy", Some(copies <= ONE && inside + outside >= 1.0)),
            _ => ("printed", None),
        };
        report.target(&format!("{row}, {column}: {COPIES}"), target, format!("{copies:.2}"), met);
    }
    report.condition(
        "one operation, in processes of their own; nothing is timed. The server's system calls are followed (ptrace(2)): what preadv2(2) and \
         pwritev2(2) move between the file and the memory that the link consists of is one copy, made by the kernel; what they move \
         elsewhere would need another. The caller's part is read from its page tables (/proc, smaps): a page of the link's memory that it \
         has not touched it has not copied; pages of the ring itself, and such as the kernel maps beside a touched one, are in it",
    );
    Ok(report)
}

struct Counted {
    moved: Moved,
    touched_bytes: u64,
}

fn count(server: &LinkServer, operation: Operation) -> Result<Counted> {
    let mut client = IdleClient::start(&server.endpoint(Mode::Adaptive))?;
    (0..10).try_for_each(|_| client.ask(Operation::Null))?;
    let meter = MovedMeter::follow(server.id())?;
    let of_link: Vec<_> = link_memory(server.id())?.into_iter().map(|part| part.range).collect();
    meter.look_at(&of_link);
    let before = touched_bytes(client.id())?;
    client.ask(operation)?;
    let touched_bytes = touched_bytes(client.id())?.saturating_sub(before);
    Ok(Counted { moved: meter.moved(), touched_bytes })
}

/// A part of a process's memory that belongs to a link.
struct Part {
    range: Range<u64>,
    touched_bytes: u64,
}

/// Returns how many bytes of link memory a process has accessed.
fn touched_bytes(process: u32) -> Result<u64> {
    Ok(link_memory(process)?.into_iter().map(|part| part.touched_bytes).sum())
}

/// Returns the link memory of a process, and how much of it was accessed.
fn link_memory(process: u32) -> Result<Vec<Part>> {
    let path = format!("/proc/{process}/smaps");
    let text = fs::read_to_string(&path).doing(|| format!("read {path}"))?;
    Ok(parts(&text))
}

/// Finds the memory files of links in /proc/PID/smaps (proc(5)).
fn parts(smaps: &str) -> Vec<Part> {
    const NAMES: [&str; 2] = ["/memfd:tombolo-client", "/memfd:tombolo-server"];
    let mut parts = Vec::new();
    let mut is_link = false;
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some(range) = range(first) {
            is_link = NAMES.iter().any(|name| line.contains(name));
            if is_link {
                parts.push(Part { range, touched_bytes: 0 });
            }
        } else if is_link && first == "Rss:" {
            let kib: u64 =
                line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or_default();
            if let Some(part) = parts.last_mut() {
                part.touched_bytes = kib << 10;
            }
        }
    }
    parts
}

fn range(word: &str) -> Option<Range<u64>> {
    let (from, to) = word.split_once('-')?;
    Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_memory_is_found_in_smaps() {
        let smaps = "7f00-7f10 rw-s 00000000 00:01 5 /memfd:tombolo-client (deleted)\nSize: 64 kB\nRss: 12 kB\n\
                     7f10-7f20 r--s 00000000 00:01 6 /memfd:tombolo-server (deleted)\nRss: 4 kB\n\
                     7f20-7f30 rw-p 00000000 00:00 0 [heap]\nRss: 64 kB\n";
        let parts: Vec<_> = parts(smaps).into_iter().map(|part| (part.range, part.touched_bytes)).collect();
        assert_eq!(parts, [(0x7f00..0x7f10, 12 << 10), (0x7f10..0x7f20, 4 << 10)]);
    }
}
