//! One manual page (man(7)).
//!
//! The text after the options of the help becomes sections: a paragraph that begins with `Words:` is a
//! section, `  WORD  meaning` an entry, and other indented lines are literal.

use std::io::{self, Write};

use clap::Command;
use clap_mangen::Man;
use roff::{Roff, bold, roman};

use super::references::{files, see_also};

pub struct Page {
    man: Man,
    name: String,
    section: &'static str,
    after_help: String,
}

const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "success"),
    ("1", "failure; one line on standard error states the reason"),
    ("2", "invalid command line or configuration"),
];

impl Page {
    /// Creates the page of a command with its full name.
    pub fn new(command: Command, section: &'static str) -> Self {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
        let after_help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let man = Man::new(command)
            .section(section)
            .source(concat!("Tombolo ", env!("CARGO_PKG_VERSION")))
            .manual("Tombolo Manual");
        Self { man, name, section, after_help }
    }

    /// Returns the file name, such as `tombolo-mount.1`.
    pub fn file_name(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        // Defines the macros for quotation marks.
        Roff::default().to_writer(out)?;
        self.man.render_title(out)?;
        self.man.render_name_section(out)?;
        self.man.render_synopsis_section(out)?;
        self.man.render_description_section(out)?;
        self.man.render_options_section(out)?;
        if self.name == "tombolo" {
            self.man.render_subcommands_section(out)?;
        }
        let mut roff = Roff::new();
        let mut paragraphs: Vec<_> = self.after_help.split("\n\n").filter(|text| !text.is_empty()).collect();
        // Manuals have examples near the end.
        paragraphs.sort_by_key(|text| text.starts_with("Examples:"));
        let (examples, others): (Vec<_>, Vec<_>) =
            paragraphs.into_iter().partition(|text| text.starts_with("Examples:"));
        others.into_iter().for_each(|text| paragraph(&mut roff, text));
        if !self.after_help.contains("Exit codes:") {
            roff.control("SH", ["EXIT STATUS"]);
            EXIT_STATUS.iter().for_each(|(code, meaning)| entry(&mut roff, code, meaning));
        }
        let files = files(&self.name);
        if !files.is_empty() {
            roff.control("SH", ["FILES"]);
            files.iter().for_each(|(path, what)| entry(&mut roff, path, what));
        }
        examples.into_iter().for_each(|text| paragraph(&mut roff, text));
        roff.control("SH", ["SEE ALSO"]);
        roff.text([roman(see_also(&self.name))]);
        roff.to_writer(out)
    }
}

/// Writes a paragraph of the help under its heading.
fn paragraph(roff: &mut Roff, text: &str) {
    let (heading, rest) = cut_heading(text);
    match heading {
        "Exit codes" => roff.control("SH", ["EXIT STATUS"]),
        // A subsection of the preceding section.
        _ if heading.starts_with("Options for ") => roff.control("SS", [heading]),
        _ => roff.control("SH", [heading.to_uppercase().as_str()]),
    };
    let mut lines = rest.lines().filter(|line| !line.trim().is_empty()).peekable();
    while let Some(line) = lines.next() {
        let mut text = line.trim().to_owned();
        // Continuation lines are indented further than entries.
        while let Some(more) = lines.next_if(|more| more.starts_with("      ")) {
            text = format!("{text} {}", more.trim());
        }
        match (line.starts_with("  "), text.split_once("  ")) {
            (true, Some((word, what))) => entry(roff, word, what.trim()),
            (true, None) => literal(roff, &text),
            (false, _) => {
                roff.text([roman(text)]);
            }
        }
    }
}

/// Splits the heading, up to the first comma or colon, from the text.
fn cut_heading(text: &str) -> (&str, &str) {
    let end = text.find([',', ':']).unwrap_or(text.len());
    (&text[..end], text[end..].trim_start_matches([',', ':', ' ']))
}

fn entry(roff: &mut Roff, word: &str, what: &str) {
    roff.control("TP", []);
    roff.text([bold(word)]);
    roff.text([roman(what)]);
}

fn literal(roff: &mut Roff, line: &str) {
    roff.control("PP", []);
    roff.control("nf", []);
    roff.control("RS", ["4"]);
    roff.text([roman(line)]);
    roff.control("RE", []);
    roff.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_of_the_help_becomes_a_section() {
        let mut roff = Roff::new();
        paragraph(&mut roff, "Mount options:\n  ro       refuse\n           changes\n  See below.");
        paragraph(&mut roff, "Options for servers, as elsewhere:\n  soft     give up");
        paragraph(&mut roff, "Examples:\n  tombolo ls nfs://a/b");
        let text = roff.to_roff();
        for part in [
            ".SH \"MOUNT OPTIONS\"\n.TP\n\\fBro\\fR\nrefuse changes\n",
            ".SS \"Options for servers\"\nas elsewhere:\n.TP\n\\fBsoft\\fR\ngive up\n",
            ".SH EXAMPLES\n.PP\n.nf\n.RS 4\ntombolo ls nfs://a/b\n.RE\n.fi\n",
        ] {
            assert!(text.contains(part), "{part}\nnot in\n{text}");
        }
    }
}
