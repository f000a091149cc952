//! Comparison of a server's request counts under strict coherence with a trace of the same job's system
//! calls.
//!
//! A job runs twice in the same way: on a plain directory under strace, and on a mount. The trace determines
//! the operations that each call must cause; the server counts its requests. Both must be equal class by
//! class, except for differences whose cause is listed in [`tally::CAUSES`] and whose size also follows from
//! the trace. `tests/strict/run` does all of it.
//!
//! Non-goals: results and duration of the job.
//!
//! Reading order: `tally` (classes and causes), `job` (system calls), `tree` and `process`, `trace`.
#![forbid(unsafe_code)]

mod job;
mod process;
mod report;
mod tally;
mod trace;
mod tree;

use std::fs;
use std::process::ExitCode;

use job::Job;
use report::Counts;

const USAGE: &str = "usage: tombolo-strict ROOT CWD TRACE BEFORE AFTER [kernel-checks]";

#[expect(clippy::print_stdout, reason = "a report for people")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match compare(&arguments, |line| println!("{line}")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tombolo-strict: {error}");
            ExitCode::from(2)
        }
    }
}

/// Compares the counts: ROOT is where the job ran natively, CWD where it was started; BEFORE and AFTER are
/// outputs of `tombolo top --once --json`.
fn compare(arguments: &[String], print: impl FnMut(String)) -> Result<bool, String> {
    let ([root, cwd, trace, before, after], kernel_checks) = (match arguments {
        [first @ .., last] if last == "kernel-checks" => (first, true),
        all => (all, false),
    }) else {
        return Err(USAGE.into());
    };
    let read = |path: &String| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let counts = |path: &String| {
        Counts::parse(&read(path)?).ok_or(format!("{path}: not an output of `tombolo top --once --json`"))
    };
    let mut job = Job::new(root, cwd, kernel_checks);
    job.run(trace::events(&read(trace)?));
    if !job.unknown().is_empty() {
        return Err(format!("the job makes unknown calls: {:?}", job.unknown()));
    }
    Ok(report::compare(job.tally(), &counts(after)?.since(&counts(before)?), print))
}
