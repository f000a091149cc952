//! `calls`: latency of single system calls on a mount, while a project is built on the same mount.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::Plan;
use crate::error::{Doing, Error, Result};
use crate::files::{Place, Script};
use crate::measure::{Clock, Placement, go_on};
use crate::peer::Server;
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, turns};
use crate::table::mounts::{Side, Way};

/// Duration in seconds after which the build is terminated.
const BUILD_SECS: &str = "15";
const QUICK_BUILD_SECS: &str = "0.5";
/// Interval between passes over all calls, so that the build, not the measurement, is the load.
const REST: Duration = Duration::from_millis(1);
/// Number of project files that are examined and read in turn.
const FILES: usize = 256;
const BYTES: usize = 4096;

const FOLDER: &str = "job";

/// Times by call.
type Clocks = BTreeMap<&'static str, Clock>;

/// Returns the build that runs concurrently; its steps before the load are untimed preparation. It is that of
/// Lua in a quick run, or if httpd's sources are missing.
fn job(plan: &Plan, sheet: &Sheet<'_, String, Way>, report: &mut Report) -> Result<Script> {
    if !plan.quick {
        match sheet.script("httpd")?.with_archive() {
            Ok(httpd) => return Ok(httpd),
            Err(error) => report
                .absent(format!("the build of Apache httpd, so Lua is compiled again and again: {error}")),
        }
    }
    sheet.script("lua")?.with_archive()
}

/// Measures the calls during one build, which is terminated after `secs` seconds.
fn during(job: &Script, secs: &str, side: &Side) -> Result<Clocks> {
    let folder = side.root.join(FOLDER);
    job.done(&folder)?;
    let mut caller = Caller::new(&folder)?;
    let mut command = Command::new("sh");
    command.args(["-c", &job.load, "sh", secs]).current_dir(folder);
    let mut build = Server::start("the build", &mut command)?;
    while !build.ended_within(Duration::ZERO) {
        go_on()?;
        caller.pass()?;
        thread::sleep(REST);
    }
    Ok(caller.clocks)
}

pub fn run(sheet: &mut Sheet<'_, String, Way>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let job = job(plan, sheet, report)?;
    let secs = if plan.quick { QUICK_BUILD_SECS } else { BUILD_SECS };
    sheet.set("job", &job.about);
    sheet.set("secs", &secs);
    let place = Place::within(&plan.disk)?;
    Placement::leave()?;
    for way in turns(sheet.rounds(), &plan.columns(&sheet.columns, Way::id)?) {
        go_on()?;
        let clocks = during(&job, secs, &way.side(&place)?)?;
        // Removes the rest of the build, in the directory itself instead of through the mount.
        let left = place.shared().join(FOLDER);
        fs::remove_dir_all(&left).doing_to("remove", &left)?;
        for (call, clock) in sheet.rows.iter().filter_map(|call| Some((call, clocks.get(call.as_str())?))) {
            let mean = clock.total().as_nanos() as f64 / clock.count().max(1) as f64;
            let values =
                [("median", clock.quantile_ns(0.5)), ("p90", clock.quantile_ns(0.9)), ("mean", mean)];
            for (variant, ns) in values {
                report.add(call, variant, &way.name, Unit::Nanoseconds, ns);
            }
        }
    }
    Ok(())
}

/// Makes the calls in a folder with headers until the time is over, and prints the median of each.
pub fn print_medians(folder: &Path, within: Duration, out: &mut dyn Write) -> Result<()> {
    let (mut caller, end) = (Caller::new(folder)?, Instant::now() + within);
    while Instant::now() < end {
        go_on()?;
        caller.pass()?;
        thread::sleep(REST);
    }
    caller.clocks.iter().try_for_each(|(call, clock)| {
        let name = call.replace(", ", "-");
        writeln!(out, "{name} {:.0} ns", clock.quantile_ns(0.5)).doing(|| "print".to_owned())
    })
}

/// State of the thread that makes the measured calls.
struct Caller {
    /// Files that are examined and read in turn.
    headers: Vec<PathBuf>,
    next: usize,
    /// File that is created and removed.
    own: PathBuf,
    buffer: Vec<u8>,
    /// Date that `own` is given.
    then: SystemTime,
    clocks: Clocks,
}

impl Caller {
    fn new(folder: &Path) -> Result<Self> {
        let mut headers = Vec::new();
        find_headers(folder, &mut headers)?;
        if headers.is_empty() {
            let what = format!("headers below {}", folder.display());
            return Err(Error::Wrong { what, answer: "none".to_owned() });
        }
        let (own, then) = (folder.join("own"), SystemTime::now() - Duration::from_secs(3600));
        Ok(Self { headers, next: 0, own, buffer: vec![b'w'; BYTES], then, clocks: Clocks::new() })
    }

    /// Makes each call once.
    fn pass(&mut self) -> Result<()> {
        let Self { headers, next, own, buffer, then, clocks } = self;
        *next = (*next + 1) % headers.len();
        let path = &headers[*next];
        time(clocks, "stat", || fs::metadata(path)).doing_to("look at", path)?;
        let mut file = time(clocks, "open", || File::open(path)).doing_to("open", path)?;
        time(clocks, "fstat", || file.metadata()).doing_to("look at", path)?;
        time(clocks, "read", || file.read(buffer)).doing_to("read", path)?;
        time(clocks, "close", || drop(file));

        let mut file = File::create_new(&*own).doing_to("create", own)?;
        time(clocks, "write", || file.write_all(buffer)).doing_to("write", own)?;
        time(clocks, "utime", || file.set_modified(*then)).doing_to("date", own)?;
        time(clocks, "close, written", || drop(file));
        time(clocks, "unlink", || fs::remove_file(&*own)).doing_to("unlink", own)
    }
}

fn time<T>(clocks: &mut Clocks, call: &'static str, made: impl FnOnce() -> T) -> T {
    clocks.entry(call).or_default().time(made)
}

/// Adds the headers below a folder to `found`, up to [`FILES`].
fn find_headers(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).doing_to("list", folder)?.flatten() {
        if found.len() >= FILES {
            break;
        }
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find_headers(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "h") {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_makes_each_call_once_and_cleans_up() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Caller::new(folder.path()).is_err(), "no headers");
        fs::create_dir(folder.path().join("include")).unwrap();
        fs::write(folder.path().join("include/a.h"), "x").unwrap();
        let mut caller = Caller::new(folder.path()).unwrap();
        caller.pass().unwrap();
        caller.pass().unwrap();
        assert!(caller.clocks.len() == 9 && caller.clocks.values().all(|clock| clock.count() == 2));
        assert!(!caller.own.exists());
    }
}
