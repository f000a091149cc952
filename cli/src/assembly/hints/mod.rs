//! What to type on the other side.

pub mod nfs;
pub mod shm;

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;

/// One socket that waits for a VMM.
#[derive(Debug)]
pub struct VirtioFsHint<'a> {
    /// Its absolute path.
    pub socket: &'a Path,
    /// What the guest calls the share.
    pub tag: &'a str,
    /// Where the socket stands among the server's: devices of one guest need different ids.
    pub index: usize,
    /// How many request queues the device has.
    pub request_queues: u16,
}

impl VirtioFsHint<'_> {
    /// Writes a line for each VMM, and one for the guest.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { tag, index, .. } = self;
        let socket = self.socket.display().to_string();
        // QEMU takes a doubled comma for one in a path.
        let doubled = socket.replace(',', ",,");
        let queues = match self.request_queues {
            1 => String::new(),
            queues => format!(",num-request-queues={queues}"),
        };
        let shared = "-m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem";
        let device = format!("vhost-user-fs-pci,queue-size=1024,chardev=fs{index},tag={tag}{queues}");
        let chardev = quoted(&format!("socket,id=fs{index},path={doubled}")).into_owned();
        let cloud =
            quoted(&format!("tag={tag},socket={socket},num_queues={},queue_size=1024", self.request_queues))
                .into_owned();
        let crosvm = quoted(&format!("fs,socket={socket}")).into_owned();
        writeln!(out, "  QEMU:       {shared} -chardev {chardev} -device {device}")?;
        writeln!(out, "  guest:      mount -t virtiofs {tag} /mnt")?;
        writeln!(out, "  UML:        {}", quoted(&format!("virtio_uml.device={socket}:26")))?;
        writeln!(out, "  Cloud Hypervisor (untested): --memory size=1G,shared=on --fs {cloud}")?;
        writeln!(out, "  crosvm (untested): --vhost-user {crosvm}")
    }
}

/// A word as a shell wants it.
pub(super) fn quoted(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=,:@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        Cow::Borrowed(word)
    } else {
        Cow::Owned(format!("'{}'", word.replace('\'', r"'\''")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(socket: &str, request_queues: u16) -> String {
        let hint = VirtioFsHint { socket: Path::new(socket), tag: "src", index: 0, request_queues };
        let mut out = Vec::new();
        hint.write(&mut out).expect("memory takes it");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn the_options_are_those_that_qemu_takes() {
        let text = text("/run/vm.sock", 1);
        assert!(
            text.contains("-object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem"),
            "{text}"
        );
        assert!(
            text.contains("-chardev socket,id=fs0,path=/run/vm.sock -device vhost-user-fs-pci,"),
            "{text}"
        );
        assert!(text.contains("mount -t virtiofs src /mnt"), "{text}");
    }

    #[test]
    fn odd_paths_survive_the_shell_and_qemu() {
        let text = text("/run/my vm,1.sock", 2);
        assert!(text.contains("-chardev 'socket,id=fs0,path=/run/my vm,,1.sock'"), "{text}");
        assert!(text.contains("tag=src,num-request-queues=2"), "{text}");
    }
}
