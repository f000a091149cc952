//! Recording of a workload, and the checks of each image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::image::{Choice, Image};
use crate::log::Log;
use crate::strace;

const DIR: &str = "TOMBOLO_RECORDED_DIR";
const MARKS: &str = "TOMBOLO_RECORDED_MARKS";

/// Number of images in the gate, and in the long run.
const IMAGES: (usize, usize) = (300, 12_000);

/// Returns the recorded directory, in the recorded process.
pub fn recorded() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

/// Records an event in the recorded process, with its position among the calls.
///
/// # Panics
/// If it cannot be written.
pub fn mark(text: &str) {
    if let Some(marks) = std::env::var_os(MARKS) {
        fs::write(marks, text).expect("a mark is written");
    }
}

/// Runs the calling test again in a separate process, where [`recorded`] returns `dir`, which is created and
/// must not exist yet.
///
/// # Panics
/// If there is no strace, the process fails, or it changed the directory in a way that was not recorded.
pub fn record(dir: &Path) -> Log {
    fs::create_dir(dir).expect("a directory for the recording");
    let dir = dir.canonicalize().expect("a path");
    let (trace, marks) = (dir.with_extension("trace"), dir.with_extension("marks"));
    fs::write(&marks, "").expect("a file for marks");
    let thread = std::thread::current();
    let test = thread.name().expect("a test has a name");
    let output = Command::new("strace")
        .args([
            "-f",
            "-qq",
            "-xx",
            "-y",
            "-v",
            "-s",
            "16777216",
            "--seccomp-bpf",
            "-e",
            "signal=none",
            "-e",
            strace::CALLS,
            "-o",
        ])
        .arg(&trace)
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env(DIR, &dir)
        .env(MARKS, &marks)
        .output()
        .expect("strace is needed: make packages");
    assert!(output.status.success(), "{test} fails when it is recorded: {output:?}");
    let text = String::from_utf8(fs::read(&trace).expect("a trace")).expect("strace writes ASCII");
    let log = Log::read(&text, &dir, &marks).unwrap_or_else(|error| panic!("{test}: {error}"));
    fs::remove_file(&trace).expect("remove");
    check(&log, &dir);
    log
}

/// Checks that the recorded calls add up to the final directory.
fn check(log: &Log, dir: &Path) {
    let scratch = tempfile::tempdir().expect("a directory");
    log.image(Choice { steps: log.steps.len(), seed: 0 }).write_to(scratch.path()).expect("an image");
    let (mut seen, there) = (Image::of(scratch.path()).expect("list"), Image::of(dir).expect("list"));
    for (path, data) in &there {
        let recorded = seen.remove(path);
        assert!(recorded.as_ref() == Some(data), "{}: changed, but not recorded", path.display());
    }
    assert!(seen.is_empty(), "removed, but not recorded: {:?}", seen.keys());
}

/// Calls `check` for each image, in a directory that it may change, with the marks from before the power
/// loss; two at a time.
///
/// # Panics
/// If `check` does. The image is then recreated and retained.
pub fn each_image(log: &Log, check: impl Fn(&Path, Choice, &[&str]) + Sync) {
    let choices = log.choices(if std::env::var_os("TOMBOLO_LONG").is_some() { IMAGES.1 } else { IMAGES.0 });
    // In memory where possible: a sync costs nothing there.
    let memory = Path::new("/dev/shm");
    let scratch =
        tempfile::Builder::new().prefix("tombolo-crash-").tempdir_in(memory).or_else(|_| tempfile::tempdir());
    let (scratch, next) = (scratch.expect("a directory"), AtomicUsize::new(0));
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(choice) = choices.get(place) else { break };
            // A short log has some images more than once.
            let dir = scratch.path().join(place.to_string());
            log.image(*choice).write_to(&dir).expect("an image");
            let marks = log.marks(choice.steps);
            let checked =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&dir, *choice, &marks)));
            if checked.is_err() {
                next.store(choices.len(), Ordering::Relaxed);
                let kept = std::env::temp_dir().join(format!("tombolo-crash-image-{choice}"));
                log.image(*choice).write_to(&kept).expect("an image");
                panic!("image {choice} of {} steps: see {}", log.steps.len(), kept.display());
            }
            fs::remove_dir_all(&dir).expect("remove");
        }
    };
    std::thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        let failed = workers.into_iter().filter_map(|worker| worker.join().err());
        if let Some(panic) = failed.last() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Calls `check` for images, sequentially, at the path where the directory was recorded, so that paths within
/// them are valid. They are of the moments at which a name changed or a sync ended: at each mark with only
/// synced data, and `counts` others, in the gate and in the long run.
///
/// # Panics
/// If `check` does. The image is then recreated and retained.
pub fn each_image_at(
    log: &Log,
    place: &Path,
    counts: (usize, usize),
    mut check: impl FnMut(Choice, &[&str]),
) {
    let is_long = std::env::var_os("TOMBOLO_LONG").is_some();
    for choice in log.choices_of_names(if is_long { counts.1 } else { counts.0 }) {
        for entry in fs::read_dir(place).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("removed");
        }
        log.image(choice).write_to(place).expect("an image");
        let marks = log.marks(choice.steps);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(choice, &marks)));
        if checked.is_err() {
            let kept = std::env::temp_dir().join(format!("tombolo-crash-image-{choice}"));
            log.image(choice).write_to(&kept).expect("an image");
            panic!("image {choice} of {} steps: see {}", log.steps.len(), kept.display());
        }
    }
}
