//! Commands for clients of disks.

use std::io::{self, Write};
use std::path::Path;

use super::{SHARED_MEMORY, for_qemu, quoted};
use crate::assembly::servers::nbd::NbdPlace;

/// Device type of block devices (VIRTIO 1.2 §5).
const VIRTIO_BLOCK: u32 = 2;

/// Prints a line for each VMM that can connect to the socket, and one for the guest. `index` is the position
/// of the socket among those of all disks of the server: disks of one guest need different ids. The lines are
/// complete for a guest with this disk alone, except that libvirt also needs `<memoryBacking>` in the domain.
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
         <reconnect enabled='yes' timeout='1'/></source><target dev='vd{}' bus='virtio'/></disk>",
        for_xml(&socket),
        letter(index)
    );
    let cloud = format!("vhost_user=true,socket={socket},num_queues={queues}");
    writeln!(out, "  QEMU:       {SHARED_MEMORY} -chardev {} -device {device}", quoted(&chardev))?;
    writeln!(out, "  libvirt:    {libvirt}")?;
    writeln!(out, "  guest:      mount {} /mnt", quoted(&by_id))?;
    writeln!(out, "  UML:        {}", quoted(&format!("virtio_uml.device={socket}:{VIRTIO_BLOCK}")))?;
    writeln!(out, "  Cloud Hypervisor (untested): --memory size=1G,shared=on --disk {}", quoted(&cloud))?;
    writeln!(out, "  crosvm (untested): --vhost-user {}", quoted(&format!("block,socket={socket}")))
}

/// Returns the letter of a disk's name in a guest; after 26 they begin again.
fn letter(index: usize) -> char {
    ('a'..='z').cycle().nth(index).unwrap_or('a')
}

/// Prints commands for using a disk over NBD; `export` is its name. With TLS only libnbd's, since QEMU needs
/// an object for the certificates and nbd-client their paths.
pub fn nbd(out: &mut impl Write, place: &NbdPlace, export: &str) -> io::Result<()> {
    let NbdPlace { url, reached_at, is_secure, .. } = place;
    if *is_secure {
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
    let server = match reached_at.strip_prefix("unix:") {
        Some(path) => format!("-unix {}", quoted(path)),
        None => {
            let (host, port) = reached_at.rsplit_once(':').unwrap_or((reached_at, ""));
            format!("{} {port}", host.trim_start_matches('[').trim_end_matches(']'))
        }
    };
    writeln!(out, "  Linux:      nbd-client {server} /dev/nbd0 -N {}", quoted(export))
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
            "<target dev='vdb' bus='virtio'/>",
        ] {
            assert!(text.contains(part), "{part}\nnot in\n{text}");
        }
    }

    #[test]
    fn nbd_hints_quote_words_once() {
        let url = "nbd+unix:///vm.img?socket=/run/a,b";
        let place = |reached_at: &str, url: &str, is_secure| NbdPlace {
            address: reached_at.into(),
            reached_at: reached_at.into(),
            url: url.into(),
            is_secure,
        };
        let plain = text(|out| nbd(out, &place("unix:/run/a,b", url, false), "vm.img"));
        let secure = text(|out| nbd(out, &place("host:10809", "nbds://host/o'k", true), "o'k"));
        let six = text(|out| nbd(out, &place("[fd00::1]:10809", "nbd://[fd00::1]/vm", false), "vm"));
        for (text, part) in [
            (&plain, "-drive 'file=nbd+unix:///vm.img?socket=/run/a,,b,format=raw,if=virtio'\n"),
            (&six, "nbd-client fd00::1 10809 /dev/nbd0 -N vm\n"),
            (&plain, "nbdinfo 'nbd+unix:///vm.img?socket=/run/a,b'\n"),
            (&secure, "nbdinfo 'nbds://host/o'\\''k?tls-certificates=DIR'\n"),
        ] {
            assert!(text.contains(part), "{part}\nnot in\n{text}");
        }
    }
}
