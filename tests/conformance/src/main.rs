//! `tombolo-conformance DIR`: conformance of a mounted directory.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the report is what the program is for")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tombolo_conformance::{posix, walk};

const USAGE: &str = "usage: tombolo-conformance DIR [--only TEXT] [--except TEXT]…

Runs the POSIX cases in directories of their own inside DIR, which are removed afterwards.
Ends with 0 when none failed.

       tombolo-conformance --walk SEED STEPS HOST TWIN MOUNT…

Makes random changes in the directory HOST and through the MOUNTs of it, which are told of changes, and in the empty directory TWIN. After
each, every MOUNT must soon show what TWIN does. Ends with 0 if they did.

  --only TEXT    the cases whose names contain TEXT
  --except TEXT  but not those whose names contain TEXT";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, rest)) if first == "--helper" => match posix::helper::run(rest) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(&format!("helper {rest:?}: {error}")),
        },
        Some((first, rest)) if first == "--walk" => match walked(rest) {
            Some(Ok(())) => ExitCode::SUCCESS,
            Some(Err(wrong)) => complain(&wrong),
            None => complain(USAGE),
        },
        _ => run_cases(arguments),
    }
}

fn run_cases(arguments: Vec<String>) -> ExitCode {
    let (mut dir, mut only, mut except) = (None, String::new(), Vec::new());
    let mut left = arguments.into_iter();
    while let Some(argument) = left.next() {
        match argument.as_str() {
            "--only" | "--except" => match left.next() {
                Some(text) if argument == "--only" => only = text,
                Some(text) => except.push(text),
                None => return complain(USAGE),
            },
            _ if dir.is_none() && !argument.starts_with('-') => dir = Some(argument),
            _ => return complain(USAGE),
        }
    }
    let Some(dir) = dir else { return complain(USAGE) };
    // Failed cases are reported at the end.
    std::panic::set_hook(Box::new(|_| {}));
    match posix::run(Path::new(&dir), &only, &except) {
        Ok(report) => {
            println!("{report}");
            if report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => complain(&format!("{dir}: {error}")),
    }
}

fn walked(arguments: &[String]) -> Option<Result<(), String>> {
    let [seed, steps, host, twin, mounts @ ..] = arguments else { return None };
    let mounts: Vec<PathBuf> = mounts.iter().map(PathBuf::from).collect();
    let (seed, steps) = (seed.parse().ok()?, steps.parse().ok()?);
    Some(walk::run(seed, steps, Path::new(host), Path::new(twin), &mounts))
}

fn complain(text: &str) -> ExitCode {
    eprintln!("{text}");
    ExitCode::from(2)
}
