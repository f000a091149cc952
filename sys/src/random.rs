//! Cryptographically secure random bytes.

use crate::errno::{Errno, Result, check, retry};

/// Fills `bytes` from the kernel's generator. Blocks only in the first moments after boot, until the
/// generator is seeded.
pub fn fill(bytes: &mut [u8]) -> Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = retry(|| {
            // SAFETY: the kernel writes at most `len` bytes, into a buffer of that size.
            let outcome = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
            check(outcome as libc::c_long)
        })?;
        rest = rest.get_mut(count..).ok_or(Errno::IO)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_filled() {
        let mut seen = [0_u8; 300];
        for _ in 0..64 {
            let mut bytes = [0; 300];
            fill(&mut bytes).expect("random bytes");
            seen.iter_mut().zip(bytes).for_each(|(seen, byte)| *seen |= byte);
        }
        assert!(seen.iter().all(|&bits| bits.count_ones() >= 7));
        fill(&mut []).expect("nothing asked for");
    }
}
