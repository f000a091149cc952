//! Checksums of blocks, and the rows that store a chunk's checksums.

/// Computes a block's checksum; never 0, which marks a missing block.
pub(super) fn checksum(block: &[u8]) -> u32 {
    crc32c::crc32c(block).max(1)
}

/// Counts the cached blocks in a chunk of `len` blocks.
pub(super) fn blocks_in(row: &[u8], len: usize) -> u64 {
    decoded(row, len).map_or(0, |sums| sums.iter().filter(|sum| **sum != 0).count() as u64)
}

pub(super) fn encoded(sums: &[u32]) -> Vec<u8> {
    let mut row: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    let checksum = crc32c::crc32c(&row);
    row.extend_from_slice(&checksum.to_le_bytes());
    row
}

/// Decodes a row. Returns `None` if it is damaged or of another length.
pub(super) fn decoded(row: &[u8], len: usize) -> Option<Vec<u32>> {
    let (row, sum) = row.split_last_chunk()?;
    let holds = crc32c::crc32c(row) == u32::from_le_bytes(*sum) && row.len() == len * 4;
    holds.then(|| row.as_chunks().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect())
}
