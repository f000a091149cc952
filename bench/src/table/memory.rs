//! `memory`: memory and descriptors of a server after access to many files.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_core::fs::OpenFlags;

use crate::error::{Doing, Error, OrWrong, Result};
use crate::files::Tree;
use crate::guest::{Guest, Wait};
use crate::measure::{Held, Spread};
use crate::peer::{AtSocket, Mount, TOMBOLO, VIRTIOFSD, completed, this_program};
use crate::report::{Ratio, Report, Unit};
use crate::session::Session;
use crate::sheet::Sheet;

const MEMORY: &str = "resident memory";
const DESCRIPTORS: &str = "open descriptors";
/// Targets: 64 MB, and 1,024 descriptors.
const MEMORY_MAX: f64 = 64e6;
const DESCRIPTORS_MAX: f64 = 1024.0;
const WAIST: &str = "tombolo, waist in process";

pub fn run(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    let tree = Tree::new(&sheet.plan.within, sheet.number("files"))?;
    for (column, held) in [
        (WAIST, through_waist(&tree)),
        ("tombolo, FUSE mount", through_mount(&tree)),
        ("tombolo, virtio-fs", through_virtio(TOMBOLO, &tree)),
        ("virtiofsd, virtio-fs", through_virtio(VIRTIOFSD, &tree)),
    ] {
        let Some(held) = report.present(column, held) else { continue };
        report.add(MEMORY, "", column, Unit::Bytes, held.memory_bytes);
        report.add(DESCRIPTORS, "", column, Unit::Count, held.descriptors);
        if column.starts_with(TOMBOLO) {
            report.ratios.push(against_aim(MEMORY, column, held.memory_bytes, MEMORY_MAX));
            report.ratios.push(against_aim(DESCRIPTORS, column, held.descriptors, DESCRIPTORS_MAX));
        }
    }
    report.absent(
        "passthrough_ll: it looks for a node by going through all of them, which takes many minutes with so many, and \
         keeps a descriptor for each",
    );
    Ok(())
}

/// Returns the ratio of a limit to the value.
pub(super) fn against_aim(row: &str, column: &str, value: f64, most: f64) -> Ratio {
    Ratio::new(row, column, "limit", Spread::single(most / value.max(1.0)), Some(1.0))
}

/// Measures in a separate process, whose memory is due to the waist alone; see [`touch`].
fn through_waist(tree: &Tree) -> Result<Held> {
    let mut command = Command::new(this_program()?);
    command.arg("touch").arg(tree.place.shared()).arg(tree.files.to_string());
    let text = completed("tombolo-bench touch", &mut command)?;
    let mut numbers = text.split_whitespace().filter_map(|number| number.parse::<f64>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(memory_bytes), Some(descriptors)) => Ok(Held { memory_bytes, shared_bytes: 0.0, descriptors }),
        _ => Err(Error::Wrong { what: "tombolo-bench touch".to_owned(), answer: text }),
    }
}

/// Reads the small files of a tree through the waist, and returns the bytes and descriptors of this process.
pub fn touch(shared: &Path, files: usize) -> Result<(f64, f64)> {
    let export = LocalDir::open(shared, Options::default()).or_wrong("local-dir")?;
    let session = Session::attached(&export)?;
    let (Session { fs, cx, .. }, buffer) = (&session, tombolo_mem::Buffer::new(Tree::SMALL_BYTES));
    for number in 0..files {
        let file = session.open(&Tree::small(number), OpenFlags::READ)?;
        fs.read(cx, file, 0, buffer.sink(0..Tree::SMALL_BYTES)).wait().or_wrong("read")?;
        fs.release(cx, file);
    }
    let held = Held::by("self")?;
    Ok((held.memory_bytes, held.descriptors))
}

fn through_mount(tree: &Tree) -> Result<Held> {
    let mount = Mount::of_url(
        &format!("dir:{}", tree.place.shared().display()),
        None,
        &tree.place.beside("memory-mount"),
    )?;
    let mut content = Vec::new();
    for number in 0..tree.files {
        let path = mount.point.join(Tree::small(number));
        content.clear();
        fs::File::open(&path).and_then(|mut file| file.read_to_end(&mut content)).doing_to("read", &path)?;
    }
    Held::by(&mount.server.id().to_string())
}

fn through_virtio(program: &str, tree: &Tree) -> Result<Held> {
    let socket = tree.place.beside(&format!("memory-{}.socket", program));
    let server = AtSocket::virtio_fs(program, &tree.place.shared(), &socket, "auto", &[])?;
    let mut guest = Guest::connect(&server.place, Wait::Event, 1, 4096)?;
    for number in 0..tree.files {
        let node = guest.walk(&Tree::small(number))?;
        let handle = guest.open(node, 0)?;
        guest.release(node, handle)?;
    }
    Held::by(&server.server.id().to_string())
}
