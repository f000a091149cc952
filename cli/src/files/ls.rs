//! `tombolo ls`: lists directories.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use libtombolo::{Above, Last, Node, block_on};
use tombolo_core::fs::{Attr, Error, FileType, NameBuf};

use crate::failure::{Failure, Outcome};
use crate::location::{End, Location};
use crate::table::table;

use super::place::{Place, Places};
use super::stat::Facts;
use super::{problem, shown};

/// List directories of NFS servers and of this host.
///
/// Names are sorted by their bytes; what would steer a terminal is escaped. In columns on a terminal, else one a line.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct LsArgs {
    /// With mode, links, owner, group, size and time (UTC) of each.
    #[arg(short)]
    long: bool,
    /// Names that begin with a dot too.
    #[arg(short, long)]
    all: bool,
    /// Everything below as well.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// One name a line, also on a terminal.
    #[arg(short = '1')]
    one: bool,
    /// As JSON: an array of what is listed, with all attributes.
    #[arg(long, conflicts_with_all = ["long", "one"])]
    json: bool,
    /// What to list: nfs://HOST[:PORT]/NAME[/PATH], dir:PATH, or a path.
    #[arg(value_name = "URL", default_value = ".", value_parser = Location::word_parser())]
    places: Vec<Location>,
}

const EXAMPLES: &str = "\
Examples:
  tombolo ls -l nfs://server/export
  tombolo ls -R --json nfs://server:20049/src | jq '.[] | select(.size > 1000000) | .name'";

/// Something that is listed.
struct Row {
    name: NameBuf,
    /// Its path, or as it was given.
    path: String,
    attr: Option<Attr>,
    node: Option<Node>,
    target: Option<Vec<u8>>,
}

/// What goes out.
struct Report {
    facts: Vec<Facts>,
    all_well: bool,
    is_first: bool,
}

impl LsArgs {
    /// Lists one after the other, all that can be listed.
    pub fn run(&self) -> Outcome {
        let mut places = Places::new();
        let mut report = Report { facts: Vec::new(), all_well: true, is_first: true };
        for location in &self.places {
            let end = if self.long { End::Name } else { End::Target };
            let listed = match places.open(location, end) {
                Ok(place) => self.list(&place, &mut report),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = listed {
                failure.print();
                report.all_well = false;
            }
        }
        if self.json {
            let text = serde_json::to_string_pretty(&report.facts);
            print(&text.map_err(|error| Failure::cannot("write JSON", &error))?)?;
        }
        if report.all_well { Ok(()) } else { Err(Failure::silent()) }
    }

    fn list(&self, place: &Place, report: &mut Report) -> Outcome {
        let node = place.found(if self.long { Last::Keep } else { Last::Follow })?;
        let attr = block_on(node.attr()).map_err(|error| place.cannot("look at", &error))?;
        if attr.file_type != FileType::Directory {
            let target = link_target(&node, &attr).map_err(|error| place.cannot("look at", &error))?;
            let name = tombolo_core::fs::Name::new(b"-").map_err(|_| Failure::silent())?.to_owned();
            let row = Row { name, path: place.word.clone(), attr: Some(attr), node: None, target };
            return self.show(&[row], |row| row.path.clone(), report);
        }
        let mut above = Above::default();
        let mut ahead = vec![(place.word.clone(), node, attr, 0)];
        while let Some((path, node, attr, depth)) = ahead.pop() {
            let rows = match above.enter(depth, &attr).and_then(|()| self.rows(&path, &node)) {
                Ok(rows) => rows,
                Err(error) => {
                    problem::cannot(format_args!("list {path}"), &error, &place.tree).print();
                    report.all_well = false;
                    continue;
                }
            };
            let has_title = !self.json && (self.recursive || self.places.len() > 1);
            if has_title {
                print(&format!("{}{path}:", if report.is_first { "" } else { "\n" }))?;
            }
            report.is_first = false;
            if self.recursive {
                let below = rows.iter().rev().filter_map(|row| {
                    let attr = row.attr.filter(|attr| attr.file_type == FileType::Directory)?;
                    Some((row.path.clone(), row.node.clone()?, attr, depth + 1))
                });
                ahead.extend(below);
            }
            let shown_name = |row: &Row| shown::name(row.name.as_name().as_bytes());
            self.show(&rows, shown_name, report)?;
        }
        Ok(())
    }

    /// The entries of a directory, sorted.
    fn rows(&self, path: &str, dir: &Node) -> Result<Vec<Row>, Error> {
        let plus = self.long || self.json || self.recursive;
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
                    let path = format!(
                        "{}/{}",
                        path.trim_end_matches('/'),
                        shown::name(item.name.as_name().as_bytes())
                    );
                    // Only directories that are to be listed, and links, are needed again.
                    let is_needed = attr.is_some_and(|attr| match attr.file_type {
                        FileType::Directory => self.recursive,
                        file_type => file_type == FileType::Symlink,
                    });
                    let node = node.filter(|_| is_needed);
                    rows.push(Row { name: item.name, path, attr, node, target: None });
                }
            }
            Ok::<_, Error>(rows)
        })?;
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        if self.long || self.json {
            for row in &mut rows {
                if let (Some(node), Some(attr)) = (&row.node, &row.attr) {
                    // A link that is gone meanwhile is listed without its target.
                    row.target = link_target(node, attr).unwrap_or_default();
                }
            }
        }
        Ok(rows)
    }

    fn show(&self, rows: &[Row], named: impl Fn(&Row) -> String, report: &mut Report) -> Outcome {
        if self.json {
            let facts = rows.iter().filter_map(|row| {
                Some(Facts::new(row.path.clone(), row.attr.as_ref()?, row.target.as_deref()))
            });
            report.facts.extend(facts);
            return Ok(());
        }
        if rows.is_empty() {
            return Ok(());
        }
        if self.long {
            return print(&long(rows, named));
        }
        let names: Vec<_> = rows.iter().map(named).collect();
        let width = (!self.one && io::stdout().is_terminal()).then(terminal_columns).flatten();
        print(&width.map_or_else(|| names.join("\n"), |width| columns(&names, width)))
    }
}

fn link_target(node: &Node, attr: &Attr) -> Result<Option<Vec<u8>>, Error> {
    if attr.file_type != FileType::Symlink {
        return Ok(None);
    }
    node.read_link().wait().map(Some)
}

fn long(rows: &[Row], named: impl Fn(&Row) -> String) -> String {
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
            _ => attr.size.to_string(),
        };
        vec![
            shown::mode(attr),
            attr.nlink.to_string(),
            attr.uid.to_string(),
            attr.gid.to_string(),
            size,
            shown::time(attr.mtime, false),
            name,
        ]
    });
    let header = ["mode", "links", "user", "group", "size", "written", "name"];
    // Numbers are aligned right; what follows them has one width, or is the last.
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

fn terminal_columns() -> Option<usize> {
    terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))
}

/// As many columns as fit, filled one after the other.
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

/// Prints on standard output. A reader that left is a silent end.
pub fn print(text: &str) -> Outcome {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent()),
        outcome => outcome.map_err(|error| Failure::cannot("write to standard output", &error)),
    }
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
