//! Read-only programs that walk a whole tree.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Doing, Error, Result};
use crate::measure::Work;

/// Runs `find -newer` over all of a tree, without matches.
pub fn find_newer(root: &Path, than: &Path) -> Work<'static> {
    let (root, than) = (root.to_owned(), than.to_owned());
    once(move || {
        let mut command = Command::new("find");
        command.arg(&root).arg("-newer").arg(&than);
        command
    })
}

/// Runs `ls -lR` for some directories of a tree.
pub fn list_long(root: &Path, folders: &[PathBuf]) -> Work<'static> {
    let folders: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    once(move || {
        let mut command = Command::new("ls");
        command.arg("-lR").args(&folders).stdout(Stdio::null());
        command
    })
}

/// Runs `git status` in an unchanged repository. It writes nothing, not even its index.
pub fn git_status(root: &Path) -> Work<'static> {
    let root = root.to_owned();
    once(move || git(&root, &["--no-optional-locks", "status", "--porcelain"]))
}

/// Creates a repository of all files of a tree.
pub fn make_repository(root: &Path) -> Result<()> {
    let commit = ["-c", "user.name=bench", "-c", "user.email=bench", "commit", "-q", "-m", "all"];
    for arguments in [&["init", "-q"][..], &["add", "-A"], &commit] {
        silent(&mut git(root, arguments))?;
    }
    Ok(())
}

/// Returns a git command without the settings of user and machine.
fn git(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(root).args(["-c", "safe.directory=*", "-c", "gc.auto=0"]).args(arguments);
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    command
}

/// Returns an operation that runs the program once, which is a whole turn.
fn once(command: impl Fn() -> Command + 'static) -> Work<'static> {
    Work::repeat(1, move || silent(&mut command())).count_max(1)
}

/// Runs a program that must produce no output.
fn silent(command: &mut Command) -> Result<()> {
    let program = PathBuf::from(command.get_program());
    let output =
        command.stdin(Stdio::null()).output().doing_to("run", &program).map_err(|error| match error {
            Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Error::Absent(format!("{} is not installed", program.display()))
            }
            other => other,
        })?;
    if output.status.success() && output.stdout.is_empty() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(said.get(..said.len().min(400)).unwrap_or_default()).into_owned();
    Err(Error::Wrong { what: program.display().to_string(), answer: format!("{}: {said}", output.status) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_with_output_and_missing_program_are_errors() {
        assert!(silent(&mut Command::new("true")).is_ok());
        assert!(
            silent(Command::new("echo").arg("changed"))
                .is_err_and(|error| error.to_string().contains("changed"))
        );
        assert!(matches!(silent(&mut Command::new("no program has this name")), Err(Error::Absent(_))));
    }
}
