//! `line`: cost of a stat, from the system call to the library, in one row.

use libtombolo::{CacheOptions, CachedTree};

use super::Plan;
use super::client::tree;
use super::sides::{Place, Side};
use super::small_tree::SmallTree;
use crate::args::VnfsArgs;
use crate::error::{Doing, Result, wrong};
use crate::measure::{Contest, Entrant, Placement, Work};
use crate::peer::Shm;
use crate::report::Report;

const LOCAL: &str = "stat(2), local";
const NFS: &str = "stat(2), nfs:";
const NFS_STRICT: &str = "stat(2), nfs:, strict";
const PUSH: &str = "stat(2), shm: with push";
const LIBRARY: &str = "the library";
const ROW: &str = "a look at a file";
const FILES: usize = 200;
const ROUNDS: usize = 5;

pub fn run(plan: &Plan, wanted: &VnfsArgs) -> Result<Report> {
    let mut report = plan.report("vnfs-line", "Cost of a repeated stat of a file");
    let files = SmallTree::new(&wanted.disk, FILES)?;
    let place = Place { shared: files.shared(), beside: files.beside("") };
    let mut sides = vec![place.local(LOCAL)];
    for (name, side) in [
        (NFS, place.over_nfs(NFS, "auto")),
        (NFS_STRICT, place.over_nfs(NFS_STRICT, "strict")),
        (PUSH, place.over_link(PUSH, "push", &["--host-watch"])),
    ] {
        match side {
            Ok(side) => sides.push(side),
            Err(error) => report.absent(format!("{name}: {error}")),
        }
    }
    let server = Shm::tombolo(&files.shared(), &files.beside("library.link"), &["--host-watch"])?;
    let cached = CachedTree::new(tree(&server)?, CacheOptions::default());
    let contest = Contest { rounds: plan.rounds_of(ROUNDS), ..plan.timed() };
    let mut entrants: Vec<_> = sides
        .iter()
        .map(|side| Entrant::new((side.name, ""), by_call(side, &files), &side.servers(), Placement::Free))
        .collect();
    entrants.push(Entrant::new(
        (LIBRARY, ""),
        by_library(&cached, &files),
        &[server.server()],
        Placement::Free,
    ));
    report.contest(ROW, &contest, entrants);
    for name in [NFS, NFS_STRICT, PUSH, LIBRARY] {
        report.compare_cells(ROW, (name, ""), (LOCAL, ""), None);
    }
    Placement::leave()?;
    report.condition_of(&contest);
    report.condition(format!(
        "{FILES} files, one after the other, by one thread; `{NFS}` believes what is up to a second old"
    ));
    Ok(report)
}

fn by_call<'a>(side: &Side, files: &SmallTree) -> Work<'a> {
    let paths: Vec<_> = files.some(FILES).iter().map(|path| side.path(path)).collect();
    Work::repeat(paths.len() as u64, move || {
        paths.iter().try_for_each(|path| std::fs::metadata(path).doing_to("look at", path).map(drop))
    })
}

fn by_library<'a>(cached: &'a CachedTree, files: &SmallTree) -> Work<'a> {
    let paths: Vec<_> =
        files.some(FILES).iter().map(|path| path.as_os_str().as_encoded_bytes().to_vec()).collect();
    Work::repeat(paths.len() as u64, move || {
        let look = |path: &Vec<u8>| cached.stat(path).wait().map_err(|error| wrong("stat", &error));
        paths.iter().try_for_each(|path| look(path).map(drop))
    })
}
