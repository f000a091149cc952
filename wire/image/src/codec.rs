//! Encoding and decoding of a sidecar's head, which is all of it except the tables of digests.

use tombolo_core::fs::Timestamp;

use crate::{
    Advice, BLOCK_BYTES, DIGEST_BYTES, Digest, FILES_MAX, HEAD_BYTES_MAX, ImageFile, Malformed, Result,
    STEPS_MAX, Sidecar, Step, ZeroMap, digest,
};

const MAGIC: &[u8; 8] = b"TOMBOIMG";

const VERSION: u32 = 1;

/// Length of the prefix that contains the head's length, in bytes.
pub const PREFIX_BYTES: usize = 16;

/// Returns the length of the head with this prefix, in bytes, at most [`HEAD_BYTES_MAX`].
///
/// # Errors
/// [`Malformed::Magic`], [`Malformed::Version`], or [`Malformed::Length`] for a length that no head can have.
pub fn head_bytes(prefix: &[u8; PREFIX_BYTES]) -> Result<usize> {
    let mut reader = Reader(prefix);
    if reader.take(MAGIC.len())? != MAGIC {
        return Err(Malformed::Magic);
    }
    let (version, bytes) = (reader.u32()?, reader.u32()? as usize);
    match version {
        VERSION if (PREFIX_BYTES + DIGEST_BYTES..=HEAD_BYTES_MAX).contains(&bytes) => Ok(bytes),
        VERSION => Err(Malformed::Length),
        _ => Err(Malformed::Version(version)),
    }
}

/// Returns a head: the body, enclosed in a prefix with magic, version and length, and the digest of both.
///
/// # Errors
/// [`Malformed::TooLarge`].
pub fn sealed(body: &[u8]) -> Result<Vec<u8>> {
    let len = PREFIX_BYTES + body.len() + DIGEST_BYTES;
    let len_field = u32::try_from(len).ok().filter(|_| len <= HEAD_BYTES_MAX).ok_or(Malformed::TooLarge)?;
    let mut head = [&MAGIC[..], &VERSION.to_le_bytes(), &len_field.to_le_bytes(), body].concat();
    head.extend(digest(&head));
    Ok(head)
}

impl Sidecar {
    /// Encodes the head of a sidecar. The tables of digests follow it ([`Sidecar::tables`]).
    ///
    /// # Errors
    /// [`Malformed::TooLarge`]; [`Malformed::Value`] for values that a sidecar cannot contain.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        let count = |count: usize| u32::try_from(count).map_err(|_| Malformed::TooLarge);
        body.extend(count(self.files.len())?.to_le_bytes());
        body.extend(count(self.trace.len())?.to_le_bytes());
        for file in &self.files {
            body.push(file.name.len().try_into().map_err(|_| Malformed::Value)?);
            body.extend(&file.name);
            body.extend(file.size.to_le_bytes());
            body.extend(file.mtime.secs.to_le_bytes());
            body.extend(file.mtime.nanos.to_le_bytes());
            body.extend(file.block_bytes.to_le_bytes());
            body.push(match file.advice {
                Advice::OnDemand => 0,
                Advice::Whole => 1,
            });
            body.push(file.table.is_some().into());
            body.extend(file.table.iter().flatten());
            let runs = file.zeros.runs();
            body.extend(count(runs.len())?.to_le_bytes());
            let mut end = 0;
            for run in runs {
                put_varint(&mut body, run.start - end);
                put_varint(&mut body, run.end - run.start);
                end = run.end;
            }
        }
        for step in &self.trace {
            [step.file.into(), step.start, step.count].iter().for_each(|value| put_varint(&mut body, *value));
        }
        let head = sealed(&body)?;
        // The head is decoded once, so that nothing is written that could not be read.
        Self::decode(&head).map(|_| head)
    }

    /// Decodes a whole head, of the length that [`head_bytes`] returned for its prefix.
    ///
    /// # Errors
    /// [`Malformed`]; in particular, [`Malformed::Digest`] while another process is writing the sidecar.
    pub fn decode(head: &[u8]) -> Result<Self> {
        let prefix = head.first_chunk().ok_or(Malformed::Length)?;
        if head_bytes(prefix)? != head.len() {
            return Err(Malformed::Length);
        }
        let (content, stored) = head.split_last_chunk::<DIGEST_BYTES>().ok_or(Malformed::Length)?;
        if digest(content) != *stored {
            return Err(Malformed::Digest);
        }
        let mut reader = Reader(content.get(PREFIX_BYTES..).ok_or(Malformed::Length)?);
        let (files, steps) = (reader.u32()? as usize, reader.u32()? as usize);
        if files > FILES_MAX || steps > STEPS_MAX {
            return Err(Malformed::Value);
        }
        let mut sidecar = Self::default();
        for _ in 0..files {
            let file = reader.file()?;
            let is_next = sidecar.files.last().is_none_or(|last| last.name < file.name);
            sidecar.files.push(Some(file).filter(|_| is_next).ok_or(Malformed::Value)?);
        }
        for _ in 0..steps {
            let step = reader.step(&sidecar.files)?;
            sidecar.trace.push(step);
        }
        if reader.0.is_empty() { Ok(sidecar) } else { Err(Malformed::Length) }
    }
}

/// The remaining bytes of a head.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Decodes a number in groups of seven bits, the lowest first, which must be encoded in the minimum
    /// number of bytes.
    fn varint(&mut self) -> Result<u64> {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift > 63 || (bits << shift) >> shift != bits || (byte == 0 && shift > 0) {
                return Err(Malformed::Value);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            shift += 7;
        }
    }

    fn file(&mut self) -> Result<ImageFile> {
        let len = self.u8()?.into();
        let name = self.take(len)?.to_vec();
        let is_name = !name.is_empty() && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
        let size = self.u64()?;
        let mtime = Timestamp { secs: self.array().map(i64::from_le_bytes)?, nanos: self.u32()? };
        let block_bytes = self.u32()?;
        let is_block = block_bytes.is_power_of_two() && BLOCK_BYTES.contains(&block_bytes);
        if !is_name || mtime.nanos >= 1_000_000_000 || !is_block {
            return Err(Malformed::Value);
        }
        let advice = match self.u8()? {
            0 => Advice::OnDemand,
            1 => Advice::Whole,
            _ => return Err(Malformed::Value),
        };
        let table: Option<Digest> = match self.u8()? {
            0 => None,
            1 => Some(self.array()?),
            _ => return Err(Malformed::Value),
        };
        let mut file = ImageFile { name, size, mtime, block_bytes, advice, zeros: ZeroMap::default(), table };
        file.zeros = self.zeros(file.blocks())?;
        Ok(file)
    }

    /// Decodes the runs of zero blocks of a file with this number of blocks.
    fn zeros(&mut self, blocks: u64) -> Result<ZeroMap> {
        let (mut zeros, mut end) = (ZeroMap::default(), 0_u64);
        for index in 0..self.u32()? {
            let (gap, count) = (self.varint()?, self.varint()?);
            let start = end.checked_add(gap).ok_or(Malformed::Value)?;
            end = start.checked_add(count).filter(|end| *end <= blocks).ok_or(Malformed::Value)?;
            // Adjacent runs must be encoded as one.
            if (index > 0 && gap == 0) || !zeros.add(start..end) {
                return Err(Malformed::Value);
            }
        }
        Ok(zeros)
    }

    fn step(&mut self, files: &[ImageFile]) -> Result<Step> {
        let (file, start, count) = (self.varint()?, self.varint()?, self.varint()?);
        let index = u32::try_from(file).map_err(|_| Malformed::Value)?;
        let blocks = files.get(index as usize).ok_or(Malformed::Value)?.blocks();
        let is_within = start.checked_add(count).is_some_and(|end| count > 0 && end <= blocks);
        if is_within { Ok(Step { file: index, start, count }) } else { Err(Malformed::Value) }
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
