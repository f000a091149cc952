//! A worker's calls, for reports and for repetition.

use std::collections::VecDeque;

use tombolo_wire_nfs3::{Call, Procedure};
use tombolo_wire_xdr::{Decode, Decoder};

use tombolo_nfs_tests::client::Message;

use crate::failure::Result;
use crate::nfs::client::Answer;

const LINES: usize = 40;
const KEPT: usize = 8;

/// The most recent calls.
#[derive(Debug, Default)]
pub struct History {
    lines: VecDeque<String>,
    kept: VecDeque<(Message, Procedure)>,
}

/// The first word of all results.
struct StatusWord(u32);

impl<'a> Decode<'a> for StatusWord {
    fn decode(xdr: &mut Decoder<'a>) -> tombolo_wire_xdr::Result<Self> {
        xdr.u32().map(Self)
    }
}

impl History {
    /// Records a call.
    pub fn begin(&mut self, message: &Message, call: &Call<'_>) {
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        let mut text = format!("{:08x} {call:?}", message.xid);
        text.truncate(400);
        self.lines.push_back(text);
    }

    /// Records its answer.
    pub fn end(&mut self, answer: &Answer) -> Result<()> {
        let StatusWord(status) = answer.results()?;
        if let Some(line) = self.lines.back_mut() {
            *line += &format!(" -> status {status}, sent {} times", answer.sends);
        }
        Ok(())
    }

    /// Stores a successful call for later repetition.
    pub fn keep(&mut self, message: Message, procedure: Procedure) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((message, procedure));
    }

    /// Returns one of the stored calls.
    pub fn kept(&self, pick: impl FnOnce(usize) -> usize) -> Option<(Message, Procedure)> {
        if self.kept.is_empty() { None } else { self.kept.get(pick(self.kept.len())).cloned() }
    }

    /// Adds a line.
    pub fn note(&mut self, text: String) {
        self.lines.push_back(text);
    }

    /// Returns the lines of the report.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}
