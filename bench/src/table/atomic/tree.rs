//! Tree of many small files, copied to the server by programs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::OURS;
use super::test_host::{Serves, TestHost};
use crate::error::{Doing, Error, Result};
use crate::measure::{Clock, Placement, Work};
use crate::nfs::Link;
use crate::peer::{Nfs, Program, Server, find, free_port, is_listening};
use crate::report::Report;

const ROW: &str = "files copied";
const NFS_CP: &str = "loop of nfs-cp";
const RSYNC: &str = "rsync";
const FILES: usize = 20_000;
const QUICK_FILES: usize = 200;
const PER_FOLDER: usize = 100;
/// Number of files copied by a program that needs a process for each; its rate counts.
const SAMPLE: usize = 500;
const QUICK_SAMPLE: usize = 10;
const SIZES_KIB: usize = 8;
const ROUNDS: usize = 4;
const NFS_CP_TARGET: f64 = 5.0;
const RSYNC_TARGET: f64 = 1.5;

pub(super) fn run(host: &TestHost<'_>) -> Result<Report> {
    let mut report = host.report("atomic-tree", "A tree of 20,000 small files, copied to the server");
    let files = host.plan.scaled(FILES, QUICK_FILES);
    let tree = host.own("tree")?;
    fill(&tree, files)?;
    let server = host.server(Link::Loopback, Serves::Memory)?;
    let shared = host.folder(Serves::Memory);
    let daemon = Daemon::start(host, &shared);
    let sample = host.plan.scaled(SAMPLE, QUICK_SAMPLE);
    let mut entrants = Vec::new();
    let mut enter = |column, how: Result<How>, files| {
        let copy = how.map(|how| copies(Copy { how, tree: tree.clone(), shared: shared.clone(), files }));
        report.enter(&mut entrants, ROW, (column, ""), copy, &[], None::<Placement>);
    };
    enter(OURS, ours(&server, &shared), files);
    enter(NFS_CP, nfs_cp(&server, &shared), sample);
    let rsync = daemon.as_ref().map(Daemon::how).map_err(|error| Error::Absent(error.to_string()));
    enter(RSYNC, rsync, files);
    let contest = host.contest(ROUNDS);
    report.contest(ROW, &contest, entrants);
    for (other, target) in [(NFS_CP, NFS_CP_TARGET), (RSYNC, RSYNC_TARGET)] {
        report.compare_cells(ROW, (OURS, ""), (other, ""), Some(target));
    }
    report.condition(format!(
        "{} rounds in turn; {files} files of 1 to {SIZES_KIB} KiB, {PER_FOLDER} in a directory, from a file system in memory to our server on another, over \
         the loopback; a new directory each time. `{OURS}`: `tombolo cp -r`, until everything is stable; `{NFS_CP}`: libnfs-utils 4.0, a process for \
         each of {sample} files, their directories made before; `{RSYNC}`: `rsync -r --whole-file` to a daemon that writes where our server does, \
         and does not sync. No process is pinned",
        contest.rounds
    ));
    Ok(report)
}

fn fill(tree: &Path, files: usize) -> Result<()> {
    for number in 0..files {
        let path = tree.join(name(number));
        if number % PER_FOLDER == 0 {
            let folder = path.parent().unwrap_or(tree);
            fs::create_dir_all(folder).doing_to("make", folder)?;
        }
        fs::write(&path, vec![b't'; (1 + number % SIZES_KIB) << 10]).doing_to("write", &path)?;
    }
    Ok(())
}

fn name(number: usize) -> String {
    format!("d{}/f{number}", number / PER_FOLDER)
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
        let mut server = Server::start(RSYNC, &mut command)?;
        server.wait_until("answer", || is_listening(port))?;
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
            for number in (0..FILES).step_by(PER_FOLDER) {
                let folder = target.join(name(number));
                let folder = folder.parent().unwrap_or(&target);
                fs::create_dir_all(folder).doing_to("make", folder)?;
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
