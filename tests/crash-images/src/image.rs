//! Images of the directory as a power loss may leave it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use fastrand::Rng;

use crate::log::{Log, Node, What, is_lost};

/// Parameters of an image: the moment of the power loss, and the fate of calls not stable by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Number of steps before the power loss.
    pub steps: usize,
    /// 0: everything is on the disk; 1: only synced data; others: parts of the remainder.
    pub seed: u64,
}

/// The contents of the disk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Image {
    names: HashMap<Node, BTreeMap<OsString, (Node, bool)>>,
    data: HashMap<Node, Vec<u8>>,
    times: HashMap<Node, (u64, u32)>,
}

/// The fate of a call that was not stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Lost,
    /// Only some pieces of a write are on the disk, each of so many bytes.
    Torn(usize),
    /// The file has its new length, with zeroes.
    Zeros,
}

/// Maximum size of a file in a test.
const FILE_BYTES_MAX: usize = 1 << 28;

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.steps, self.seed)
    }
}

impl Log {
    /// Returns `count` choices, in order, with all kinds of losses: every moment if there are enough choices,
    /// otherwise random moments.
    pub fn choices(&self, count: usize) -> Vec<Choice> {
        let (all, mut random) = (self.steps.len() + 1, Rng::with_seed(count as u64));
        let each = |index: usize| {
            let (from, to) = (index * all / count, (index + 1) * all / count);
            let steps = if to > from { random.usize(from..to) } else { from };
            // Two in six are the kinds that must never be missing; a longer run repeats each moment with
            // other losses.
            let seed = match index % 6 {
                kind @ 0..2 => kind as u64,
                _ => index as u64 + 2,
            };
            Choice { steps, seed }
        };
        (0..count).map(each).collect()
    }

    /// Returns choices with only synced data at each mark, and `count` random ones among the moments at which
    /// a name changed or a sync ended.
    pub(crate) fn choices_of_names(&self, count: usize) -> Vec<Choice> {
        let after = |wanted: fn(&What) -> bool| {
            let places = self.steps.iter().enumerate().filter(move |(_, step)| wanted(&step.what));
            places.map(|(place, _)| place + 1)
        };
        let marks = after(|what| matches!(what, What::Mark(_))).map(|steps| Choice { steps, seed: 1 });
        let is_of_names = |what: &What| matches!(what, What::Name { .. } | What::Rename { .. } | What::Sync);
        let (moments, mut random) = (after(is_of_names).collect::<Vec<_>>(), Rng::with_seed(count as u64));
        let others = (0..count).map(|index| Choice {
            steps: moments[(index * moments.len() + random.usize(..moments.len())) / count],
            seed: random.u64(..6),
        });
        marks.chain(others).collect()
    }

    /// Returns the choice after all steps with only synced data.
    pub fn end(&self) -> Choice {
        Choice { steps: self.steps.len(), seed: 1 }
    }

    /// Returns the image of a choice.
    pub fn image(&self, choice: Choice) -> Image {
        let mut random = Rng::with_seed((choice.steps as u64) << 32 ^ choice.seed);
        let fates = self.fates(choice, &mut random);
        let mut image = Image::default();
        for (step, fate) in self.steps[..choice.steps].iter().zip(fates) {
            image.suffer(&step.what, fate, &mut random);
        }
        image
    }

    fn fates(&self, choice: Choice, random: &mut Rng) -> Vec<Fate> {
        let steps = &self.steps[..choice.steps];
        let mut fates = vec![Fate::Kept; steps.len()];
        let is_open = |at: &usize| {
            let step = &steps[*at];
            step.what.node().is_some() && step.stable.is_none_or(|stable| stable >= choice.steps)
        };
        let open: Vec<usize> = (0..steps.len()).filter(is_open).collect();
        if choice.seed == 0 || open.is_empty() {
            return fates;
        }
        let kind = if choice.seed == 1 { 0 } else { random.u8(1..4) };
        let chosen = open[random.usize(..open.len())];
        let share = [0.1, 0.5, 0.9][random.usize(..3)];
        // A prefix of a directory's new names survives: file systems write changes of a directory in order.
        let mut ended = std::collections::HashSet::new();
        for at in open {
            let is_kept = match kind {
                0 => false,
                1 => random.f64() < share,
                2 => at != chosen,
                _ => at == chosen,
            };
            let (what, is_torn) = (&steps[at].what, random.u8(..4) > 0);
            fates[at] = match what {
                What::Name { dir, .. } | What::Rename { dir, .. } => {
                    // A surviving name implies those before it.
                    let is_before = kind == 3 && at < chosen && steps[chosen].what.node() == Some(*dir);
                    if !is_kept && !is_before {
                        ended.insert(*dir);
                    }
                    if ended.contains(dir) { Fate::Lost } else { Fate::Kept }
                }
                What::Write { .. } if kind > 0 && !is_kept && is_torn => match random.u8(..5) {
                    0 | 1 => Fate::Torn(512),
                    2 | 3 => Fate::Torn(4096),
                    _ => Fate::Zeros,
                },
                _ if is_kept => Fate::Kept,
                _ => Fate::Lost,
            };
        }
        fates
    }
}

impl Image {
    /// Applies a step completely.
    pub(crate) fn apply(&mut self, what: &What) {
        self.suffer(what, Fate::Kept, &mut Rng::with_seed(0));
    }

    /// Returns the contents of a file.
    pub(crate) fn data(&self, node: Node) -> &[u8] {
        self.data.get(&node).map_or(&[], |data| data)
    }

    fn suffer(&mut self, what: &What, fate: Fate, random: &mut Rng) {
        if fate == Fate::Lost {
            return;
        }
        match what {
            What::Name { dir, name, node, is_dir } => {
                let names = self.names.entry(*dir).or_default();
                match node {
                    Some(node) => names.insert(name.clone(), (*node, *is_dir)),
                    None => names.remove(name),
                };
            }
            What::Rename { dir, from, to } => {
                let names = self.names.entry(*dir).or_default();
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
            What::Write { node, at, bytes } => self.write(*node, *at, bytes, fate, random),
            What::Truncate { node, len } => {
                assert!(*len <= FILE_BYTES_MAX, "a file of {len} bytes");
                self.data.entry(*node).or_default().resize(*len, 0);
            }
            What::Punch { node, at, len } => {
                let data = self.data.entry(*node).or_default();
                let end = at.saturating_add(*len).min(data.len());
                data[(*at).min(end)..end].fill(0);
            }
            What::Time { node, time } => {
                self.times.insert(*node, *time);
            }
            What::Sync | What::Mark(_) => {}
        }
    }

    fn write(&mut self, node: Node, at: usize, bytes: &[u8], fate: Fate, random: &mut Rng) {
        let (data, end) = (self.data.entry(node).or_default(), at + bytes.len());
        assert!(end <= FILE_BYTES_MAX, "a file of {end} bytes");
        if data.len() < end {
            data.resize(end, 0);
        }
        match fate {
            Fate::Torn(piece_bytes) => {
                // The first pieces, the last, or any.
                let (first, last) = (at / piece_bytes, (end - 1) / piece_bytes);
                let (way, cut) = (random.u8(..3), random.usize(first..=last));
                for piece in first..=last {
                    let is_there = [piece < cut, piece > cut, random.bool()][usize::from(way)];
                    if is_there {
                        let (from, to) =
                            ((piece * piece_bytes).max(at), ((piece + 1) * piece_bytes).min(end));
                        data[from..to].copy_from_slice(&bytes[from - at..to - at]);
                    }
                }
            }
            Fate::Zeros | Fate::Lost => {}
            Fate::Kept => data[at..end].copy_from_slice(bytes),
        }
    }

    /// Reads a directory into the form of images.
    pub(crate) fn of(dir: &Path) -> io::Result<BTreeMap<OsString, Option<Vec<u8>>>> {
        let (mut found, mut dirs) = (BTreeMap::new(), vec![dir.to_owned()]);
        while let Some(next) = dirs.pop() {
            for entry in fs::read_dir(next)? {
                let path = entry?.path();
                let shown = path.strip_prefix(dir).unwrap_or(&path).as_os_str().to_owned();
                if path.is_dir() {
                    found.insert(shown, None);
                    dirs.push(path);
                } else if !is_lost(&path) {
                    found.insert(shown, Some(fs::read(&path)?));
                }
            }
        }
        Ok(found)
    }

    /// Writes the directory as it is in the image, with the times that programs have read.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        self.write_dir(0, path, &mut HashMap::new())
    }

    fn write_dir(&self, dir: Node, path: &Path, made: &mut HashMap<Node, PathBuf>) -> io::Result<()> {
        fs::create_dir_all(path)?;
        for (name, (node, is_dir)) in self.names.get(&dir).into_iter().flatten() {
            let path = path.join(name);
            if *is_dir {
                self.write_dir(*node, &path, made)?;
                continue;
            }
            if let Some(first) = made.get(node) {
                fs::hard_link(first, &path)?;
                continue;
            }
            fs::write(&path, self.data(*node))?;
            // A time that no program has read is on another day than all others.
            let (secs, nanos) = self.times.get(node).copied().unwrap_or((1, 0));
            let time = UNIX_EPOCH + Duration::new(secs, nanos);
            File::options().write(true).open(&path)?.set_modified(time)?;
            made.insert(*node, path);
        }
        Ok(())
    }
}
