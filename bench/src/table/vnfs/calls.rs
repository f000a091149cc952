//! `calls`: latency of single system calls on a mount during the build of a project on it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use super::Plan;
use super::build::{QUICK_SOURCE, STEPS, httpd};
use super::sides::{Column, Place, Side};
use crate::args::VnfsArgs;
use crate::error::{Doing, Error, Result};
use crate::files::Steps;
use crate::measure::{Clock, Placement, go_on};
use crate::peer::{Server, in_checkout};
use crate::report::{Figure, Report, Unit};

const STAT: usize = 0;
const FSTAT: usize = 1;
const UTIME: usize = 2;
const OPEN: usize = 3;
const READ: usize = 4;
const WRITE: usize = 5;
const CLOSE: usize = 6;
const CLOSE_WRITTEN: usize = 7;
const UNLINK: usize = 8;
const CALLS: [&str; 9] =
    ["stat", "fstat", "utime", "open", "read", "write", "close", "close, written", "unlink"];

/// Values of the paper's Table 2 for ext3, VNFS and NFS. It does not separate the closes of written files.
const PAPER: [(usize, [f64; 3]); 8] = [
    (STAT, [3.47, 9.32, 20.15]),
    (FSTAT, [0.82, 1.89, 3.89]),
    (UTIME, [9.50, 56.22, 145.81]),
    (OPEN, [3.84, 10.78, 69.61]),
    (READ, [89.66, 99.40, 162.69]),
    (WRITE, [10.93, 7.16, 8.16]),
    (CLOSE, [1.40, 5.15, 14.51]),
    (UNLINK, [16.75, 78.25, 172.90]),
];
const PAPER_COLUMNS: [&str; 2] = ["the paper's VNFS, × ext3", "the paper's NFS, × ext3"];

const MEDIAN: &str = "median";
const P90: &str = "p90";
const MEAN: &str = "mean";
const VARIANTS: [&str; 3] = [MEDIAN, P90, MEAN];

const ROUNDS: usize = 3;
/// Duration of the build, after which it is terminated.
const BUILD_SECS: &str = "15";
const QUICK_BUILD_SECS: &str = "0.5";
/// Interval between passes over all calls, so that they are not the load.
const REST: Duration = Duration::from_millis(1);
/// Number of project files that are examined and read in turn.
const FILES: usize = 256;
const BYTES: usize = 4096;

/// Concurrent job.
struct Job {
    source: PathBuf,
    about: &'static str,
    /// Untimed preparation.
    steps: &'static [(&'static str, &'static str)],
    /// Command that runs until it is terminated.
    build: &'static str,
}

const HTTPD: &str = "exec timeout \"$1\" make -s -j2 -C */ >/dev/null 2>&1";
const LUA: &str = "exec timeout \"$1\" sh -c 'while ls */src/*.c | xargs -P2 -I{} cc -O2 -DLUA_USE_LINUX -c {} -o {}.o; do :; done' >/dev/null 2>&1";

impl Job {
    fn new(plan: &Plan, report: &mut Report) -> Result<Self> {
        let lacks = match httpd() {
            Ok(source) if !plan.quick => {
                return Ok(Self { source, about: "Apache httpd is made", steps: &STEPS[..2], build: HTTPD });
            }
            Ok(_) => None,
            Err(error) => Some(error),
        };
        if let Some(error) = lacks.filter(|_| !plan.quick) {
            report.absent(format!("the build of Apache httpd, so Lua is compiled again and again: {error}"));
        }
        let source = in_checkout(Path::new(QUICK_SOURCE))?;
        Ok(Self { source, about: "Lua is compiled again and again", steps: &STEPS[..1], build: LUA })
    }

    /// Starts the build after its preparation.
    fn begin(&self, folder: &Path, secs: &str) -> Result<Server> {
        let mut command = Command::new("sh");
        command.args(["-c", self.build, "sh", secs]).current_dir(folder);
        Server::start("the build", &mut command)
    }
}

pub fn run(plan: &Plan, wanted: &VnfsArgs) -> Result<Report> {
    let mut report = plan.report("vnfs-calls", "System calls on a mount while a project is built on it");
    let job = Job::new(plan, &mut report)?;
    let folder = crate::table::folder(&wanted.disk)?;
    let place = Place { shared: folder.path().join("shared"), beside: folder.path().to_owned() };
    fs::create_dir(&place.shared).doing_to("make", &place.shared)?;
    Placement::leave()?;
    let secs = if plan.quick { QUICK_BUILD_SECS } else { BUILD_SECS };
    let (columns, rounds) = (wanted.columns(), if plan.quick { 1 } else { plan.rounds_of(ROUNDS) });
    let mut times = vec![Times::default(); columns.len()];
    for round in 0..rounds {
        for turn in 0..columns.len() {
            go_on()?;
            let at = (turn + round) % columns.len();
            let (Some(column), Some(times)) = (columns.get(at), times.get_mut(at)) else { continue };
            times.add(&during(&place, *column, &job, secs)?);
            // Removes the remainder of the build directly.
            let left = place.shared.join(FOLDER);
            fs::remove_dir_all(&left).doing_to("remove", &left)?;
        }
    }
    for (column, times) in columns.iter().zip(times) {
        times.enter(&mut report, column.name());
    }
    compare(&mut report);
    report.condition(format!(
        "{rounds} rounds, in each of which every column has one turn, with servers and a mount of its own, on a directory below {}. {}, two jobs at a \
         time, for {secs} s, after the source was unpacked and configured on the same mount",
        wanted.disk.display(),
        job.about
    ));
    report.condition(format!(
        "meanwhile one thread, which rests for {} ms after each pass, looks at a header of the project (stat), opens it, looks at it (fstat), reads {BYTES} bytes \
         and closes it, and then makes a file, writes {BYTES} bytes, sets its time (futimens), closes and unlinks it. The build competes for the cores: \
         a call that waits for another process waits for its turn too",
        REST.as_millis()
    ));
    report.condition(
        "the paper's Table 2 has means of the build's own calls, in milliseconds as it is printed".to_owned(),
    );
    Ok(report)
}

const FOLDER: &str = "job";

/// Measures the calls during one build.
fn during(place: &Place, column: Column, job: &Job, secs: &str) -> Result<Vec<Clock>> {
    let side: Side = place.fresh(column)?;
    let folder = side.path(Path::new(FOLDER));
    Steps { steps: job.steps, arguments: vec![job.source.clone().into()] }.done(&folder)?;
    let mut caller = Caller::new(&folder)?;
    let mut build = job.begin(&folder, secs)?;
    while !build.ended_within(Duration::ZERO) {
        go_on()?;
        caller.pass()?;
        thread::sleep(REST);
    }
    Ok(caller.clocks)
}

/// Maker of the calls.
struct Caller {
    headers: Vec<PathBuf>,
    next: usize,
    own: PathBuf,
    buffer: Vec<u8>,
    then: SystemTime,
    clocks: Vec<Clock>,
}

impl Caller {
    fn new(folder: &Path) -> Result<Self> {
        let mut headers = Vec::new();
        find_headers(folder, &mut headers)?;
        if headers.is_empty() {
            let what = format!("headers below {}", folder.display());
            return Err(Error::Wrong { what, answer: "none".to_owned() });
        }
        Ok(Self {
            headers,
            next: 0,
            own: folder.join("own"),
            buffer: vec![b'w'; BYTES],
            then: SystemTime::now() - Duration::from_secs(3600),
            clocks: CALLS.map(|_| Clock::new()).into(),
        })
    }

    /// Makes each call once.
    fn pass(&mut self) -> Result<()> {
        let Self { headers, next, own, buffer, then, clocks } = self;
        *next = (*next + 1) % headers.len();
        let path = &headers[*next];
        clocks[STAT].time(|| fs::metadata(path)).doing_to("look at", path)?;
        let mut file = clocks[OPEN].time(|| File::open(path)).doing_to("open", path)?;
        clocks[FSTAT].time(|| file.metadata()).doing_to("look at", path)?;
        clocks[READ].time(|| file.read(buffer)).doing_to("read", path)?;
        clocks[CLOSE].time(|| drop(file));

        let mut file = File::create_new(&*own).doing_to("create", own)?;
        clocks[WRITE].time(|| file.write_all(buffer)).doing_to("write", own)?;
        clocks[UTIME].time(|| file.set_modified(*then)).doing_to("date", own)?;
        clocks[CLOSE_WRITTEN].time(|| drop(file));
        clocks[UNLINK].time(|| fs::remove_file(&*own)).doing_to("unlink", own)
    }
}

/// Finds some of the headers below a folder.
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

/// Nanoseconds by call, variant and round.
#[derive(Clone, Default)]
struct Times([[Vec<f64>; VARIANTS.len()]; CALLS.len()]);

impl Times {
    fn add(&mut self, clocks: &[Clock]) {
        for (of_call, clock) in self.0.iter_mut().zip(clocks) {
            let mean = clock.total().as_nanos() as f64 / clock.count().max(1) as f64;
            let all = [clock.quantile_ns(0.5), clock.quantile_ns(0.9), mean];
            of_call.iter_mut().zip(all).for_each(|(rounds, ns)| rounds.push(ns));
        }
    }

    fn enter(self, report: &mut Report, column: &str) {
        for (call, of_call) in CALLS.into_iter().zip(self.0) {
            for (variant, rounds) in VARIANTS.into_iter().zip(of_call) {
                report.figures.extend(Figure::of_rounds(call, variant, column, Unit::Nanoseconds, rounds));
            }
        }
    }
}

fn compare(report: &mut Report) {
    let [local, nfs, strict, push] = Column::ALL.map(Column::name);
    for call in CALLS {
        for ours in [push, strict] {
            for other in [nfs, local] {
                report.compare_cells(call, (ours, MEDIAN), (other, MEDIAN), None);
            }
        }
    }
    for (call, [ext3, vnfs, nfs]) in PAPER {
        for (column, figure) in PAPER_COLUMNS.into_iter().zip([vnfs, nfs]) {
            let figure = Figure::single(CALLS[call], MEAN, column, Unit::Times, figure / ext3);
            report.figures.push(figure);
        }
    }
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
        assert!(caller.clocks.iter().all(|clock| clock.count() == 2));
        assert!(!caller.own.exists());
    }
}
