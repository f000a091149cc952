//! Detection of guest memory that the VMM does not share with this server.
//!
//! A private mapping (QEMU's memory-backend-file without `share=on`) also has a file, but the guest's writes
//! do not reach the file: the guest's rings stay empty for the server, and the guest hangs. The file does not
//! show that; `/proc/PID/maps` of the VMM does, if it is readable.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// Remedy that the log suggests for memory that is not shared.
pub(crate) const REMEDY: &str = "QEMU: -object memory-backend-memfd,id=mem,size=SIZE,share=on -numa node,memdev=mem, with the SIZE \
                                 of -m; Cloud Hypervisor: --memory shared=on";

/// Fault that the log reports for memory that is mapped privately.
pub(crate) const MAPPED_PRIVATELY: &str =
    "the guest will hang: its VMM has mapped its memory privately, so the guest's writes are not visible";

/// Returns one of `addresses` that the process `pid` has mapped privately. `None` if there is none, or if the
/// process's table of mappings is not readable.
pub(crate) fn private_address(pid: u32, addresses: &[u64]) -> Option<u64> {
    find_private(BufReader::new(File::open(format!("/proc/{pid}/maps")).ok()?), addresses)
}

/// Parses lines of the form `START-END PERMISSIONS …`; the last permission is `p` or `s` (proc_pid_maps(5)).
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
