//! The log of requests and answers: lines of a file, each written at once, so that they survive their writer.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::links::model::{Action, Model};

/// The log of successive clients.
#[derive(Debug)]
pub struct Log(File);

/// The state described by a log.
#[derive(Debug, Default)]
pub struct History {
    /// Required content of the tree.
    pub model: Model,
    /// Number of the last request.
    pub number: u64,
    /// Count of answered requests.
    pub answered: u64,
}

impl Log {
    /// Opens a log to append to.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self(File::options().create(true).append(true).open(path)?))
    }

    /// Records a request before it is sent.
    pub fn asked(&mut self, number: u64, action: Action) -> Result<()> {
        self.line(&format!("asked {number} {action}\n"))
    }

    /// Records an answer, with the number of bytes for an append.
    pub fn answered(&mut self, number: u64, count: u64) -> Result<()> {
        self.line(&format!("answered {number} {count}\n"))
    }

    fn line(&mut self, text: &str) -> Result<()> {
        Ok(self.0.write_all(text.as_bytes())?)
    }
}

impl History {
    /// Reads a log. Requests not answered before another client took over are in doubt, as is the last one.
    pub fn read(path: &Path) -> Result<Self> {
        let mut history = Self::default();
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let mut open: Option<(u64, Action)> = None;
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let bad = || Failure::Process(format!("malformed line in the log: {line}"));
            let mut words = line.splitn(3, ' ');
            let (what, number, rest) = (words.next(), words.next(), words.next());
            let (number, rest) =
                (number.and_then(|number| number.parse().ok()).ok_or_else(bad)?, rest.ok_or_else(bad)?);
            match what {
                Some("asked") => {
                    if let Some((_, doubted)) = open.replace((number, Action::read(rest).ok_or_else(bad)?)) {
                        history.model.doubt(doubted);
                    }
                    history.number = number;
                }
                Some("answered") => {
                    let (asked, action) = open.take().ok_or_else(bad)?;
                    if asked != number {
                        return Err(bad());
                    }
                    history.model.apply(action, rest.parse().map_err(|_| bad())?);
                    history.answered += 1;
                }
                _ => return Err(bad()),
            }
        }
        if let Some((_, doubted)) = open {
            history.model.doubt(doubted);
        }
        Ok(history)
    }
}
