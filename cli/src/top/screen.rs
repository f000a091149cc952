//! The terminal: one page, drawn over and over.

use std::io::{self, Stdout, Write};

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
        let mut page = String::from(HOME);
        for line in text.lines() {
            page.extend([line, ERASE_LINE, "\r\n"]);
        }
        page.push_str(ERASE_REST);
        self.out.write_all(page.as_bytes())?;
        self.out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.live {
            let _ = write!(self.out, "{LEAVE}").and_then(|()| self.out.flush());
        }
    }
}
