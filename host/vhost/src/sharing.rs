//! Whether the memory that a front end names is the one that its guest runs on.
//!
//! A mapping that is private to the front end (QEMU's memory-backend-file without `share=on`) comes with a file all the same, but what
//! the guest writes does not get there: its rings stay empty for us, and the guest waits for ever. The file does not tell; the table
//! of the front end's mappings does, where we may read it.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// What to do about it, for the log.
pub(crate) const REMEDY: &str = "QEMU: -object memory-backend-memfd,id=mem,size=SIZE,share=on -numa node,memdev=mem, with the SIZE \
                                 of -m; Cloud Hypervisor: --memory shared=on";

/// What is wrong, for the log.
pub(crate) const MAPPED_PRIVATELY: &str =
    "the guest will hang: its VMM has mapped its memory privately, so that we do not see what it writes";

/// The first of the addresses in the process `pid` that is private to it; none also where its table cannot be read.
pub(crate) fn private_address(pid: u32, addresses: &[u64]) -> Option<u64> {
    find_private(BufReader::new(File::open(format!("/proc/{pid}/maps")).ok()?), addresses)
}

/// A line is `START-END PERMISSIONS …`, and the last of the permissions is `p` or `s` (proc_pid_maps(5)).
fn find_private(mut table: impl BufRead, addresses: &[u64]) -> Option<u64> {
    let mut line = Vec::new();
    while table.read_until(b'\n', &mut line).ok()? > 0 {
        let text = String::from_utf8_lossy(&line);
        let mut words = text.split_ascii_whitespace();
        let (range, permissions) = (words.next()?.split_once('-')?, words.next()?);
        let (start, end) = (address(range.0)?, address(range.1)?);
        let found = addresses.iter().find(|address| (start..end).contains(address));
        if found.is_some() && permissions.ends_with('p') {
            return found.copied();
        }
        line.clear();
    }
    None
}

fn address(hex: &str) -> Option<u64> {
    u64::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_mapping_under_a_span_is_found() {
        let table = b"1000-2000 rw-s 00000000 00:01 1 /memfd:mem (deleted)\n\
            2000-4000 rw-p 00000000 00:01 2 /dev/shm/\xff x\n7fff0000-7fff1000 r-xp 00000000 00:00 0 [vdso]\n";
        assert_eq!(find_private(&table[..], &[0x1000, 0x3000]), Some(0x3000));
        assert_eq!(find_private(&table[..], &[0x1000, 0x4000]), None);
        assert_eq!(find_private(&b"nonsense\n"[..], &[0]), None);
    }
}
