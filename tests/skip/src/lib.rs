//! Skipping of tests that cannot run on a machine.
#![forbid(unsafe_code)]

/// Environment variable that allows tests to be skipped. Machines that have everything leave it unset.
const ALLOWS: &str = "TOMBOLO_ALLOW_SKIP";

/// Returns from a test, or with the default from a function that sets one up, and prints the reason, which is
/// formatted as by `format!`.
///
/// Fails instead where skips are not allowed.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::skipped(&::std::format!($($reason)+));
        return ::core::default::Default::default();
    }};
}

/// Prints why a test is skipped.
///
/// # Panics
/// Where skips are not allowed.
#[track_caller]
#[allow(clippy::print_stderr, reason = "a test says why it was skipped")]
pub fn skipped(reason: &str) {
    assert!(std::env::var_os(ALLOWS).is_some(), "cannot run: {reason}; {ALLOWS}=1 allows to skip it");
    eprintln!("skipped: {reason}");
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    #[test]
    #[ignore = "run by another test, with and without leave"]
    fn test_without_its_requirements() {
        skip!("no {} in the test", "line");
    }

    #[test]
    fn a_skip_without_leave_is_a_failure() {
        for (leave, passes) in [(None, false), (Some("1"), true)] {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command
                .args(["--exact", "tests::test_without_its_requirements", "--ignored", "--nocapture"])
                .env_remove(super::ALLOWS);
            command.envs(leave.map(|leave| (super::ALLOWS, leave)));
            let ran = command.output().expect("run");
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert_eq!(ran.status.success(), passes, "{said}");
            assert!(said.contains("no line in the test"), "{said}");
        }
    }
}
