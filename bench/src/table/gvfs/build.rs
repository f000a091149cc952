//! `build`: a C project with remote sources and local objects.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;

use super::Plan;
use super::site::{Column, Site, folder};
use super::twice::{Job, describe, measure};
use crate::error::Result;
use crate::files::{Steps, source};
use crate::peer::completed;
use crate::report::Report;
use crate::sheet::{Sheet, sheet};

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
    /// Returns the archive's name without its extension.
    pub fn name(self) -> &'static str {
        if self == Self::Httpd { "httpd" } else { "lua" }
    }

    fn steps(self) -> (&'static [Step], &'static str) {
        match self {
            Self::Httpd => (&HTTPD, "Apache httpd: configure and make, out of tree"),
            Self::Lua => (&LUA, "all files of Lua compiled"),
            Self::Little => (&LITTLE, "two files of Lua compiled"),
        }
    }
}

const ALL: &str = "in all";

pub fn run(plan: &Plan) -> Result<Report> {
    let mut sheet: Sheet<'_, String, Column> = sheet!(plan, "gvfs-build")?;
    let project = if plan.quick { Source::Little } else { plan.source };
    let (tarball, (steps, about)) = (source(project.name())?, project.steps());
    describe(&mut sheet);
    sheet.set("project", &about);
    let mut report = sheet.report();
    let (folder, shared) = folder(plan)?;
    unpack(&tarball, &shared)?;
    let mut site = Site::new(plan, &shared, folder.path())?;
    site.add_lan(&mut report);
    let objects = folder.path().join("objects");
    let rows = steps.iter().map(|(name, _)| *name).filter(|name| *name != REMOVE.0);
    let rows: Vec<&str> = rows.chain([ALL]).collect();
    let build = |root: &Path| build(root, &objects, steps);
    let job = Job { rows: &rows, run: &build, bytes: None, bare_bytes: 0 };
    measure(&mut report, &site, &plan.columns(&sheet.columns, Column::id)?, sheet.rounds(), &job)?;
    Ok(site.described(sheet.finish(report)))
}

fn unpack(source: &Path, shared: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.args(["--strip-components=1", "-xzf"]).arg(source).arg("-C").arg(shared);
    completed("tar", &mut command).map(drop)
}

/// Returns the time of each step except the last, which removes everything, and their sum.
fn build(root: &Path, objects: &Path, steps: &[(&str, &str)]) -> Result<Vec<Duration>> {
    let mut took = Steps { steps, arguments: vec![root.into()] }.timed(objects)?;
    took.pop();
    took.push(took.iter().sum());
    Ok(took)
}
