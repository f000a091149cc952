//! `tombolo ls`: lists directories.

use std::cmp::Reverse;
use std::io::{self, IsTerminal, Write};

use clap::Args;
use libtombolo::{Above, Last, Node, block_on};
use serde::Serialize;
use serde_json::json;
use tombolo_core::Error;
use tombolo_core::fs::{Attr, FileType};

use crate::failure::{Failure, OrCannot, Outcome};
use crate::location::{End, Location};
use crate::table::table;

use super::open_path::{OpenPath, Opener, WaitArgs};
use super::problem::{self, Failures};
use super::shown;
use super::stat::{self, Facts};

/// List directories on NFS servers and this host, and exports.
///
/// Names are sorted by bytes; control characters are escaped. Printed in columns on a terminal, otherwise one
/// per line. If the server has no export `/`, nfs://HOST/ lists its exports.
#[derive(Args)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct LsArgs {
    #[command(flatten)]
    wait: WaitArgs,
    /// Long format: mode, links, owner, group, size and time (UTC).
    #[arg(short)]
    long: bool,
    /// Include names that begin with a dot.
    #[arg(short, long)]
    all: bool,
    /// List subdirectories recursively.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// List directories themselves, not their contents.
    #[arg(short, long, conflicts_with = "recursive")]
    directory: bool,
    /// With -l, print sizes like 1.5K, 234M, 2G.
    #[arg(short, long)]
    human_readable: bool,
    /// Sort by modification time, newest first.
    #[arg(short = 't', overrides_with = "by_size")]
    by_time: bool,
    /// Sort by size, largest first.
    #[arg(short = 'S', overrides_with = "by_time")]
    by_size: bool,
    /// Reverse the order.
    #[arg(short, long)]
    reverse: bool,
    /// One name per line, even on a terminal.
    #[arg(short = '1')]
    one: bool,
    /// Print JSON: an array of the files with all attributes. Times are as in RFC 3339.
    #[arg(long, conflicts_with_all = ["long", "one", "human_readable"])]
    json: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Locations: nfs://HOST[:PORT]/NAME[/PATH], nfs+ssh://HOST/PATH, shm:SOCKET/NAME[/PATH], dir:PATH, or a
    /// path.
    #[arg(value_name = "LOCATION", default_value = ".", value_parser = Location::word_parser())]
    locations: Vec<Location>,
}

const EXAMPLES: &str = "\
Examples:
  tombolo ls nfs://server/
  tombolo ls -l nfs://server/export
  tombolo ls -R --json nfs://server:20049/src | jq '.[] | select(.size > 1000000) | .path'";

struct Row {
    name: Vec<u8>,
    /// Path, or the location as given.
    path: String,
    /// Attributes; `None` if the options need none, or they could not be read.
    attr: Option<Attr>,
    /// Node of a link, or of a directory that is listed next.
    node: Option<Node>,
    /// Target of a symbolic link, with `-l` or `--json`.
    target: Option<Vec<u8>>,
}

/// State of a listing of several locations.
struct Report {
    /// Files for `--json`, which are printed at the end.
    facts: Vec<serde_json::Value>,
    failures: Failures,
    /// `true` before the first directory is listed.
    is_first: bool,
}

impl LsArgs {
    /// Lists all locations in order, as far as possible.
    pub fn run(&self) -> Outcome {
        let mut opener = Opener::new().limited(self.wait);
        let mut report = Report { facts: Vec::new(), failures: Failures::default(), is_first: true };
        for location in &self.locations {
            let listed = self.list_location(location, &mut opener, &mut report);
            report.failures.told(listed);
        }
        if self.json {
            print_json(&report.facts)?;
        }
        report.failures.outcome()
    }

    fn list_location(&self, location: &Location, opener: &mut Opener, report: &mut Report) -> Outcome {
        let end = if self.long || self.directory { End::Name } else { End::Target };
        match opener.open(location, end) {
            Ok(place) => self.list(location, &place, report),
            Err(failure) => match super::exports::of(location) {
                Some(exports) => self.show_exports(location, &exports, report),
                None => Err(failure),
            },
        }
    }

    /// Shows the exports of a server that has no root to list.
    fn show_exports(&self, location: &Location, exports: &[Vec<u8>], report: &mut Report) -> Outcome {
        if self.recursive || self.directory {
            let listing = format!("list {location}");
            return Err(Failure::cannot(listing, "it is not a directory").remedy("name one of its exports"));
        }
        let names = exports.iter().map(|path| shown::name(path));
        if self.json {
            let server = location.to_string();
            let path = |name: &str| format!("{}{name}", server.trim_end_matches('/'));
            report
                .facts
                .extend(names.map(|name| json!({ "path": path(&name), "name": name, "type": "export" })));
            return Ok(());
        }
        print_names(&names.collect::<Vec<_>>(), self.one || self.long)
    }

    fn list(&self, location: &Location, place: &OpenPath, report: &mut Report) -> Outcome {
        let last = if self.long || self.directory { Last::Keep } else { Last::Follow };
        let node = place.find_or_fail(last)?;
        let attr = block_on(node.attr()).map_err(|error| place.cannot("get attributes of", &error))?;
        if self.directory || attr.file_type != FileType::Directory {
            let target =
                link_target(&node, &attr).map_err(|error| place.cannot("get attributes of", &error))?;
            let name = stat::given_name(location, place).into_bytes();
            let row = Row { name, path: place.word.clone(), attr: Some(attr), node: None, target };
            return self.show(&[row], |row| row.path.clone(), report);
        }
        let mut above = Above::default();
        let mut ahead = vec![(place.word.clone(), node, 0)];
        while let Some((path, node, depth)) = ahead.pop() {
            let rows = above.enter(depth, &node).and_then(|()| self.rows(&path, &node));
            let rows =
                rows.map_err(|error| problem::cannot(format_args!("list {path}"), &error, &place.tree));
            let Some(rows) = report.failures.told(rows) else { continue };
            let has_title = !self.json && (self.recursive || self.locations.len() > 1);
            if has_title {
                print(&format!("{}{path}:", if report.is_first { "" } else { "\n" }))?;
            }
            report.is_first = false;
            if self.recursive {
                let below = rows.iter().rev().filter_map(|row| {
                    row.attr.filter(|attr| attr.file_type == FileType::Directory)?;
                    Some((row.path.clone(), row.node.clone()?, depth + 1))
                });
                ahead.extend(below);
            }
            let shown_name = |row: &Row| shown::name(&row.name);
            self.show(&rows, shown_name, report)?;
        }
        Ok(())
    }

    /// Returns the entries of a directory, sorted.
    fn rows(&self, path: &str, dir: &Node) -> Result<Vec<Row>, Error> {
        let plus = self.long || self.json || self.recursive || self.by_time || self.by_size;
        let mut rows: Vec<Row> = block_on(async {
            let mut listing = dir.list(plus).await?;
            let mut rows = Vec::new();
            while let Some(page) = listing.next_page().await? {
                for item in page {
                    if !self.all && item.name.as_name().as_bytes().starts_with(b".") {
                        continue;
                    }
                    let node = match item.node {
                        None if plus => dir.find(item.name.as_name()).resolve().await.ok(),
                        node => node,
                    };
                    let attr = node.as_ref().and_then(Node::attr_found).copied();
                    let name = item.name.as_name().as_bytes().to_vec();
                    let path = format!("{}/{}", path.trim_end_matches('/'), shown::name(&name));
                    // Only links and directories to be listed are used again.
                    let is_needed = attr.is_some_and(|attr| match attr.file_type {
                        FileType::Directory => self.recursive,
                        file_type => file_type == FileType::Symlink,
                    });
                    let node = node.filter(|_| is_needed);
                    rows.push(Row { name, path, attr, node, target: None });
                }
            }
            Ok::<_, Error>(rows)
        })?;
        self.sort(&mut rows);
        if self.long || self.json {
            for row in &mut rows {
                if let (Some(node), Some(attr)) = (&row.node, &row.attr) {
                    // A link removed meanwhile is listed without its target.
                    row.target = link_target(node, attr).unwrap_or_default();
                }
            }
        }
        Ok(rows)
    }

    fn sort(&self, rows: &mut [Row]) {
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        if self.by_time {
            rows.sort_by_key(|row| Reverse(row.attr.map(|attr| (attr.mtime.secs, attr.mtime.nanos))));
        }
        if self.by_size {
            rows.sort_by_key(|row| Reverse(row.attr.map(|attr| attr.size)));
        }
        if self.reverse {
            rows.reverse();
        }
    }

    fn show(&self, rows: &[Row], named: impl Fn(&Row) -> String, report: &mut Report) -> Outcome {
        if self.json {
            for row in rows {
                let (name, path) = (shown::name(&row.name), row.path.clone());
                let Some(attr) = &row.attr else { continue };
                let facts = serde_json::to_value(Facts::new(name, path, attr, row.target.as_deref()));
                report.facts.push(facts.or_cannot("write JSON")?);
            }
            return Ok(());
        }
        if rows.is_empty() {
            return Ok(());
        }
        if self.long {
            return print(&long(rows, named, self.human_readable));
        }
        print_names(&rows.iter().map(named).collect::<Vec<_>>(), self.one)
    }
}

/// Prints names in columns on a terminal, unless one per line is requested.
fn print_names(names: &[String], one: bool) -> Outcome {
    let size = (!one && io::stdout().is_terminal()).then(terminal_size::terminal_size).flatten();
    print(&size.map_or_else(|| names.join("\n"), |(width, _)| columns(names, width.0.into())))
}

fn link_target(node: &Node, attr: &Attr) -> Result<Option<Vec<u8>>, Error> {
    if attr.file_type != FileType::Symlink {
        return Ok(None);
    }
    node.read_link().wait().map(Some)
}

fn long(rows: &[Row], named: impl Fn(&Row) -> String, human_readable: bool) -> String {
    let lines = rows.iter().map(|row| {
        let name = match &row.target {
            Some(target) => format!("{} -> {}", named(row), shown::name(target)),
            None => named(row),
        };
        let Some(attr) = &row.attr else {
            return [vec!["?".into(); 6], vec![name]].concat();
        };
        let size = match attr.file_type {
            FileType::BlockDevice | FileType::CharDevice => {
                format!("{},{}", attr.rdev.major, attr.rdev.minor)
            }
            _ if human_readable => shown::short_size(attr.size),
            _ => attr.size.to_string(),
        };
        vec![
            shown::mode(attr),
            attr.nlink.to_string(),
            attr.uid.to_string(),
            attr.gid.to_string(),
            size,
            shown::time(attr.mtime),
            name,
        ]
    });
    let header = ["mode", "links", "user", "group", "size", "modified", "name"];
    // Numbers are right-aligned; the columns after them have a fixed width or are last.
    let mut rows: Vec<Vec<String>> = lines.collect();
    let names: Vec<String> = rows.iter_mut().filter_map(Vec::pop).collect();
    let text = table(&header[..6], rows, 1);
    text.lines()
        .skip(1)
        .zip(names)
        .map(|(line, name)| format!("{line}  {name}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Formats as many columns as fit, filled one after the other.
fn columns(names: &[String], width: usize) -> String {
    let lengths: Vec<usize> = names.iter().map(|name| name.chars().count()).collect();
    let widths_of = |rows: usize| -> Vec<usize> {
        lengths.chunks(rows).map(|column| column.iter().max().map_or(0, |longest| longest + 2)).collect()
    };
    let fits = |rows: &usize| widths_of(*rows).iter().sum::<usize>() <= width + 2;
    let rows = (1..=names.len()).find(fits).unwrap_or(names.len()).max(1);
    let widths = widths_of(rows);
    let line = |row: usize| {
        let cells = names.chunks(rows).zip(&widths).filter_map(|(column, &width)| {
            let name = column.get(row)?;
            Some(format!("{name}{}", " ".repeat(width - name.chars().count())))
        });
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..rows).map(line).collect::<Vec<_>>().join("\n")
}

/// Prints to standard output. A closed reader ends the command silently.
pub fn print(text: &str) -> Outcome {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent()),
        outcome => outcome.or_cannot("write to standard output"),
    }
}

pub fn print_json(value: &impl Serialize) -> Outcome {
    print(&serde_json::to_string_pretty(value).or_cannot("write JSON")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_as_few_rows_as_fit() {
        let names: Vec<String> = ["a", "bb", "ccc", "d", "e"].map(String::from).into();
        assert_eq!(columns(&names, 80), "a  bb  ccc  d  e");
        assert_eq!(columns(&names, 12), "a   ccc  e\nbb  d");
        assert_eq!(columns(&names, 1), "a\nbb\nccc\nd\ne");
    }
}
