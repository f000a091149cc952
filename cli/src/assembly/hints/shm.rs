//! Commands for mounting over shared memory.

use std::io::{self, Write};
use std::path::Path;

use tombolo_host_links::bell::PORT;
use tombolo_host_links::shared_memory::MemoryLocation;

use super::{for_qemu, quoted};

/// Prints the command that mounts an export at a socket.
pub fn socket(out: &mut impl Write, socket: &Path, export: &str) -> io::Result<()> {
    let place = format!("shm:{}{export}", socket.display());
    writeln!(out, "  this host:  tombolo mount {} /mnt", quoted(&place))
}

/// Prints the commands with which guests and this host mount an export over shared memory; if the server runs
/// in a guest, those for other guests and for the host, where the file has another name. `index` is the
/// position among the endpoints: devices of one guest need different ids.
pub fn memory(
    out: &mut impl Write,
    index: usize,
    place: &MemoryLocation,
    size_bytes: u64,
    bell: Option<&Path>,
    export: &str,
) -> io::Result<()> {
    let mount = |front: &str| format!("tombolo mount {} /mnt", quoted(&format!("{front}{export}")));
    let MemoryLocation::File(path) = place else {
        writeln!(out, "  QEMU guest: {}", mount("shm+pci:"))?;
        writeln!(out, "  UML guest:  {}", mount("shm+mmapper:"))?;
        return writeln!(out, "  the host:   {}", mount("shm+file:FILE"));
    };
    let path = path.display().to_string();
    let file = for_qemu(&path);
    let object = format!("memory-backend-file,id=shm{index},share=on,mem-path={file},size={size_bytes}");
    let (for_qemu, for_uml) = bell.map(|bell| bell_options(index, bell)).unwrap_or_default();
    let object = quoted(&object);
    writeln!(out, "  QEMU:       -object {object} -device ivshmem-plain,memdev=shm{index}{for_qemu}")?;
    writeln!(out, "  guest:      {}", mount("shm+pci:"))?;
    writeln!(out, "  UML:        {}{for_uml}", quoted(&format!("iomem=mmapper,{path}")))?;
    writeln!(out, "  guest:      {}", mount("shm+mmapper:"))?;
    writeln!(out, "  this host:  {}", mount(&format!("shm+file:{path}")))
}

/// Returns the options of QEMU and of UML for a bell.
fn bell_options(index: usize, bell: &Path) -> (String, String) {
    let path = bell.display().to_string();
    let pipe = format!("pipe,id=bell{index},path={}", for_qemu(&path));
    let port = format!("virtserialport,chardev=bell{index},name={PORT}.{index}");
    let qemu = format!(" -chardev {} -device virtio-serial-pci -device {port}", quoted(&pipe));
    let (input, output) = (format!("{path}.in"), format!("{path}.out"));
    (qemu, format!(" ssl1=fd:8,fd:9 8<>{} 9<>{}", quoted(&input), quoted(&output)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::*;

    #[test]
    fn shm_hints_cover_each_kind_of_guest() {
        let file = MemoryLocation::File("/dev/shm/vm,1".into());
        let from_guest = &["shm+pci:/src /mnt", "shm+mmapper:/src /mnt", "shm+file:FILE/src /mnt"][..];
        for (place, bell, lines) in [
            (
                file,
                Some(Path::new("/run/b")),
                &[
                    "-object memory-backend-file,id=shm2,share=on,mem-path=/dev/shm/vm,,1,size=1048576 -device ivshmem-plain,memdev=shm2",
                    "-chardev pipe,id=bell2,path=/run/b -device virtio-serial-pci -device virtserialport,chardev=bell2,name=tombolo.bell.2",
                    "tombolo mount shm+pci:/src /mnt",
                    "iomem=mmapper,/dev/shm/vm,1 ssl1=fd:8,fd:9 8<>/run/b.in 9<>/run/b.out",
                    "tombolo mount shm+mmapper:/src /mnt",
                    "tombolo mount shm+file:/dev/shm/vm,1/src /mnt",
                ][..],
            ),
            (MemoryLocation::Pci(None), None, from_guest),
            (MemoryLocation::Mmapper("/dev/mmapper".into()), None, from_guest),
        ] {
            let text = text(|out| memory(out, 2, &place, 1 << 20, bell, "/src"));
            for line in lines {
                assert!(text.contains(line), "{line}\nnot in\n{text}");
            }
        }
        let line = text(|out| socket(out, Path::new("/run/my share.sock"), "/src"));
        assert_eq!(line, "  this host:  tombolo mount 'shm:/run/my share.sock/src' /mnt\n");
    }
}
