//! The user running a command.

use std::fs;

use tombolo_core::Identity;
use tombolo_core::fs::Mode;
use tombolo_sys::creds;

/// Identity presented to servers, and the umask for new files.
#[derive(Clone, Debug)]
pub struct Myself {
    pub identity: Identity,
    pub umask: Mode,
}

impl Myself {
    /// Reads the user's identity, and the umask of the initial thread, which changes while that thread
    /// creates a file.
    pub fn ask() -> Self {
        let (uid, gid) = creds::own_ids();
        // Without /proc nothing local can be opened anyway.
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let groups: Vec<u32> = field(&status, "Groups:")
            .unwrap_or("")
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let umask = field(&status, "Umask:").and_then(|bits| u32::from_str_radix(bits, 8).ok());
        let groups = (!groups.is_empty()).then(|| groups.into());
        Self { identity: Identity { uid, gid, groups }, umask: Mode::new(umask.unwrap_or(0o022)) }
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = "Name:\tx\nUmask:\t0027\nGroups:\t4 24 \n";
        assert_eq!((field(status, "Umask:"), field(status, "Groups:")), (Some("0027"), Some("4 24")));
        assert_eq!(field(status, "Uid:"), None);
    }
}
