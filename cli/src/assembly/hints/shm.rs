//! Commands for mounting over shared memory.

use std::io::{self, Write};
use std::path::Path;

use tombolo_host_links::shared_memory::MemoryLocation;

use super::{for_qemu, quoted};

/// Prints the command that mounts an export at a socket.
pub fn socket(out: &mut impl Write, socket: &Path, export: &str) -> io::Result<()> {
    let place = format!("shm:{}{export}", socket.display());
    writeln!(out, "  this host:  tombolo mount {} /mnt", quoted(&place))
}

/// Prints a line for each kind of guest that can mount an export over shared memory; if the server runs in a
/// guest, also one for its host, where the file has another name. `index` is the position among the
/// endpoints: devices of one guest need different ids.
pub fn memory(
    out: &mut impl Write,
    index: usize,
    place: &MemoryLocation,
    size_bytes: u64,
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
    writeln!(out, "  QEMU:       -object {} -device ivshmem-plain,memdev=shm{index}", quoted(&object))?;
    writeln!(out, "  guest:      {}", mount("shm+pci:"))?;
    writeln!(out, "  UML:        {}", quoted(&format!("iomem=mmapper,{path}")))?;
    writeln!(out, "  guest:      {}", mount("shm+mmapper:"))?;
    writeln!(out, "  this host:  {}", mount(&format!("shm+file:{path}")))
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::*;

    #[test]
    fn shm_hints_cover_each_kind_of_guest() {
        let file = MemoryLocation::File("/dev/shm/vm,1".into());
        let from_guest = &["shm+pci:/src /mnt", "shm+mmapper:/src /mnt", "shm+file:FILE/src /mnt"][..];
        for (place, lines) in [
            (
                file,
                &[
                    "-object memory-backend-file,id=shm2,share=on,mem-path=/dev/shm/vm,,1,size=1048576 -device ivshmem-plain,memdev=shm2",
                    "tombolo mount shm+pci:/src /mnt",
                    "iomem=mmapper,/dev/shm/vm,1",
                    "tombolo mount shm+mmapper:/src /mnt",
                    "tombolo mount shm+file:/dev/shm/vm,1/src /mnt",
                ][..],
            ),
            (MemoryLocation::Pci(None), from_guest),
            (MemoryLocation::Mmapper("/dev/mmapper".into()), from_guest),
        ] {
            let text = text(|out| memory(out, 2, &place, 1 << 20, "/src"));
            for line in lines {
                assert!(text.contains(line), "{line}\nnot in\n{text}");
            }
        }
        let line = text(|out| socket(out, Path::new("/run/my share.sock"), "/src"));
        assert_eq!(line, "  this host:  tombolo mount 'shm:/run/my share.sock/src' /mnt\n");
    }
}
