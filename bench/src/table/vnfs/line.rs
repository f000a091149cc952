//! `line`: cost of a stat, from the system call to the library, in one row.

use libtombolo::{CacheOptions, CachedTree};

use super::Plan;
use super::client::tree;
use super::mounts::stat;
use super::small_tree::SmallTree;
use crate::error::{OrWrong, Result};
use crate::measure::{Entrant, Placement, Work};
use crate::peer::Shm;
use crate::report::Report;
use crate::sheet::{Sheet, sheet};
use crate::table::mounts::Way;

const ROW: &str = "a look at a file";

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_, String, Way> = sheet!(plan, "vnfs-line")?;
    let (mut report, count) = (sheet.report(), sheet.number("files"));
    let files = SmallTree::new(&plan.disk, count)?;
    let sides = files.place().sides(&sheet.columns, &mut report);
    let server = Shm::tombolo(&files.shared(), &files.beside("library.link"), &["--host-watch"])?;
    let cached = CachedTree::new(tree(&server)?, CacheOptions::default());
    let by_calls = sides.iter().map(|side| {
        Entrant::new((&side.name, ""), stat(side, &files, count), &side.servers(), Placement::Free)
    });
    let library = by_library(&cached, &files, count);
    let library = Entrant::new(("the library", ""), library, &[server.server()], Placement::Free);
    let entrants = by_calls.chain([library]).collect();
    report.contest(ROW, &sheet.contest(plan.timed()), entrants);
    Placement::leave()?;
    Ok(sheet.finish(report))
}

fn by_library<'a>(cached: &'a CachedTree, files: &SmallTree, count: usize) -> Work<'a> {
    let paths = files.some(count).into_iter().map(|path| path.into_os_string().into_encoded_bytes());
    let paths: Vec<Vec<u8>> = paths.collect();
    Work::repeat(paths.len() as u64, move || {
        let look = |path: &Vec<u8>| cached.stat(path).wait().or_wrong("stat");
        paths.iter().try_for_each(|path| look(path).map(drop))
    })
}
