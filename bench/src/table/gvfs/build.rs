//! `build`: a C project with remote sources and local objects.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;

use super::Plan;
use super::site::{Column, Site, folder};
use super::twice::{Job, WARM, added, conditions, measure, rounds};
use crate::args::GvfsArgs;
use crate::error::{Doing, Error, Result};
use crate::files::Steps;
use crate::peer::in_checkout;
use crate::report::Report;

/// Project to build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// Apache httpd, configured and built
    #[default]
    Httpd,
    /// All 33 files of Lua, compiled without make
    Lua,
    /// Two files of Lua, as with --quick
    #[value(skip)]
    Little,
}

type Step = (&'static str, &'static str);

const REMOVE: Step = ("remove", "rm -rf -- * .[!.]*");
const HTTPD: [Step; 3] =
    [("configure", "\"$1\"/configure -q >/dev/null 2>&1"), ("build", "make -s -j2 >/dev/null 2>&1"), REMOVE];
const LUA: [Step; 2] = [("build", "ls \"$1\"/src/*.c | xargs -P2 -n1 cc -O2 -DLUA_USE_LINUX -c"), REMOVE];
const LITTLE: [Step; 2] =
    [("build", "for file in lapi lzio; do cc -c \"$1\"/src/$file.c || exit; done"), REMOVE];

impl Source {
    fn steps(self) -> &'static [Step] {
        match self {
            Self::Httpd => &HTTPD,
            Self::Lua => &LUA,
            Self::Little => &LITTLE,
        }
    }

    /// Returns the archive's name without its extension.
    pub fn name(self) -> &'static str {
        if self == Self::Httpd { "httpd" } else { "lua" }
    }

    pub fn tarball(self) -> Result<PathBuf> {
        let name = self.name();
        if self == Self::Httpd && Command::new("apr-1-config").arg("--version").output().is_err() {
            let lacks = "httpd needs libapr1-dev, libaprutil1-dev and libpcre2-dev";
            return Err(Error::Absent(lacks.to_owned()));
        }
        in_checkout(Path::new(&format!(".cache/sources/{name}.tar.gz")))
            .map_err(|error| Error::Absent(format!("{error} (tests/guests/fetch-source {name} fetches it)")))
    }

    fn about(self) -> &'static str {
        match self {
            Self::Httpd => "Apache httpd: configure and make, out of tree",
            Self::Lua => "all files of Lua compiled",
            Self::Little => "two files of Lua compiled",
        }
    }
}

const ALL: &str = "in all";
const ROUNDS: usize = 3;
/// Warm, at most 1.03 × the bare mount.
const WARM_TARGET: f64 = 0.971;
/// Cold, at most a fifth of the time that NFS adds to local; through the proxy on the LAN 0.3 × of what the
/// WAN link adds.
const COLD_TARGET: f64 = 0.2;
const LAN_TARGET: f64 = 0.3;

const COLUMNS: [Column; 8] = [
    Column::Local,
    Column::Dir,
    Column::Nfs,
    Column::Exclusive,
    Column::CloseToOpen,
    Column::SecondLevel,
    Column::Sshfs,
    Column::Rclone,
];

pub fn run(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    let source = if plan.quick { Source::Little } else { wanted.source };
    let (tarball, steps) = (source.tarball()?, source.steps());
    let mut report = plan.report("gvfs-build", "A C project built from a remote tree");
    let (folder, shared) = folder(wanted)?;
    unpack(&tarball, &shared)?;
    let mut site = Site::new(plan, wanted, &shared, folder.path())?;
    site.add_lan(&mut report);
    let objects = folder.path().join("objects");
    let rows: Vec<&str> = steps.iter().map(|(name, _)| *name).filter(|name| *name != REMOVE.0).collect();
    let rows: Vec<&str> = rows.into_iter().chain([ALL]).collect();
    let build = |root: &Path| build(root, &objects, steps);
    let rounds = rounds(plan, ROUNDS);
    measure(
        &mut report,
        &site,
        &wanted.columns(&COLUMNS),
        rounds,
        &Job { rows: &rows, run: &build, bytes: None, bare_bytes: 0 },
    )?;
    for row in &rows {
        let target = (*row == ALL).then_some(WARM_TARGET);
        for (ours, target) in [(Column::Exclusive, target), (Column::CloseToOpen, None)] {
            report.compare_cells(row, (ours.name(), WARM), (Column::Dir.name(), WARM), target);
            report.compare_cells(row, (ours.name(), WARM), (Column::Local.name(), WARM), None);
        }
    }
    added(&mut report, ALL, Column::Exclusive, Column::Nfs, COLD_TARGET);
    added(&mut report, ALL, Column::CloseToOpen, Column::Nfs, COLD_TARGET);
    added(&mut report, ALL, Column::SecondLevel, Column::Exclusive, LAN_TARGET);
    conditions(&mut report, rounds, &wanted.disk);
    report.condition(format!(
        "{}; sources are in the tree, objects in a local directory; two files at a time; compiler and libraries are local, and cold too. A ratio of \
         0.971 is 1.03 × the time on a `{}`",
        source.about(),
        Column::Dir.name()
    ));
    report.condition(
        "the paper, for a Linux kernel in a guest whose disk was far: 84 % over local cold, 9 % warm"
            .to_owned(),
    );
    site.describe(&mut report);
    Ok(report)
}

fn unpack(source: &Path, shared: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.args(["--strip-components=1", "-xzf"]).arg(source).arg("-C").arg(shared);
    let status = command.status().doing(|| "start tar".to_owned())?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Wrong { what: format!("tar -xzf {}", source.display()), answer: status.to_string() })
}

/// Returns the time of each step except the last, which removes everything, and their sum.
fn build(root: &Path, objects: &Path, steps: &[(&str, &str)]) -> Result<Vec<Duration>> {
    let mut took = Steps { steps, arguments: vec![root.into()] }.timed(objects)?;
    took.pop();
    took.push(took.iter().sum());
    Ok(took)
}
