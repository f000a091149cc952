//! Detection of guest memory that is not shared with the back end.
//!
//! A private mapping (QEMU's memory-backend-file without `share=on`) also has a file, but the guest's writes
//! do not reach it: its rings stay empty for the back end, and the guest hangs. The file does not show this;
//! the front end's table of mappings does, where it is readable.

use super::memory::MemorySlot;
use std::fs::File;
use std::io::{BufRead, BufReader};

/// Remedy for the log.
pub(crate) const REMEDY: &str = "QEMU: -object memory-backend-memfd,id=mem,size=SIZE,share=on -numa node,memdev=mem, with the SIZE \
                                 of -m; Cloud Hypervisor: --memory shared=on";

/// Returns the first slot that is mapped privately by the process `pid`; `None` also if its table is not
/// readable.
pub(crate) fn private_span(pid: u32, slots: &[MemorySlot]) -> Option<&MemorySlot> {
    find_private(BufReader::new(File::open(format!("/proc/{pid}/maps")).ok()?), slots)
}

/// Parses lines of the form `START-END PERMISSIONS …`; the last permission is `p` or `s` (proc_pid_maps(5)).
fn find_private(mut table: impl BufRead, slots: &[MemorySlot]) -> Option<&MemorySlot> {
    let mut line = Vec::new();
    while table.read_until(b'\n', &mut line).ok()? > 0 {
        let text = String::from_utf8_lossy(&line);
        let mut words = text.split_ascii_whitespace();
        let (range, permissions) = (words.next()?.split_once('-')?, words.next()?);
        let (start, end) = (address(range.0)?, address(range.1)?);
        let slot = slots.iter().find(|slot| (start..end).contains(&slot.user_address));
        if slot.is_some() && permissions.ends_with('p') {
            return slot;
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
    use tombolo_mem::Region;

    #[test]
    fn a_private_mapping_under_a_span_is_found() {
        let slot = |user_address| MemorySlot { guest_address: 0, user_address, region: Region::heap(1) };
        let table = b"1000-2000 rw-s 00000000 00:01 1 /memfd:mem (deleted)\n\
            2000-4000 rw-p 00000000 00:01 2 /dev/shm/\xff x\n7fff0000-7fff1000 r-xp 00000000 00:00 0 [vdso]\n";
        let found = |at: &[u64]| {
            let slots: Vec<_> = at.iter().copied().map(slot).collect();
            find_private(&table[..], &slots).map(|slot| slot.user_address)
        };
        assert_eq!(found(&[0x1000, 0x3000]), Some(0x3000));
        assert_eq!(found(&[0x1000, 0x4000]), None);
        assert_eq!(find_private(&b"nonsense\n"[..], &[slot(0)]).map(|slot| slot.user_address), None);
    }
}
