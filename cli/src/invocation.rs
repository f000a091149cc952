//! Execution of a command line, and its exit code.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Command, FromArgMatches, Parser};

use crate::cli::Cli;
use crate::commands::mount::Helper;
use crate::failure::{Code, Failure, Outcome};

/// Runs the command in `words`, the first of which is the program's name.
pub fn run(words: Vec<OsString>) -> ExitCode {
    if words.first().is_some_and(|name| is_mount_helper(name)) {
        let outcome = Helper::try_parse_from(words).map(Helper::run);
        return finish(outcome, "mount.tombolo", mount_helper_code);
    }
    let program = Cli::program();
    let command = command_of(&program, &words);
    let parsed = program.try_get_matches_from(words).and_then(|found| Cli::from_arg_matches(&found));
    finish(parsed.map(Cli::run), &command, ExitCode::from)
}

/// Returns `true` for the name `mount.tombolo`, in any directory: that of the link by which mount(8) runs
/// this program.
fn is_mount_helper(name: &OsStr) -> bool {
    Path::new(name).file_name() == Some(OsStr::new("mount.tombolo"))
}

/// Maps to the codes of mount(8), EXIT STATUS: 1 for a bad command line, 32 for a failed mount.
fn mount_helper_code(code: Code) -> ExitCode {
    ExitCode::from(match code {
        Code::Usage => 1,
        _ => 32,
    })
}

/// Returns `tombolo` and the command among the words, if any, to refer to its help.
fn command_of(program: &Command, words: &[OsString]) -> String {
    let is_command =
        |word: &&OsString| word.to_str().is_some_and(|word| program.find_subcommand(word).is_some());
    match words.iter().skip(1).find(is_command) {
        Some(command) => format!("tombolo {}", command.display()),
        None => "tombolo".into(),
    }
}

fn finish(outcome: Result<Outcome, Error>, command: &str, exit_code: fn(Code) -> ExitCode) -> ExitCode {
    let failure = match outcome {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(failure)) => failure,
        Err(error) if is_help(&error) => {
            // Nothing can be reported if the output is closed.
            let _ = error.print();
            return if error.use_stderr() { exit_code(Code::Usage) } else { ExitCode::SUCCESS };
        }
        Err(error) => misunderstood(&error, command),
    };
    failure.print();
    exit_code(failure.code())
}

fn is_help(error: &Error) -> bool {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    matches!(error.kind(), DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand)
}

/// Converts a parser message. Its first paragraph is the error; those of hints and usage are replaced.
fn misunderstood(error: &Error, command: &str) -> Failure {
    let text = error.render().to_string();
    let wrong = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").trim_end();
    let failure = Failure::usage(wrong);
    match meant(error) {
        Some(meant) => failure.remedy(format_args!("did you mean '{meant}'? See `{command} --help`")),
        None => failure.remedy(format_args!("see `{command} --help`")),
    }
}

/// Returns the parser's best suggestion, if any.
fn meant(error: &Error) -> Option<&str> {
    use ContextKind::{SuggestedArg, SuggestedSubcommand, SuggestedValue};
    [SuggestedSubcommand, SuggestedArg, SuggestedValue].into_iter().find_map(|kind| {
        match error.get(kind)? {
            ContextValue::String(word) => Some(word.as_str()),
            // The last suggestion is the best.
            ContextValue::Strings(words) => words.last().map(String::as_str),
            _ => None,
        }
    })
}
