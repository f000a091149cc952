//! The terminal: one page, drawn over and over.

use std::io::{self, Stdout, Write};

use terminal_size::{Height, Width, terminal_size};
use tombolo_host::signals;

use super::print;

/// Where the tables go.
pub struct Screen {
    out: Stdout,
    live: bool,
}

// ECMA-48: cursor home, erase to the end of the line, erase to the end of the page; the alternate screen is xterm's.
const HOME: &str = "\x1b[H";
const ERASE_LINE: &str = "\x1b[K";
const ERASE_REST: &str = "\x1b[J";
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

impl Screen {
    /// With `live` a page of its own on the terminal, given back at the end, also by ^C.
    pub fn new(live: bool) -> io::Result<Self> {
        let mut out = io::stdout();
        if live {
            signals::on_stop(|_| {
                let _ = write!(io::stdout(), "{LEAVE}").and_then(|()| io::stdout().flush());
                std::process::exit(0);
            })?;
            write!(out, "{ENTER}")?;
        }
        Ok(Self { out, live })
    }

    /// Shows a page.
    pub fn show(&mut self, text: &str) -> io::Result<()> {
        if !self.live {
            return print(&mut self.out, text);
        }
        let size = terminal_size().map_or((80, 24), |(Width(columns), Height(rows))| (columns, rows));
        self.out.write_all(page(text, size).as_bytes())?;
        self.out.flush()
    }
}

/// As much of the text as fits: a longer page would scroll, and leave its top behind.
fn page(text: &str, (columns, rows): (u16, u16)) -> String {
    let lines = text.lines().take(rows.into()).map(|line| {
        let fitting: String = line.chars().take(columns.into()).collect();
        fitting + ERASE_LINE
    });
    // No newline after the last line: in the last row it would scroll too.
    [HOME, &lines.collect::<Vec<_>>().join("\r\n"), ERASE_REST].concat()
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.live {
            let _ = write!(self.out, "{LEAVE}").and_then(|()| self.out.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_no_larger_than_the_terminal() {
        assert_eq!(page("µs and more\nsecond\nthird", (2, 2)), "\x1b[Hµs\x1b[K\r\nse\x1b[K\x1b[J");
    }
}
