//! Detection of zeroes in data.

/// Splits bytes into data and zeroes, in units of `unit_bytes`: the end of each part, and whether it is zero.
pub(crate) fn parts_of(bytes: &[u8], unit_bytes: usize) -> Vec<(usize, bool)> {
    let mut parts: Vec<(usize, bool)> = Vec::new();
    let mut end = 0;
    for unit in bytes.chunks(unit_bytes) {
        end += unit.len();
        let is_zero = are_zero(unit);
        match parts.last_mut() {
            Some(last) if last.1 == is_zero => last.0 = end,
            _ => parts.push((end, is_zero)),
        }
    }
    parts
}

/// Returns `true` if all bytes are zero. Works by cache lines, which the compiler vectorizes.
pub(crate) fn are_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT_BYTES: usize = 4 << 10;

    #[test]
    fn only_whole_units_of_zeroes_are_zero() {
        let mut bytes = vec![0; 5 * UNIT_BYTES];
        bytes[UNIT_BYTES] = 1;
        bytes[4 * UNIT_BYTES - 1] = 1;
        let units = |parts: Vec<(usize, bool)>| -> Vec<_> {
            parts.into_iter().map(|(end, is_zero)| (end / UNIT_BYTES, is_zero)).collect()
        };
        let found = units(parts_of(&bytes, UNIT_BYTES));
        assert_eq!(found, [(1, true), (2, false), (3, true), (4, false), (5, true)]);
        assert_eq!(units(parts_of(&bytes, 4 * UNIT_BYTES)), [(4, false), (5, true)]);
        assert_eq!(parts_of(&[0; 512], UNIT_BYTES), [(512, true)], "the end of a disk");
    }
}
