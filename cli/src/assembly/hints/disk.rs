//! Commands for clients of disks.

use std::io::{self, Write};
use std::path::Path;

use super::{SHARED_MEMORY, for_qemu, quoted};

/// Prints a line for each VMM that can connect to the socket, and one for the guest. `index` is the position
/// of the socket among the server's.
pub fn vhost_user(
    out: &mut impl Write,
    index: usize,
    socket: &Path,
    queues: u16,
    serial: &str,
) -> io::Result<()> {
    let socket = socket.display().to_string();
    let chardev = format!("socket,id=disk{index},path={},reconnect=1", for_qemu(&socket));
    let device = format!("vhost-user-blk-pci,chardev=disk{index},num-queues={queues}");
    let by_id = format!("/dev/disk/by-id/virtio-{serial}");
    let libvirt = format!(
        "<disk type='vhostuser' device='disk'><driver name='qemu' type='raw' queues='{queues}'/><source type='unix' path='{}'>\
         <reconnect enabled='yes' timeout='1'/></source><target dev='vda' bus='virtio'/></disk>",
        for_xml(&socket)
    );
    let cloud = format!("vhost_user=true,socket={socket},num_queues={queues}");
    writeln!(out, "  QEMU:       {SHARED_MEMORY} -chardev {} -device {device}", quoted(&chardev))?;
    writeln!(out, "  libvirt:    {libvirt}")?;
    writeln!(out, "  guest:      mount {} /mnt", quoted(&by_id))?;
    writeln!(out, "  UML:        {}", quoted(&format!("virtio_uml.device={socket}:2")))?;
    writeln!(out, "  Cloud Hypervisor (untested): --memory size=1G,shared=on --disk {}", quoted(&cloud))?;
    writeln!(out, "  crosvm (untested): --vhost-user {}", quoted(&format!("block,socket={socket}")))
}

/// Prints commands for using a disk over NBD. `at` is `unix:PATH` or `HOST:PORT`.
pub fn nbd(out: &mut impl Write, at: &str, url: &str, export: &str, is_secure: bool) -> io::Result<()> {
    if is_secure {
        writeln!(out, "  libnbd:     nbdinfo {}", quoted(&format!("{url}?tls-certificates=DIR")))?;
        return writeln!(
            out,
            "  DIR contains ca-cert.pem, client-cert.pem and client-key.pem (tombolo keys issue)"
        );
    }
    writeln!(
        out,
        "  QEMU:       -drive {}",
        quoted(&format!("file={},format=raw,if=virtio", for_qemu(url)))
    )?;
    let url = quoted(url);
    writeln!(out, "  libnbd:     nbdinfo {url}")?;
    writeln!(out, "              nbdcopy {url} FILE")?;
    match (at.strip_prefix("unix:"), at.rsplit_once(':')) {
        (Some(path), _) => {
            writeln!(out, "  Linux:      nbd-client -unix {} /dev/nbd0 -N {}", quoted(path), quoted(export))
        }
        (None, Some((host, port))) => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            writeln!(out, "  Linux:      nbd-client {host} {port} /dev/nbd0 -N {}", quoted(export))
        }
        (None, None) => Ok(()),
    }
}

fn for_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::*;

    #[test]
    fn disk_hints_quote_odd_paths_for_vmms() {
        let text = text(|out| vhost_user(out, 1, Path::new("/run/a,b's.sock"), 2, "root"));
        for part in [
            "-chardev 'socket,id=disk1,path=/run/a,,b'\\''s.sock,reconnect=1' -device vhost-user-blk-pci,chardev=disk1,num-queues=2",
            "queues='2'/><source type='unix' path='/run/a,b&apos;s.sock'><reconnect enabled='yes' timeout='1'/></source>",
            "mount /dev/disk/by-id/virtio-root /mnt",
        ] {
            assert!(text.contains(part), "{part}\nnot in\n{text}");
        }
    }

    #[test]
    fn nbd_hints_quote_words_once() {
        let url = "nbd+unix:///vm.img?socket=/run/a,b";
        let plain = text(|out| nbd(out, "unix:/run/a,b", url, "vm.img", false));
        let secure = text(|out| nbd(out, "host:10809", "nbds://host/o'k", "o'k", true));
        for (text, part) in [
            (&plain, "-drive 'file=nbd+unix:///vm.img?socket=/run/a,,b,format=raw,if=virtio'\n"),
            (&plain, "nbdinfo 'nbd+unix:///vm.img?socket=/run/a,b'\n"),
            (&secure, "nbdinfo 'nbds://host/o'\\''k?tls-certificates=DIR'\n"),
        ] {
            assert!(text.contains(part), "{part}\nnot in\n{text}");
        }
    }
}
