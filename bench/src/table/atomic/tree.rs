//! Tree of many small files, copied to the server by programs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::OURS;
use super::test_host::{Serves, TestHost};
use crate::error::{Doing, Error, Result};
use crate::files::fill;
use crate::measure::{Clock, Placement, Work};
use crate::nfs::Link;
use crate::peer::{Nfs, Program, Server, find, free_port};
use crate::report::Report;
use crate::sheet::{Sheet, sheet};

const ROW: &str = "files copied";
const RSYNC: &str = "rsync";
const PER_FOLDER: usize = 100;
const SIZES_KIB: usize = 8;

pub(super) fn run(host: &TestHost<'_>) -> Result<Report> {
    let sheet: Sheet<'_> = host.described(sheet!(host.plan, "atomic-tree")?);
    let (mut report, files) = (sheet.report(), sheet.number("files"));
    let tree = host.own("tree")?;
    let file =
        |number| (format!("d{}/f{number}", number / PER_FOLDER).into(), (1 + number % SIZES_KIB) << 10);
    fill(&tree, (0..files).map(file))?;
    let server = host.server(Link::Loopback, Serves::Memory)?;
    let shared = host.folder(Serves::Memory);
    let daemon = Daemon::start(host, &shared);
    let rsync = daemon.as_ref().map(Daemon::how).map_err(|error| Error::Absent(error.to_string()));
    let mut entrants = Vec::new();
    for (column, how, files) in [
        (OURS, ours(&server, &shared), files),
        // A program that needs a process for each file; its rate counts.
        ("loop of nfs-cp", nfs_cp(&server, &shared), sheet.number("sample")),
        (RSYNC, rsync, files),
    ] {
        let copy = how.map(|how| copies(Copy { how, tree: tree.clone(), shared: shared.clone(), files }));
        report.enter(&mut entrants, ROW, (column, ""), copy, &[], None::<Placement>);
    }
    report.contest(ROW, &sheet.contest(host.contest()), entrants);
    Ok(sheet.finish(report))
}

/// Returns a command that copies the tree to a directory of this name in the served tree.
type How = Box<dyn Fn(&Path, &str, usize) -> Command>;

fn ours(server: &Nfs, shared: &Path) -> Result<How> {
    let program = find(Program::Tombolo)?;
    let url = format!("nfs://{}/{}", server.nfs(), base(shared));
    Ok(Box::new(move |tree, to, _| {
        let mut command = Command::new(&program);
        command.args(["-q", "cp", "-r"]).arg(tree).arg(format!("{url}/{to}"));
        command
    }))
}

/// Starts a process for each file, as a shell does.
fn nfs_cp(server: &Nfs, shared: &Path) -> Result<How> {
    /// Script with directory, address, path and ports as arguments; the names of files come from the
    /// directory.
    const LOOP: &str = "cd \"$1\" && find . -type f | head -n \"$2\" | while read -r file; do \
                        nfs-cp \"$file\" \"$3/$file?version=3&nfsport=$4&mountport=$5\" || exit; done";
    let program = find(Program::NfsCp)?;
    let (nfs, mount) = (server.nfs(), server.mount());
    let url = format!("nfs://{}/{}", nfs.ip(), base(shared));
    Ok(Box::new(move |tree, to, files| {
        let mut command = Command::new("sh");
        command.args(["-c", LOOP, &program.to_string_lossy()]).arg(tree).arg(files.to_string());
        command.arg(format!("{url}/{to}")).args([nfs.port().to_string(), mount.port().to_string()]);
        command
    }))
}

fn base(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

struct Daemon {
    _server: Server,
    port: u16,
}

impl Daemon {
    fn start(host: &TestHost<'_>, shared: &Path) -> Result<Self> {
        let port = free_port()?.port();
        let configuration = host.own("rsync")?.join("rsyncd.conf");
        let text = format!(
            "use chroot = no\nuid = root\ngid = root\naddress = 127.0.0.1\nport = {port}\n[tree]\npath = {}\nread only = no\n",
            shared.display()
        );
        fs::write(&configuration, text).doing_to("write", &configuration)?;
        let mut command = Command::new(find(Program::Rsync)?);
        command.args(["--daemon", "--no-detach", "--config"]).arg(&configuration);
        let server = Server::listening(RSYNC, &mut command, &[port])?;
        Ok(Self { _server: server, port })
    }

    fn how(&self) -> How {
        let port = self.port;
        Box::new(move |tree, to, _| {
            let mut command = Command::new("rsync");
            command.args(["-r", "--whole-file"]).arg(tree.join(""));
            command.arg(format!("rsync://127.0.0.1:{port}/tree/{to}/"));
            command
        })
    }
}

/// Copy of the tree to a new directory, which is then removed.
struct Copy {
    how: How,
    tree: PathBuf,
    shared: PathBuf,
    files: usize,
}

fn copies(copy: Copy) -> Work<'static> {
    let mut number = 0;
    let run = move |count, clock: &mut Clock| {
        (0..count).try_for_each(|_| {
            number += 1;
            copy.once(number, clock)
        })
    };
    Work::new(run).count_max(1).per_second(true)
}

impl Copy {
    fn once(&self, number: u64, clock: &mut Clock) -> Result<()> {
        let to = format!("copy-{}-{number}", std::process::id());
        let target = self.shared.join(&to);
        let mut command = (self.how)(&self.tree, &to, self.files);
        if command.get_program() == "sh" {
            // nfs-cp creates no directories.
            for folder in fs::read_dir(&self.tree).doing_to("list", &self.tree)?.flatten() {
                let folder = target.join(folder.file_name());
                fs::create_dir_all(&folder).doing_to("make", &folder)?;
            }
        }
        let said = tempfile::tempfile().doing(|| "make a file for the output".to_owned())?;
        let errors = said.try_clone().doing(|| "make a file for the output".to_owned())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        clock.start();
        let status = command.status().doing(|| "copy the tree".to_owned())?;
        clock.lap_of(self.files as u64);
        let there = count(&target)?;
        fs::remove_dir_all(&target).doing_to("remove", &target)?;
        if status.success() && there == self.files {
            return Ok(());
        }
        let answer = format!("{status}, {there} files of {}: {}", self.files, text(said));
        Err(Error::Wrong { what: "copying".to_owned(), answer })
    }
}

fn count(folder: &Path) -> Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(folder).doing_to("list", folder)?.flatten() {
        files += if entry.path().is_dir() { count(&entry.path())? } else { 1 };
    }
    Ok(files)
}

/// Returns the last line of a program's output.
fn text(mut said: File) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let mut text = String::new();
    // Unreadable output is ignored.
    let _partial = said.seek(SeekFrom::Start(0)).and_then(|_| said.read_to_string(&mut text));
    text.lines().last().unwrap_or_default().to_owned()
}
