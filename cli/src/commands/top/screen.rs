//! Terminal screen: one page, redrawn continuously.

use std::io::{self, Stdout, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use terminal_size::{Height, Width, terminal_size};
use tombolo_host_runtime::signals;
use tombolo_sys::terminal::{self, KeyMode};

use super::keys::{Key, keys};
use super::print;

pub struct Screen {
    out: Stdout,
    live: bool,
    /// Previous keyboard mode, if there is a keyboard.
    keyboard: Option<KeyMode>,
    /// Index of the first line shown.
    first: usize,
}

/// Action requested by the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScreenAction {
    GoOn,
    Quit,
}

// ECMA-48: cursor home, erase to end of line, erase to end of page; the alternate screen is an xterm
// extension.
const HOME: &str = "\x1b[H";
const ERASE_LINE: &str = "\x1b[K";
const ERASE_REST: &str = "\x1b[J";
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

impl Screen {
    /// Opens the screen: with `live` on the terminal's alternate screen, which is left at the end, and on
    /// SIGINT and SIGTERM.
    pub fn new(live: bool) -> io::Result<Self> {
        let mut out = io::stdout();
        let mut keyboard = None;
        if live {
            // Without a terminal on standard input there are no keys.
            keyboard = KeyMode::enter(io::stdin().as_fd()).ok();
            signals::on_stop(move |_| {
                leave(&mut io::stdout(), keyboard);
                std::process::exit(0);
            })?;
            write!(out, "{ENTER}")?;
        }
        Ok(Self { out, live, keyboard, first: 0 })
    }

    pub fn show(&mut self, text: &str) -> io::Result<()> {
        if !self.live {
            return print(&mut self.out, text);
        }
        let size = size();
        self.first = self.first.min(last_first(text, size));
        let hint = if self.keyboard.is_some() { KEYS } else { "" };
        self.out.write_all(page(text, self.first, size, hint).as_bytes())?;
        self.out.flush()
    }

    /// Waits for `time`. Meanwhile keys scroll the text, or end the wait to quit.
    pub fn wait(&mut self, time: Duration, text: &str) -> io::Result<ScreenAction> {
        if self.keyboard.is_none() {
            std::thread::sleep(time);
            return Ok(ScreenAction::GoOn);
        }
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match terminal::key_within(io::stdin().as_fd(), left)? {
                None if left.is_zero() => return Ok(ScreenAction::GoOn),
                None => {}
                // The terminal has hung up.
                Some(sent) if sent.is_empty() => return Ok(ScreenAction::Quit),
                Some(sent) => {
                    let keys = keys(&sent);
                    if keys.contains(&Key::Quit) {
                        return Ok(ScreenAction::Quit);
                    }
                    let (last, rows) = (last_first(text, size()), usize::from(size().1.saturating_sub(2)));
                    self.first =
                        keys.into_iter().fold(self.first, |first, key| scrolled(first, key, rows, last));
                    self.show(text)?;
                }
            }
        }
    }
}

/// Help on the last row.
const KEYS: &str = "q: quit  ↑ ↓ Page Up, Page Down: scroll";

fn size() -> (u16, u16) {
    terminal_size().map_or((80, 24), |(Width(columns), Height(rows))| (columns, rows))
}

/// Returns the first line shown when the text is scrolled to its end.
fn last_first(text: &str, (_, rows): (u16, u16)) -> usize {
    text.lines().count().saturating_sub(usize::from(rows.saturating_sub(1)))
}

fn scrolled(first: usize, key: Key, page_rows: usize, last: usize) -> usize {
    let first = match key {
        Key::Quit => first,
        Key::LineUp => first.saturating_sub(1),
        Key::LineDown => first + 1,
        Key::PageUp => first.saturating_sub(page_rows),
        Key::PageDown => first + page_rows,
        Key::Top => 0,
        Key::Bottom => last,
    };
    first.min(last)
}

/// Formats as much of the text as fits, from line `first`, and a last row with hint and position: a longer
/// page would make the terminal scroll.
fn page(text: &str, first: usize, (columns, rows): (u16, u16), hint: &str) -> String {
    let (columns, rows) = (usize::from(columns), usize::from(rows.saturating_sub(1)));
    let fitting = |line: &str| line.chars().take(columns).collect::<String>() + ERASE_LINE;
    let count = text.lines().count();
    let mut shown: Vec<_> = text.lines().skip(first).take(rows).map(fitting).collect();
    let place = match count > rows {
        true => format!("lines {}-{} of {count}  {hint}", first + 1, first + shown.len()),
        false => hint.to_owned(),
    };
    shown.resize(rows, ERASE_LINE.to_owned());
    shown.push(fitting(&place));
    // A newline in the last row would scroll too.
    [HOME, &shown.join("\r\n"), ERASE_REST].concat()
}

/// Restores the terminal; failures cannot be reported.
fn leave(out: &mut Stdout, keyboard: Option<KeyMode>) {
    let _ = write!(out, "{LEAVE}").and_then(|()| out.flush());
    let _ = keyboard.map(|keyboard| keyboard.restore(io::stdin().as_fd()));
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.live {
            leave(&mut self.out, self.keyboard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_no_larger_than_the_terminal() {
        let shown = |first| page("µs and more\nsecond\nthird\nfourth", first, (9, 3), "q");
        assert_eq!(shown(0), "\x1b[Hµs and mo\x1b[K\r\nsecond\x1b[K\r\nlines 1-2\x1b[K\x1b[J");
        assert_eq!(shown(2), "\x1b[Hthird\x1b[K\r\nfourth\x1b[K\r\nlines 3-4\x1b[K\x1b[J");
        assert_eq!(page("one", 0, (80, 3), "q"), "\x1b[Hone\x1b[K\r\n\x1b[K\r\nq\x1b[K\x1b[J");
        assert_eq!(page("one\ntwo", 0, (80, 1), "q"), "\x1b[Hlines 1-0 of 2  q\x1b[K\x1b[J");
    }

    #[test]
    fn scrolling_ends_at_the_ends() {
        let text = "a\nb\nc\nd\ne\nf";
        let last = last_first(text, (80, 4));
        assert_eq!(last, 3);
        let after = |first, key| scrolled(first, key, 2, last);
        assert_eq!((after(0, Key::LineUp), after(0, Key::LineDown), after(3, Key::LineDown)), (0, 1, 3));
        assert_eq!((after(0, Key::PageDown), after(2, Key::PageDown), after(1, Key::PageUp)), (2, 3, 0));
        assert_eq!((after(1, Key::Bottom), after(3, Key::Top)), (3, 0));
    }
}
