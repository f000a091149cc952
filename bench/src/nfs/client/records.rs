//! Record marking (RFC 5531 §11) for a client that examines the start of replies and drops the remainder:
//! `wire/rpc`'s assembler stores complete records, which would copy all file data.

use tombolo_wire_rpc::Mark;

/// Splitter of a stream into records, of which it stores the beginning.
#[derive(Debug)]
pub struct Records {
    /// Number of bytes stored per record.
    keep_bytes: usize,
    /// Incomplete mark.
    mark: Vec<u8>,
    /// Remaining bytes of the fragment.
    left_bytes: usize,
    last: bool,
    head: Vec<u8>,
    len: usize,
}

/// A complete record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub head: &'a [u8],
    pub len: usize,
}

impl Records {
    /// Creates a splitter that stores the first `keep_bytes` of each record.
    pub fn new(keep_bytes: usize) -> Self {
        Self { keep_bytes, mark: Vec::new(), left_bytes: 0, last: false, head: Vec::new(), len: 0 }
    }

    /// Processes received bytes, and calls `each` for every record that ends in them.
    pub fn feed<E>(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            if self.left_bytes == 0 && !self.last {
                if self.len == 0 && self.mark.is_empty() {
                    bytes = self.whole(bytes, &mut each)?;
                }
                bytes = self.take_mark(bytes);
            }
            let (now, rest) = bytes.split_at(bytes.len().min(self.left_bytes));
            let room = self.keep_bytes.saturating_sub(self.head.len());
            self.head.extend_from_slice(now.get(..room).unwrap_or(now));
            self.len += now.len();
            self.left_bytes -= now.len();
            bytes = rest;
            if self.last && self.left_bytes == 0 {
                each(Record { head: &self.head, len: self.len })?;
                self.head.clear();
                (self.len, self.last) = (0, false);
            }
        }
        Ok(())
    }

    /// Handles complete single-fragment records in place. Returns the remaining bytes.
    fn whole<'b, E>(
        &self,
        mut bytes: &'b [u8],
        each: &mut impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<&'b [u8], E> {
        while let Some((mark, rest)) = bytes.split_first_chunk() {
            let mark = Mark::from_bytes(*mark);
            let Some((record, rest)) = rest.split_at_checked(mark.len_bytes as usize) else { break };
            if !mark.last {
                break;
            }
            each(Record { head: record.get(..self.keep_bytes).unwrap_or(record), len: record.len() })?;
            bytes = rest;
        }
        Ok(bytes)
    }

    fn take_mark<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (now, rest) = bytes.split_at(bytes.len().min(4 - self.mark.len()));
        self.mark.extend_from_slice(now);
        if let Ok(mark) = <[u8; 4]>::try_from(self.mark.as_slice()) {
            let mark = Mark::from_bytes(mark);
            (self.left_bytes, self.last) = (mark.len_bytes as usize, mark.last);
            self.mark.clear();
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn mark(len: usize) -> [u8; 4] {
        Mark::whole(len).unwrap().to_bytes()
    }

    #[test]
    fn records_do_not_depend_on_stream_chunks() {
        let mut stream = Vec::new();
        for record in [&b"abcdefgh"[..], b"", b"0123456789"] {
            stream.extend(mark(record.len()));
            stream.extend(record);
        }
        // A record of two fragments.
        stream.extend([0, 0, 0, 3]);
        stream.extend(b"xyz");
        stream.extend(mark(2));
        stream.extend(b"!?");
        stream.extend(mark(1));
        stream.extend(b".");
        let expected = [("abcd", 8), ("", 0), ("0123", 10), ("xyz!", 5), (".", 1)];
        for piece in 1..stream.len() {
            let mut records = Records::new(4);
            let mut found = Vec::new();
            for bytes in stream.chunks(piece) {
                let fed: Result<(), Infallible> = records.feed(bytes, |record| {
                    found.push((String::from_utf8(record.head.to_vec()).unwrap(), record.len));
                    Ok(())
                });
                fed.unwrap();
            }
            let found: Vec<_> = found.iter().map(|(head, len)| (head.as_str(), *len)).collect();
            assert_eq!(found, expected, "in pieces of {piece}");
        }
    }
}
