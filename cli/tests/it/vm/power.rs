//! Power failures in the life of a VM: the disk always has a consistent state, including everything that a
//! command has reported as done.

use std::collections::BTreeMap;

use rustix::mount::{MountFlags, mount};
use tombolo_crash_images::{each_image_at, mark, record, recorded};
use tombolo_vhost_driver::{Driver, DriverSettings};

use super::moved::is_whole_or_refused;
use super::*;
use crate::disk::{FLUSH, OUT, ask};

const WORD: usize = 6;

/// Guaranteed state of the VM from a moment on.
#[derive(Clone, Debug, Default)]
struct Promise {
    sleeps: bool,
    /// Contents of disk, memory and device state.
    word: String,
    checkpoints: BTreeMap<u32, String>,
    has_image: bool,
}

impl Promise {
    fn mark(&self) {
        let numbers: Vec<_> =
            self.checkpoints.iter().map(|(number, word)| format!("{number}={word}")).collect();
        mark(&format!("{} {} {} {}", self.sleeps, self.word, self.has_image, numbers.join(" ")));
    }

    fn of(mark: &str) -> Self {
        let mut words = mark.split(' ');
        let mut next = || words.next().expect("a word").to_owned();
        let (sleeps, word, has_image) = (next() == "true", next(), next() == "true");
        let checkpoint = |text: &str| {
            let (number, word) = text.split_once('=')?;
            Some((number.parse().expect("a number"), word.into()))
        };
        Self { sleeps, word, has_image, checkpoints: words.filter_map(checkpoint).collect() }
    }
}

/// A VM whose writes are recorded.
struct Life {
    bed: Bed,
    now: Promise,
}

impl Life {
    fn run(&mut self, line: &str, change: impl FnOnce(&mut Promise)) {
        self.bed.run(line).succeeded();
        change(&mut self.now);
        self.now.mark();
    }

    /// Writes a word to memory and disk and flushes the disk; then writes another.
    fn writes(&mut self, word: &str) {
        overwrite(self.bed.memory_of_clone("one"), 0, word.as_bytes());
        fs::write(self.bed.path("moment"), word).expect("write");
        let flushes = DriverSettings { device_features: 1 << 9, ..DriverSettings::default() };
        let socket = self.bed.path("run/tombolo/vm-one/disk");
        let (_driver, mut queues) = Driver::connect(&socket, flushes).expect("connect");
        let mut sector = [0; 512];
        sector[..WORD].copy_from_slice(word.as_bytes());
        assert_eq!(ask(&mut queues[0], OUT, 0, &sector).1, 0);
        assert_eq!(ask(&mut queues[0], FLUSH, 0, &[0; 512]).1, 0);
        // Durable once suspended.
        assert_eq!(ask(&mut queues[0], OUT, 8, &sector).1, 0);
        self.now.word = word.into();
        self.now.mark();
    }

    fn resumes(&mut self) {
        let _told = self.bed.vmm("one", Flaw::None);
        self.run("vm resume one", |now| now.sleeps = false);
    }

    fn suspends(&mut self) {
        self.run("vm suspend one", |now| now.sleeps = true);
    }
}

/// Runs all stages of a VM's life.
fn live(bed: Bed) {
    let mut life = Life { bed, now: Promise { word: "------".into(), ..Promise::default() } };
    let _told = life.bed.vmm("one", Flaw::NoNetwork);
    // Suspended until it has a network.
    life.bed.run("clone image one --net user --qemu ./vmm").failed(1, &["tombolo vm resume one"]);
    life.now.sleeps = true;
    life.now.mark();
    life.resumes();
    life.writes("first-");
    life.suspends();
    life.run("vm suspend one --to state/image --no-scan", |now| now.has_image = true);
    let checkpoint =
        |number: u32| move |now: &mut Promise| drop(now.checkpoints.insert(number, now.word.clone()));
    life.run("vm checkpoint one", checkpoint(1));
    life.resumes();
    life.writes("second");
    life.suspends();
    life.run("vm checkpoint one", checkpoint(2));
    life.resumes();
    life.writes("third-");
    // Suspended, and resumed in another VMM.
    let _told = life.bed.vmm_of_next("one", Flaw::None);
    life.run("vm checkpoint one --keep 2", |now| {
        checkpoint(3)(now);
        now.checkpoints.remove(&1);
    });
    life.suspends();
    life.run("vm restore one 2", |now| {
        now.checkpoints.remove(&3);
        now.word = "second".into();
    });
}

/// State left by a power failure.
struct Left<'a> {
    bed: &'a Bed,
    /// The last guarantee, and the one about to be given.
    may_be: Vec<Promise>,
}

impl Left<'_> {
    fn is_sound(&self) {
        let list = self.bed.list();
        let state = list.lines().find(|line| line.starts_with("one")).unwrap_or_default().to_owned();
        let promised = &self.may_be[0];
        let is_new = promised.word.is_empty();
        if state.is_empty() || state.contains("incomplete") {
            return assert!(is_new, "{list}");
        }
        if state.contains("the restoration is incomplete") {
            assert!(self.may_be.iter().all(|it| it.sleeps), "{state}");
            self.bed.run("vm restore one 2").succeeded();
            self.has(&["second".into()], "restored");
        } else if state.contains("suspended") {
            self.has(&self.words(), &state);
        } else {
            assert!(self.may_be.iter().any(|it| !it.sleeps), "{state}, and it was suspended");
            let disk = self.bed.path("out.img");
            let _ = fs::remove_file(&disk);
            let line = "disk convert --backing-dir image state/tombolo/vm-one/disk.overlay out.img";
            self.bed.run(line).succeeded();
            assert!(self.words().contains(&word_at(&disk, 0)), "{state}");
        }
        let has_image = self.bed.path("state/image").exists();
        assert!(has_image || !promised.has_image, "the image is gone");
        if has_image {
            assert_eq!(words_of(&self.bed.path("state/image")), ["first-"; 4]);
        }
        self.has_checkpoints();
    }

    fn words(&self) -> Vec<String> {
        self.may_be.iter().map(|it| it.word.clone()).collect()
    }

    /// Asserts that device state, memory and disk match one of the states.
    fn has(&self, words: &[String], about: &str) {
        let out = self.bed.path("out");
        let _ = fs::remove_dir_all(&out);
        self.bed.run("vm suspend one --to out --no-scan").succeeded();
        let found = words_of(&out);
        assert!(
            found.iter().all(|word| *word == found[0]) && words.contains(&found[0]),
            "{about}: {found:?}"
        );
    }

    fn has_checkpoints(&self) {
        let shown = self.bed.run("vm show one").succeeded();
        let rows = shown.out.lines().skip_while(|line| !line.starts_with("checkpoint")).skip(1);
        let mut found: Vec<u32> =
            rows.map_while(|line| line.split_whitespace().next()?.parse().ok()).collect();
        for number in self.may_be[0].checkpoints.keys() {
            let is_kept = self.may_be.iter().all(|it| it.checkpoints.contains_key(number));
            assert!(!is_kept || found.contains(number), "checkpoint {number} is gone: {}", shown.out);
        }
        found.sort_unstable();
        for number in found.into_iter().rev() {
            let words: Vec<_> =
                self.may_be.iter().filter_map(|it| it.checkpoints.get(&number).cloned()).collect();
            self.bed.run(format!("vm restore one {}", number)).succeeded();
            self.has(&words, &format!("checkpoint {number}"));
        }
    }
}

fn word_at(file: &Path, offset: u64) -> String {
    at(file, offset, WORD).replace('\0', "-")
}

/// Returns the contents of an image.
fn words_of(dir: &Path) -> [String; 4] {
    let state = fs::read_to_string(dir.join("state")).expect("read");
    let word = state.strip_prefix(STATE).expect("whole");
    let state = if word.is_empty() { "------" } else { word };
    let disk = [0, 4096].map(|offset| word_at(&dir.join("disk"), offset));
    let [flushed, unflushed] = disk;
    [flushed, unflushed, word_at(&dir.join("memory"), 0), state.into()]
}

#[test]
fn vm_is_consistent_after_power_loss() {
    if let Some(state) = recorded() {
        return live(Bed(Scratch::of(state.parent().expect("a directory"))));
    }
    // A tmpfs would make flushes pointless.
    let bed = Bed::at(Scratch::new_in(Path::new(env!("CARGO_TARGET_TMPDIR"))));
    bed.make_image();
    let state = bed.path("state");
    fs::remove_dir_all(&state).expect("removed");
    let log = record(&state);
    mount("images", &state, "tmpfs", MountFlags::empty(), c"size=256m")
        .expect("mounted: the tests need root");
    let _small = Mounted(state.clone());
    let all: Vec<Promise> = log.all_marks().into_iter().map(Promise::of).collect();
    each_image_at(&log, &state, (12, 2_000), |_, marks| {
        let last = marks.len().checked_sub(1).map_or_else(Promise::default, |last| all[last].clone());
        let may_be = [last].into_iter().chain(all.get(marks.len()).cloned()).collect();
        Left { bed: &bed, may_be }.is_sound();
    });
}

#[test]
fn power_loss_leaves_an_incremental_image_whole_or_refused() {
    if let Some(images) = recorded() {
        let bed = Scratch::of(images.parent().expect("a directory"));
        let make = |image: &str, more: &str| {
            bed.run(format!("vm suspend one --changes --to {image} {more}")).succeeded();
            mark(image);
        };
        // The scan syncs the files that it reads.
        make("images/one", "--no-scan");
        return make("images/two", "");
    }
    let bed = Bed::at(Scratch::new_in(Path::new(env!("CARGO_TARGET_TMPDIR"))));
    bed.make_changed("one");
    let images = bed.path("images");
    let log = record(&images);
    mount("images", &images, "tmpfs", MountFlags::empty(), c"size=64m")
        .expect("mounted: the tests need root");
    let _small = Mounted(images.clone());
    each_image_at(&log, &images, (32, 1_000), |_, marks| {
        assert!(is_whole_or_refused(&bed, &images, "after-") >= marks.len(), "an image is gone");
    });
}
