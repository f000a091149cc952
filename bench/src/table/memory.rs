//! `memory`: memory and descriptors of a server after access to many files.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_core::fs::{Client, Export, File, FileSystem, Name, NodeId, OpenFlags, PermissionCheck};
use tombolo_core::{Ctx, Error as FsError, SessionId};

use super::Plan;
use crate::error::{Doing, Error, Result};
use crate::files::Tree;
use crate::guest::{Guest, Wait};
use crate::measure::Spread;
use crate::peer::{Mount, Program, this_program, virtio_fs};
use crate::report::{Figure, Ratio, Report, Unit};

const FILES: usize = 100_000;
const MEMORY: &str = "resident memory";
const DESCRIPTORS: &str = "open descriptors";
/// Targets: 64 MB, and 1,024 descriptors.
const MEMORY_MAX: f64 = 64e6;
const DESCRIPTORS_MAX: f64 = 1024.0;
const WAIST: &str = "tombolo, waist in process";

pub fn run(plan: &Plan) -> Result<Report> {
    let files = plan.scaled(FILES, 2_000);
    let title = format!("Memory and descriptors after {files} files were looked up, opened and closed");
    let mut report = plan.report("memory", &title);
    let tree = Tree::new(&plan.within, files)?;
    for (column, held) in [
        (WAIST, through_waist(&tree)),
        ("tombolo, FUSE mount", through_mount(&tree)),
        ("tombolo, virtio-fs", through_virtio(Program::Tombolo, &tree)),
        ("virtiofsd, virtio-fs", through_virtio(Program::Virtiofsd, &tree)),
    ] {
        match held {
            Ok(held) => {
                report.figures.push(Figure::single(MEMORY, "", column, Unit::Bytes, held.memory_bytes));
                report.figures.push(Figure::single(DESCRIPTORS, "", column, Unit::Count, held.descriptors));
                if column.starts_with(Program::Tombolo.name()) {
                    report.ratios.push(against_aim(MEMORY, column, held.memory_bytes, MEMORY_MAX));
                    report.ratios.push(against_aim(DESCRIPTORS, column, held.descriptors, DESCRIPTORS_MAX));
                }
            }
            Err(error) => report.absent(format!("{column}: {error}")),
        }
    }
    report.condition(
        "after the last file was touched, and before anything was forgotten: VmRSS and /proc/PID/fd of the server; in \
         process, of a process that does nothing else",
    );
    report.absent(
        "passthrough_ll: it looks for a node by going through all of them, which takes many minutes with so many, and \
         keeps a descriptor for each",
    );
    report.condition(
        "targets: at most 64 MB, at most 1024 descriptors; the table says how many times better than that",
    );
    Ok(report)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub memory_bytes: f64,
    pub descriptors: f64,
}

impl Held {
    pub fn by(process: &str) -> Result<Self> {
        let path = format!("/proc/{process}/status");
        let status = fs::read_to_string(&path).doing_to("read", Path::new(&path))?;
        let kilobytes = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<f64>().ok())
            .unwrap_or_default();
        let path = format!("/proc/{process}/fd");
        let descriptors = fs::read_dir(&path).doing_to("list", Path::new(&path))?.count();
        Ok(Self { memory_bytes: kilobytes * 1024.0, descriptors: descriptors as f64 })
    }
}

/// Returns the ratio of a limit to the value.
pub(super) fn against_aim(row: &str, column: &str, value: f64, most: f64) -> Ratio {
    let value = most / value.max(1.0);
    Ratio {
        row: row.to_owned(),
        ours: column.to_owned(),
        other: "limit".to_owned(),
        spread: Spread::single(value),
        target: Some(1.0),
    }
}

/// Measures in a separate process, whose memory is due to the waist alone; see [`touch`].
fn through_waist(tree: &Tree) -> Result<Held> {
    let mut command = Command::new(this_program()?);
    command.arg("touch").arg(tree.shared()).arg(tree.files().to_string());
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().doing(|| "start itself".to_owned())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut numbers = text.split_whitespace().filter_map(|number| number.parse::<f64>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(memory_bytes), Some(descriptors)) => Ok(Held { memory_bytes, descriptors }),
        _ => Err(Error::Wrong { what: "tombolo-bench touch".to_owned(), answer: text.into_owned() }),
    }
}

/// Reads the small files of a tree through the waist, and returns the bytes and descriptors of this process.
pub fn touch(shared: &Path, files: usize) -> Result<(f64, f64)> {
    let failed = |error: FsError| Error::Wrong { what: "local-dir".to_owned(), answer: error.to_string() };
    let export = LocalDir::open(shared, Options::default())
        .map_err(|error| Error::Wrong { what: "local-dir".to_owned(), answer: error.to_string() })?;
    let session = SessionId(1);
    let client = Client { session, label: "bench".to_owned(), checks: PermissionCheck::Caller };
    let fs: Arc<dyn FileSystem> = export.attach(&client).map_err(failed)?;
    let cx = Ctx::root(session);
    let mut buffer = tombolo_mem::Buffer::new(Tree::SMALL_BYTES);
    let mut folder = (std::path::PathBuf::new(), NodeId::ROOT);
    for number in 0..files {
        let path = Tree::small(number);
        let parent = path.parent().unwrap_or(&path);
        if folder.0 != parent {
            folder = (parent.to_owned(), lookup(&*fs, &cx, NodeId::ROOT, parent)?);
        }
        let node = lookup(&*fs, &cx, folder.1, Path::new(path.file_name().unwrap_or_default()))?;
        let opened = fs.open(&cx, node, OpenFlags::READ).wait().map_err(failed)?;
        let file = File { node, open: opened.open };
        fs.read(&cx, file, 0, buffer.sink(0..Tree::SMALL_BYTES)).wait().map_err(failed)?;
        fs.release(&cx, file);
    }
    let _still_lent = buffer.as_slice();
    let held = Held::by("self")?;
    Ok((held.memory_bytes, held.descriptors))
}

fn lookup(fs: &dyn FileSystem, cx: &Ctx, parent: NodeId, name: &Path) -> Result<NodeId> {
    let wrong = |answer| Error::Wrong { what: format!("look {} up", name.display()), answer };
    let checked = Name::new(name.as_os_str().as_encoded_bytes()).map_err(|error| wrong(error.to_string()))?;
    Ok(fs.lookup(cx, parent, checked).wait().map_err(|error| wrong(error.to_string()))?.node)
}

fn through_mount(tree: &Tree) -> Result<Held> {
    let mount = Mount::new(Program::Tombolo, &tree.shared(), &tree.beside("memory-mount"))?;
    let mut content = Vec::new();
    for number in 0..tree.files() {
        let path = mount.point().join(Tree::small(number));
        content.clear();
        fs::File::open(&path).and_then(|mut file| file.read_to_end(&mut content)).doing_to("read", &path)?;
    }
    Held::by(&mount.server().to_string())
}

fn through_virtio(program: Program, tree: &Tree) -> Result<Held> {
    let socket = tree.beside(&format!("memory-{}.socket", program.name()));
    let server = match program {
        Program::Virtiofsd => virtio_fs::virtiofsd(&tree.shared(), &socket, "auto", &[])?,
        _ => virtio_fs::tombolo(&tree.shared(), &socket, "auto", &[])?,
    };
    let mut guest = Guest::connect(server.socket(), Wait::Event, 1, 4096)?;
    let mut folder = (std::path::PathBuf::new(), 0);
    for number in 0..tree.files() {
        let path = Tree::small(number);
        let parent = path.parent().unwrap_or(&path);
        if folder.0 != parent {
            folder = (parent.to_owned(), guest.walk(parent)?);
        }
        let name = crate::guest::with_nul(path.file_name().unwrap_or_default().as_encoded_bytes());
        let node = guest.lookup(folder.1, &name)?.nodeid;
        let handle = guest.open(node, 0)?;
        guest.release(node, handle)?;
    }
    Held::by(&server.server().to_string())
}
