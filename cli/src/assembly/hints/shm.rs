//! What to type on the other side to mount over shared memory.

use std::io::{self, Write};
use std::path::Path;

use tombolo_host_links::shared_memory::MemoryLocation;

use super::quoted;

/// An export at a socket.
#[derive(Debug)]
pub struct ShmHint<'a> {
    /// The socket's absolute path.
    pub socket: &'a Path,
    /// What clients mount.
    pub export: &'a str,
}

impl ShmHint<'_> {
    /// Writes a line for this program.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let place = format!("shm:{}{}", self.socket.display(), self.export);
        writeln!(out, "  this host:  tombolo mount {} /mnt", quoted(&place))
    }
}

/// An export over memory that a guest has too.
#[derive(Debug)]
pub struct MemoryHint<'a> {
    pub place: &'a MemoryLocation,
    /// How long it is.
    pub size_bytes: u64,
    /// What clients mount.
    pub export: &'a str,
    /// Where it stands among the places: devices of one guest need different ids.
    pub index: usize,
}

impl MemoryHint<'_> {
    /// Writes a line for each kind of guest; where a guest serves, also one for its host, which calls the file something else.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { size_bytes, export, index, .. } = self;
        let mount = |scheme: &str| format!("tombolo mount {} /mnt", quoted(&format!("{scheme}:{export}")));
        let MemoryLocation::File(path) = self.place else {
            writeln!(out, "  QEMU guest: {}", mount("shm+pci"))?;
            writeln!(out, "  UML guest:  {}", mount("shm+mmapper"))?;
            return writeln!(
                out,
                "  the host:   tombolo mount {} /mnt",
                quoted(&format!("shm+file:FILE{export}"))
            );
        };
        // QEMU takes a doubled comma for one in a path.
        let path = path.display().to_string();
        let doubled = path.replace(',', ",,");
        let object = quoted(&format!(
            "memory-backend-file,id=shm{index},share=on,mem-path={doubled},size={size_bytes}"
        ))
        .into_owned();
        writeln!(out, "  QEMU:       -object {object} -device ivshmem-plain,memdev=shm{index}")?;
        writeln!(out, "  guest:      {}", mount("shm+pci"))?;
        writeln!(out, "  UML:        {}", quoted(&format!("iomem=mmapper,{path}")))?;
        writeln!(out, "  guest:      {}", mount("shm+mmapper"))?;
        let here = format!("shm+file:{path}{export}");
        writeln!(out, "  this host:  tombolo mount {} /mnt", quoted(&here))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_of_each_kind_get_their_words() {
        let place = MemoryLocation::File("/dev/shm/vm,1".into());
        let mut out = Vec::new();
        let hint = MemoryHint { place: &place, size_bytes: 1 << 20, export: "/src", index: 2 };
        hint.write(&mut out).expect("memory takes it");
        let text = String::from_utf8(out).expect("text");
        for line in [
            "-object memory-backend-file,id=shm2,share=on,mem-path=/dev/shm/vm,,1,size=1048576 -device ivshmem-plain,memdev=shm2",
            "tombolo mount shm+pci:/src /mnt",
            "iomem=mmapper,/dev/shm/vm,1",
            "tombolo mount shm+mmapper:/src /mnt",
            "tombolo mount shm+file:/dev/shm/vm,1/src /mnt",
        ] {
            assert!(text.contains(line), "{line}\nnot in\n{text}");
        }
    }

    #[test]
    fn where_a_guest_serves_others_are_told_how() {
        for place in [MemoryLocation::Pci(None), MemoryLocation::Mmapper("/dev/mmapper".into())] {
            let mut out = Vec::new();
            let hint = MemoryHint { place: &place, size_bytes: 0, export: "/src", index: 0 };
            hint.write(&mut out).expect("memory takes it");
            let text = String::from_utf8(out).expect("text");
            for line in ["shm+pci:/src /mnt", "shm+mmapper:/src /mnt", "shm+file:FILE/src /mnt"] {
                assert!(text.contains(line), "{line}\nnot in\n{text}");
            }
        }
    }

    #[test]
    fn the_line_can_be_typed() {
        let mut out = Vec::new();
        let hint = ShmHint { socket: Path::new("/run/my share.sock"), export: "/src" };
        hint.write(&mut out).expect("memory takes it");
        assert_eq!(
            String::from_utf8(out).expect("text"),
            "  this host:  tombolo mount 'shm:/run/my share.sock/src' /mnt\n"
        );
    }
}
