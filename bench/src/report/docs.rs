//! Puts stored reports into a document, between lines that mark where.

use std::path::Path;
use std::{fs, mem};

use super::table::aims_table;
use super::{Style, read};
use crate::error::{Doing, Result};

/// Writes the tables anew in a Markdown document: each block from `<!-- report: NAME -->` to `<!-- end -->` gets the
/// tables of `NAME.json` in the folder beside that has the document's name, and each from `<!-- aims: NAME… -->` the aims of all these
/// in one table. Says which reports were put in.
pub fn renew(document: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(document).doing_to("read", document)?;
    let folder = document.with_extension("");
    let mut renewed = String::new();
    let mut names = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some(name) = marked(line, "report") {
            let report = read(&folder.join(format!("{name}.json")))?;
            let picture = folder.file_name().unwrap_or_default().to_string_lossy();
            renewed.push_str(line);
            renewed.push_str(&format!("\n\n{}\n", report.text(Style::Markdown)));
            renewed.push_str(&format!("![{}]({picture}/{name}.svg)\n\n", report.title));
            names.push(name.to_owned());
            inside = true;
        } else if let Some(names) = marked(line, "aims") {
            let mut aims = Vec::new();
            for name in names.split_whitespace() {
                aims.extend(read(&folder.join(format!("{name}.json")))?.aims);
            }
            renewed.push_str(line);
            renewed.push_str(&format!("\n\n{}\n\n", aims_table(Style::Markdown, &aims)));
            inside = true;
        } else if line.trim() == "<!-- end -->" {
            inside = false;
        }
        if !inside {
            renewed.push_str(line);
            renewed.push('\n');
        }
    }
    fs::write(document, mem::take(&mut renewed)).doing_to("write", document)?;
    Ok(names)
}

fn marked<'a>(line: &'a str, what: &str) -> Option<&'a str> {
    line.trim().strip_prefix("<!-- ")?.strip_prefix(what)?.strip_prefix(": ")?.strip_suffix(" -->")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Figure, Report, Unit, write};

    #[test]
    fn a_block_is_replaced_and_the_text_around_it_stays() {
        let folder = tempfile::tempdir().unwrap();
        let document = folder.path().join("figures.md");
        let aims = "<!-- aims: x -->\nold\n<!-- end -->\n";
        let text = format!("{aims}before\n<!-- report: x -->\nold\n<!-- end -->\nafter\n");
        fs::write(&document, text).unwrap();
        let mut report = Report::new("x", "A table", "tombolo-bench x".to_owned(), false);
        report.figures.push(Figure::single("stat", "", "ours", Unit::Nanoseconds, 2000.0));
        report.aim("stat", "≤ 1 µs", "2 µs", Some(false));
        write(&report, &folder.path().join("figures")).unwrap();
        for _ in 0..2 {
            assert_eq!(renew(&document).unwrap(), ["x"]);
            let text = fs::read_to_string(&document).unwrap();
            assert!(text.contains("before\n<!-- report: x -->\n") && text.ends_with("<!-- end -->\nafter\n"));
            assert_eq!(text.matches("2.00 µs").count(), 1, "{text}");
            assert!(!text.contains("old"));
            // Once in the block of aims, once in that of the report.
            assert_eq!(text.matches("| ≤ 1 µs").count(), 2, "{text}");
        }
        assert!(folder.path().join("figures/x.svg").exists());
    }
}
