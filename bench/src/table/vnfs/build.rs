//! `build`: Apache httpd unpacked, configured, built and removed, on the directory itself and through mounts.

use super::{Plan, place};
use crate::error::Result;
use crate::files::{Steps, source};
use crate::report::Report;
use crate::sheet::sheet;
use crate::table::builds::measure;

pub const STEPS: [(&str, &str); 4] = [
    ("unpack", "tar xzf \"$1\""),
    ("configure", "cd */ && ./configure -q >/dev/null 2>&1"),
    ("build", "make -s -j2 -C */ >/dev/null 2>&1"),
    ("remove", "rm -rf -- *"),
];
const QUICK_STEPS: [(&str, &str); 2] = [STEPS[0], STEPS[3]];

pub fn run(plan: &Plan) -> Result<Report> {
    let (name, steps): (_, &[_]) = if plan.quick { ("lua", &QUICK_STEPS) } else { ("httpd", &STEPS) };
    let job = Steps { steps, arguments: vec![source(name)?.into()] };
    let (_folder, place) = place(plan)?;
    measure(plan, sheet!(plan, "vnfs-build")?, &place, &job)
}
