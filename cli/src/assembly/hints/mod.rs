//! Commands for the peer of each endpoint.

pub mod disk;
pub mod nfs;
pub mod shm;

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;

/// Prints a line for each VMM that can connect to the socket, and one for the guest. `index` is the position
/// of the socket among the server's: devices of one guest need different ids.
pub fn virtiofs(
    out: &mut impl Write,
    index: usize,
    socket: &Path,
    tag: &str,
    request_queues: u16,
) -> io::Result<()> {
    let socket = socket.display().to_string();
    let queues = match request_queues {
        1 => String::new(),
        queues => format!(",num-request-queues={queues}"),
    };
    let shared = SHARED_MEMORY;
    let device = format!("vhost-user-fs-pci,queue-size=1024,chardev=fs{index},tag={tag}{queues}");
    let chardev = format!("socket,id=fs{index},path={}", for_qemu(&socket));
    let cloud = format!("tag={tag},socket={socket},num_queues={request_queues},queue_size=1024");
    writeln!(out, "  QEMU:       {shared} -chardev {} -device {device}", quoted(&chardev))?;
    writeln!(out, "  guest:      mount -t virtiofs {tag} /mnt")?;
    writeln!(out, "  UML:        {}", quoted(&format!("virtio_uml.device={socket}:26")))?;
    writeln!(out, "  Cloud Hypervisor (untested): --memory size=1G,shared=on --fs {}", quoted(&cloud))?;
    writeln!(out, "  crosvm (untested): --vhost-user {}", quoted(&format!("fs,socket={socket}")))
}

/// QEMU options for memory that vhost-user back ends can map.
const SHARED_MEMORY: &str =
    "-m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem";

/// Escapes commas in an option's value for QEMU, by doubling them.
fn for_qemu(path: &str) -> String {
    path.replace(',', ",,")
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> Cow<'_, str> {
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

    /// Returns the output of `write` as text.
    pub fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).expect("memory takes it");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn virtiofs_hints_quote_odd_paths_for_qemu() {
        for (socket, queues, parts) in [
            (
                "/run/vm.sock",
                1,
                &[
                    "-object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem",
                    "-chardev socket,id=fs0,path=/run/vm.sock -device vhost-user-fs-pci,",
                    "mount -t virtiofs src /mnt",
                ][..],
            ),
            (
                "/run/my vm,1.sock",
                2,
                &["-chardev 'socket,id=fs0,path=/run/my vm,,1.sock'", "tag=src,num-request-queues=2"],
            ),
        ] {
            let text = text(|out| virtiofs(out, 0, Path::new(socket), "src", queues));
            for part in parts {
                assert!(text.contains(part), "{part}\nnot in\n{text}");
            }
        }
    }
}
