//! Processes left behind by a test (`tests/contained`).

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Run time of a process left behind: longer than it takes to end one on any machine.
const LEFT_SECONDS: u32 = 1200;

/// Maximum time until every process of a test has ended.
const ENDED: Duration = Duration::from_secs(600);

/// Runs a test that starts a process in its own session, which shares the test's output, and then ends by
/// itself.
fn ends_with(end: &str) -> Option<i32> {
    let contained = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contained");
    let script = format!("setsid sleep {LEFT_SECONDS} & echo started; {end}");
    let mut test = Command::new(contained);
    let mut running =
        test.args(["sh", "-c", &script]).stdout(Stdio::piped()).spawn().expect("tests/contained");
    let mut output = running.stdout.take().expect("its output");
    let mut said = [0; 8];
    output.read_exact(&mut said).expect("it starts");
    if end == "wait" {
        running.kill().expect("killed");
    }
    let code = running.wait().expect("its end").code();
    // The output ends with the last process that could write to it.
    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || ended.send(output.read_to_end(&mut Vec::new())));
    let end_of_output = has_ended.recv_timeout(ENDED).expect("no process remains that could write");
    end_of_output.expect("the end of its output");
    code
}

#[test]
fn nothing_outlives_a_test_that_ends_or_is_killed() {
    let is_root = Command::new("unshare").args(["--pid", "--fork", "true"]).status();
    if !is_root.is_ok_and(|status| status.success()) {
        tombolo_skip::skip!("a process namespace takes root");
    }
    assert_eq!(ends_with("exit 0"), Some(0));
    assert_eq!(ends_with("exit 101"), Some(101), "a test that fails");
    assert_eq!(ends_with("wait"), None, "one that is killed");
}
