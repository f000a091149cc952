//! Parser of `/proc/thread-self/mountinfo` (proc_pid_mountinfo(5)), line by line.

use std::{fs, io};

/// Returns the lines of all mounts visible to this thread; of two mounts at one point, the later line is that
/// of the upper one. Queries no file system that could block.
pub fn lines() -> io::Result<Vec<Vec<u8>>> {
    let table = fs::read("/proc/thread-self/mountinfo")?;
    Ok(table.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
}

/// Returns the kernel's id of the mount: the first field. `None` for an invalid line.
pub fn number(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line.split(|&byte| byte == b' ').next()?).ok()?.parse().ok()
}

/// Returns the device of the mounted file system, as `MAJOR:MINOR`: the third field. `None` for an invalid
/// line.
pub fn device(line: &[u8]) -> Option<&str> {
    std::str::from_utf8(line.split(|&byte| byte == b' ').nth(2)?).ok()
}

/// Returns the mount point: the fifth field, in which blanks, backslashes and a few other bytes are encoded
/// as a backslash and three octal digits. `None` for an invalid line.
pub fn point(line: &[u8]) -> Option<Vec<u8>> {
    let field = line.split(|&byte| byte == b' ').nth(4)?;
    let mut point = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'\\').then(|| after.split_first_chunk::<3>()).flatten();
        if let Some((digits, after)) = escaped {
            let value = digits.iter().try_fold(0_u32, |value, digit| {
                (b'0'..=b'7').contains(digit).then(|| value * 8 + u32::from(digit - b'0'))
            });
            point.push(u8::try_from(value?).ok()?);
            rest = after;
        } else {
            point.push(byte);
            rest = after;
        }
    }
    Some(point)
}

/// Returns the mount's own options, such as `ro,nosuid`: the sixth field. `None` for an invalid line.
pub fn options(line: &[u8]) -> Option<&str> {
    std::str::from_utf8(line.split(|&byte| byte == b' ').nth(5)?).ok()
}

/// Returns the type of the file system, such as `fuse.tombolo`: the first field after the hyphen. `None` for
/// an invalid line.
pub fn kind(line: &[u8]) -> Option<&str> {
    let fields = line.split(|&byte| byte == b' ').skip(6);
    std::str::from_utf8(fields.skip_while(|field| *field != b"-").nth(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_read_with_its_blanks() {
        let line = b"36 35 98:0 /mnt1 /mnt/a\\040b\\134c rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(point(line).as_deref(), Some(&b"/mnt/a b\\c"[..]));
        assert_eq!((number(line), device(line)), (Some(36), Some("98:0")));
        assert_eq!((options(line), kind(line)), (Some("rw,noatime"), Some("ext3")));
        assert_eq!((options(b"36 35"), kind(b"36 35 98:0 / / rw")), (None, None));
        assert_eq!((point(b"36 35"), number(b"x 35"), device(b"36 35")), (None, None, None));
        assert_eq!(point(b"1 2 3 4 /\\999 x"), None);
    }
}
