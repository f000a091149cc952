//! File transfer over bare TCP: data one way, and one byte back to confirm them. An upper bound for any
//! protocol.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::super::{Stream, Wait};

/// Size of a read or write.
const PIECE_BYTES: usize = 256 << 10;
/// Size of a request: kind and length.
const REQUEST_BYTES: usize = 9;

/// Kind of transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bulk {
    /// Data are sent and dropped.
    Away = 0,
    /// Data are received from memory.
    FromMemory = 1,
    /// Data are sent and written to a file.
    ToFile = 2,
}

/// Name of the written file in the server's folder.
const FILE: &str = "bulk";

/// Serves requests until the client disconnects.
pub fn converse(mut stream: Stream, folder: &Path) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut file = None;
    loop {
        let mut request = [0; REQUEST_BYTES];
        if !read_all(&mut stream, &mut request)? {
            return Ok(());
        }
        let [what, bytes @ ..] = request;
        let mut left = u64::from_be_bytes(bytes);
        if what == Bulk::FromMemory as u8 {
            while left > 0 {
                let now = piece(left);
                stream.write_all(&buffer[..now])?;
                left -= now as u64;
            }
            continue;
        }
        let mut at = 0;
        while left > 0 {
            let got = stream.read(&mut buffer[..piece(left)])?;
            if got == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if what == Bulk::ToFile as u8 {
                opened(&mut file, folder)?.write_all_at(&buffer[..got], at)?;
                at += got as u64;
            }
            left -= got as u64;
        }
        stream.write_all(&[what])?;
    }
}

fn piece(left: u64) -> usize {
    usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES)
}

fn opened<'f>(file: &'f mut Option<File>, folder: &Path) -> io::Result<&'f mut File> {
    let open = || OpenOptions::new().write(true).create(true).truncate(false).open(folder.join(FILE));
    match file {
        Some(file) => Ok(file),
        none => Ok(none.insert(open()?)),
    }
}

/// Reads a complete buffer; returns `false` at the end of the stream.
fn read_all(stream: &mut Stream, into: &mut [u8]) -> io::Result<bool> {
    let mut have = 0;
    while have < into.len() {
        match stream.read(&mut into[have..])? {
            0 if have == 0 => return Ok(false),
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => have += count,
        }
    }
    Ok(true)
}

pub struct BulkClient {
    stream: Stream,
    buffer: Vec<u8>,
}

impl BulkClient {
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { stream: Stream::connect(address, Wait::Sleep)?, buffer: vec![0; PIECE_BYTES] })
    }

    /// Transfers a file of `bytes`, sent without a copy.
    pub fn transfer(&mut self, bulk: Bulk, file: &[u8], bytes: u64) -> io::Result<()> {
        let mut request = vec![bulk as u8];
        request.extend(bytes.to_be_bytes());
        if bulk == Bulk::FromMemory {
            self.stream.write_all(&request)?;
            let mut left = bytes;
            while left > 0 {
                match self.stream.read(&mut self.buffer[..piece(left)])? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    got => left -= got as u64,
                }
            }
            return Ok(());
        }
        let first = file.get(..piece(bytes)).unwrap_or(file);
        self.stream.write_parts(&mut [io::IoSlice::new(&request), io::IoSlice::new(first)])?;
        let mut at = first.len();
        while (at as u64) < bytes {
            let now = piece(bytes - at as u64);
            self.stream.write_all(file.get(at..at + now).unwrap_or_default())?;
            at += now;
        }
        let mut done = [0];
        if read_all(&mut self.stream, &mut done)? { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn files_of_several_pieces_go_both_ways() {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let within = folder.path().to_owned();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            converse(Stream::new(stream, Wait::SpinBriefly).unwrap(), &within)
        });
        let file: Vec<u8> = (0..3 * PIECE_BYTES + 5).map(|at| (at / 3) as u8).collect();
        let mut client = BulkClient::connect(address).unwrap();
        for bulk in [Bulk::ToFile, Bulk::Away, Bulk::FromMemory] {
            client.transfer(bulk, &file, file.len() as u64).unwrap();
        }
        assert!(std::fs::read(folder.path().join(FILE)).unwrap() == file);
    }
}
