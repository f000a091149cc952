//! Directory, directly and through mounts: columns of several tables.
//!
//! `fuse --mount`: a FUSE mount of a local directory, Tombolo compared with libfuse's `passthrough_ll`, and
//! with the directory itself. `ring --only mounts`: mounts of one export over a link and over NFS, both ours.
//! [`measure_steps`] has the steps of a job of shell commands as rows, for other tables.

use std::any::Any;
use std::path::PathBuf;
use std::rc::Rc;

use serde::Deserialize;

use crate::error::Result;
use crate::files::{
    ColdNames, Place, Script, Tree, create_write_unlink, mkdir_rmdir, open_read_close, small_files, stat,
    stream_read, stream_write,
};
use crate::measure::{Contest, Entrant, Placement, Work, go_on};
use crate::peer::{AtSocket, Mount, Nfs, Requests};
use crate::report::{Report, Unit};
use crate::sheet::{Row, Sheet, turns};

/// Access to a directory, as a column of a sheet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    pub name: String,
    /// Name in `--column`.
    #[serde(default)]
    pub id: String,
    #[serde(default)]
    pub over: Over,
    /// Policy of the mount, if not the program's default.
    pub coherence: Option<String>,
    /// `true` if the server watches its host for changes.
    #[serde(default)]
    pub watch: bool,
}

/// Path of a request to the directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// The directory itself.
    #[default]
    Itself,
    /// Our mount of the directory.
    Dir,
    /// libfuse's mount of the directory.
    PassthroughLl,
    /// Our mount over a link to a new server of ours.
    Link,
    /// Our mount over TCP on this host, from a new server of ours.
    Nfs,
}

/// One column's access to the directory: the directory itself, or a mount of it. Dropping it unmounts and
/// ends the server.
pub struct Side {
    pub name: String,
    /// Path of the directory, or of its mount point.
    pub root: PathBuf,
    mount: Option<Mount>,
    /// Process of the server behind the mount.
    behind: Option<u32>,
    /// Servers and caches, which end after the mount.
    _kept: Box<dyn Any>,
}

impl Way {
    pub fn id(&self) -> String {
        self.id.clone()
    }

    /// Creates a side with its own mount and server.
    pub fn side(&self, place: &Place) -> Result<Side> {
        let shared = place.shared();
        let words = self.name.split([':', ',', ' ', '.']).filter(|word| !word.is_empty());
        let point = place.beside(&words.collect::<Vec<_>>().join("-"));
        let (url, behind, kept): (_, _, Box<dyn Any>) = match self.over {
            Over::Itself => return Ok(Side { name: self.name.clone(), ..Side::itself(shared) }),
            Over::Dir | Over::PassthroughLl => (format!("dir:{}", shared.display()), None, Box::new(())),
            Over::Link => {
                let options: &[_] = if self.watch { &["--host-watch"] } else { &[] };
                let server = AtSocket::links(&shared, &point.with_extension("link"), options)?;
                (server.url(), Some(server.server.id()), Box::new(server))
            }
            Over::Nfs => {
                let server = Nfs::tombolo(&shared, place.folder())?;
                (server.url(), Some(server.server.id()), Box::new(server))
            }
        };
        let mount = match &self.coherence {
            _ if self.over == Over::PassthroughLl => Mount::by_libfuse(&shared, &point)?,
            policy => Mount::of_url(&url, policy.as_deref(), &point)?,
        };
        Ok(Side { name: self.name.clone(), behind, ..Side::of(mount, kept) })
    }

    /// Returns the available sides; missing ones are reported.
    pub fn sides(ways: &[Self], place: &Place, report: &mut Report) -> Vec<Side> {
        ways.iter().filter_map(|way| report.present(&way.name, way.side(place))).collect()
    }
}

impl Side {
    /// Returns the directory itself.
    pub fn itself(root: PathBuf) -> Self {
        Self { name: String::new(), root, mount: None, behind: None, _kept: Box::new(()) }
    }

    /// Returns a mount; `kept` ends after it.
    pub fn of(mount: Mount, kept: impl Any) -> Self {
        let root = mount.point.clone();
        Self { mount: Some(mount), _kept: Box::new(kept), ..Self::itself(root) }
    }

    /// Returns the server processes that a caller waits for.
    pub fn servers(&self) -> Vec<u32> {
        self.mount.iter().map(|mount| mount.server.id()).chain(self.behind).collect()
    }

    /// Returns the requests that reached the mount; none without one.
    pub fn requests(&self) -> Result<Requests> {
        self.mount.as_ref().map_or_else(|| Ok(Requests::default()), Mount::requests)
    }
}

/// Operation of a row.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    SmallFiles,
    OpenReadClose,
    CreateWriteUnlink,
    MkdirRmdir,
    StreamRead,
    StreamWrite,
    Stat,
}

pub type Mounts<'a> = Sheet<'a, Row<Operation>, Way>;

pub fn fuse(sheet: &mut Mounts<'_>, report: &mut Report) -> Result<()> {
    measure(sheet, report, sheet.plan.contest())
}

pub fn over_links(sheet: &mut Mounts<'_>, report: &mut Report) -> Result<()> {
    measure(sheet, report, Contest { count_syscalls: false, ..sheet.plan.contest() })
}

fn measure(sheet: &Mounts<'_>, report: &mut Report, contest: Contest) -> Result<()> {
    let tree = Tree::new(&sheet.plan.within, sheet.number("files"))?;
    let sides = Way::sides(&sheet.columns, &tree.place, report);
    let sides: Vec<_> = sides.into_iter().map(|side| (ColdNames::new(&side.root, &tree), side)).collect();
    for row in &sheet.rows {
        let mut entrants = Vec::new();
        for (names, side) in &sides {
            let servers = side.servers();
            // Without a server only the caller is placed.
            let places: &[_] = if servers.is_empty() { &[Placement::SameCore] } else { &Placement::ALL };
            for place in places {
                let variant = if servers.is_empty() { "" } else { place.label() };
                let work = work(row.work, side, names);
                entrants.push(Entrant::new((&side.name, variant), work, &servers, *place));
            }
        }
        report.contest(&row.name, &contest, entrants);
    }
    Ok(())
}

fn work(operation: Operation, side: &Side, names: &Rc<ColdNames>) -> Work<'static> {
    let (root, file) = (&side.root, side.name.replace([' ', ','], "-"));
    match operation {
        Operation::SmallFiles => small_files(root, &file),
        Operation::OpenReadClose => open_read_close(root),
        Operation::CreateWriteUnlink => create_write_unlink(root, &file),
        Operation::MkdirRmdir => mkdir_rmdir(root, &file),
        Operation::StreamRead => stream_read(root),
        Operation::StreamWrite => stream_write(root, &file),
        Operation::Stat => stat(names),
    }
}

/// Row of the sum of all steps.
const ALL: &str = "in all";

/// Measures the steps on each column, with a server and a mount of its own in each turn.
pub fn measure_steps(
    sheet: &Sheet<'_, String, Way>,
    report: &mut Report,
    place: &Place,
    job: &Script,
) -> Result<()> {
    let is_summed = sheet.rows.iter().any(|row| row == ALL);
    for way in turns(sheet.rounds(), &sheet.plan.columns(&sheet.columns, Way::id)?) {
        go_on()?;
        let took = job.timed(&way.side(place)?.root.join("job"))?;
        let steps = job.names().into_iter().zip(took.iter().copied());
        for (step, took) in steps.chain(is_summed.then(|| (ALL, took.iter().sum()))) {
            report.add(step, "", &way.name, Unit::Seconds, took.as_secs_f64());
        }
    }
    Ok(())
}
