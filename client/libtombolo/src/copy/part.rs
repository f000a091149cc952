//! Names of parts (incomplete copies of files), and of the file that marks an unfinished directory.

use tombolo_core::Result;
use tombolo_core::fs::{NAME_MAX, Name, NameBuf};

const SUFFIX: &[u8] = b".tombolo-part";

/// Returns the name of a file until it is complete: `.NAME.tombolo-part`. If that exceeds `longest` bytes,
/// the end of `NAME` is replaced by a digest of the whole `NAME`.
pub fn part_name(name: Name<'_>, longest: u32) -> Result<NameBuf> {
    let longest = (longest as usize).clamp(64, NAME_MAX);
    let bytes = name.as_bytes();
    let mut part = vec![b'.'];
    if 1 + bytes.len() + SUFFIX.len() <= longest {
        part.extend_from_slice(bytes);
    } else {
        let digest = format!("~{:016x}", digest(bytes));
        let prefix_len = longest - 1 - SUFFIX.len() - digest.len();
        part.extend_from_slice(bytes.get(..prefix_len).unwrap_or(bytes));
        part.extend_from_slice(digest.as_bytes());
    }
    part.extend_from_slice(SUFFIX);
    Ok(Name::new(&part)?.to_owned())
}

/// Returns the name of the marker file in an unfinished copy of a directory of this name. The name differs
/// from those of the parts of files copied into the directory, unless a name was chosen to collide.
pub fn unfinished_name(source: Name<'_>) -> Result<NameBuf> {
    let name = [format!(".~{:016x}", digest(source.as_bytes())).as_bytes(), SUFFIX].concat();
    Ok(Name::new(&name)?.to_owned())
}

/// Hashes bytes by FNV-1a.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_have_parts_of_their_own() {
        let part = |bytes: &[u8]| part_name(Name::new(bytes).unwrap(), 255).unwrap();
        assert_eq!(part(b"a").as_name().as_bytes(), b".a.tombolo-part");
        let (one, other) = ([b'x'; 255], {
            let mut name = [b'x'; 255];
            name[254] = b'y';
            name
        });
        assert_ne!(part(&one), part(&other));
        assert_eq!(part(&one).as_name().as_bytes().len(), 255);
    }
}
