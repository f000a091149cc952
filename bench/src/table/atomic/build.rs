//! Build of a C project over an NFS mount, compared with a local directory.

use super::test_host::{Serves, TestHost};
use crate::error::Result;
use crate::files::{Steps, source};
use crate::report::Report;
use crate::sheet::sheet;
use crate::table::builds::measure;
use crate::table::mounts::Place;

/// Steps: names and shell commands, run in an empty directory.
const STEPS: [(&str, &str); 3] = [
    ("unpack", "tar xzf \"$1\""),
    ("build", "make -s -C */src \"$2\" >/dev/null"),
    ("remove", "rm -rf -- *"),
];

pub(super) fn run(host: &TestHost<'_>) -> Result<Report> {
    let mut sheet = host.described(sheet!(host.plan, "atomic-build")?);
    // Targets without external libraries.
    let target = if host.plan.quick { "lapi.o" } else { "posix" };
    sheet.set("target", &target);
    let job = Steps { steps: &STEPS, arguments: vec![source("lua")?.into(), target.into()] };
    let place = Place { shared: host.folder(Serves::Memory), beside: host.own("mounts")? };
    measure(host.plan, sheet, &place, &job)
}
