//! Use of the sidecars of image directories: zero blocks, and files wanted as a whole.
//!
//! A sidecar is a regular file of the tree, as fresh as the contract provides. It applies to a file while
//! that has the size and modification time recorded in it, so an outdated sidecar is ignored.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tombolo_core::fs::{Attr, WeakAttr};
use tombolo_host_runtime::lock;
use tombolo_wire_image::{self as image, DIGEST_BYTES, Digest, ImageFile, Sidecar, digest};

use crate::cache::Cache;
use crate::data::Data;
use crate::object::Object;
use crate::store::ObjectId;
use crate::twins::Hashed;

/// The sidecars that were read last.
#[derive(Debug, Default)]
pub(crate) struct Images(Mutex<VecDeque<Known>>);

/// So many of them stay in memory.
const IMAGES_MAX: usize = 8;

#[derive(Debug)]
struct Known {
    sidecar: ObjectId,
    version: WeakAttr,
    /// None: it is none.
    image: Option<Arc<Image>>,
}

/// What a sidecar says.
#[derive(Debug)]
pub(crate) struct Image {
    pub sidecar: Sidecar,
    /// How long its head is: tables follow.
    head_bytes: usize,
    /// Its trace was brought, or is being brought.
    is_begun: AtomicBool,
    /// The latter.
    is_coming: AtomicBool,
    /// It was said in the log that something of it does not count.
    is_told: AtomicBool,
}

/// What a sidecar says of one file.
#[derive(Debug)]
pub(crate) struct Advice {
    pub file: ImageFile,
    /// There is a record of what is read first of the files of this image.
    pub has_trace: bool,
    /// Something that came of the file was not what its digest says: that was logged. And it was the sidecar
    /// that was wrong.
    is_unlike: AtomicBool,
    is_disbelieved: AtomicBool,
    /// The digests of its blocks that are no zeroes, where it is of use to know them.
    digests: OnceLock<Vec<Digest>>,
    /// Counts the zeroes that were not fetched.
    filled_bytes: Arc<AtomicU64>,
}

impl Images {
    /// The sidecar of this version, if it was read before.
    pub(crate) fn known(&self, sidecar: ObjectId, version: &WeakAttr) -> Option<Option<Arc<Image>>> {
        let all = lock(&self.0);
        let known = all.iter().find(|known| (known.sidecar, &known.version) == (sidecar, version));
        known.map(|known| known.image.clone())
    }

    /// It was read; `None`: it is no sidecar. What counts: another may have read it at the same time.
    pub(crate) fn add(
        &self,
        sidecar: ObjectId,
        version: WeakAttr,
        image: Option<Arc<Image>>,
    ) -> Option<Arc<Image>> {
        let mut all = lock(&self.0);
        if let Some(known) = all.iter().find(|known| (known.sidecar, &known.version) == (sidecar, &version)) {
            return known.image.clone();
        }
        all.retain(|known| known.sidecar != sidecar);
        all.push_back(Known { sidecar, version, image: image.clone() });
        if all.len() > IMAGES_MAX {
            all.pop_front();
        }
        image
    }
}

impl Image {
    pub(crate) fn new((sidecar, head_bytes): (Sidecar, usize)) -> Arc<Self> {
        let [is_begun, is_coming, is_told] = [false; 3].map(AtomicBool::new);
        Arc::new(Self { sidecar, head_bytes, is_begun, is_coming, is_told })
    }

    /// Where the digests of a file's blocks lie, if there are any.
    pub(crate) fn table(&self, name: &[u8]) -> Option<Range<u64>> {
        let index = self.sidecar.files.iter().position(|file| file.name == name)?;
        self.sidecar.tables(self.head_bytes).get(index)?.clone()
    }

    /// Whether there is a trace that is to be brought now: once, and `again` unless it is on its way. With
    /// [`Image::end_trace`] it is over.
    pub(crate) fn begins_trace(&self, again: bool) -> bool {
        let was_begun = self.is_begun.swap(true, Ordering::Relaxed);
        let is_wanted = !self.sidecar.trace.is_empty() && (again || !was_begun);
        is_wanted && !self.is_coming.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn end_trace(&self) {
        self.is_coming.store(false, Ordering::Relaxed);
    }

    /// Says once in the log why something of it does not count.
    pub(crate) fn tell(&self, name: &[u8], why: &str) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            let file = String::from_utf8_lossy(name);
            tracing::warn!(%file, "{} of this file is ignored: {why}", image::NAME);
        }
    }
}

impl Advice {
    fn new(file: ImageFile, has_trace: bool, filled_bytes: Arc<AtomicU64>) -> Self {
        let [is_unlike, is_disbelieved] = [false; 2].map(AtomicBool::new);
        Self { file, has_trace, is_unlike, is_disbelieved, digests: OnceLock::new(), filled_bytes }
    }

    /// Whether it counts for this version of the file.
    pub(crate) fn is_of(&self, version: &WeakAttr) -> bool {
        self.file.is_of(version.size, version.mtime) && !self.is_disbelieved.load(Ordering::Relaxed)
    }

    /// Whether these blocks are what the digests say, as far as they are known.
    pub(crate) fn fits(&self, blocks: &Hashed) -> bool {
        let block_bytes = u64::from(self.file.block_bytes);
        blocks.iter().all(|(offset, _, found)| {
            self.digest_of(offset / block_bytes).is_none_or(|expected| expected == *found)
        })
    }

    /// Says once in the log that something came that does not fit.
    pub(crate) fn tell_unlike(&self) {
        if !self.is_unlike.swap(true, Ordering::Relaxed) {
            let file = String::from_utf8_lossy(&self.file.name);
            tracing::warn!(%file, "fetched data do not match {}: fetching them again", image::NAME);
        }
    }

    /// Whether all of a range is zeroes.
    pub(crate) fn are_zeros(&self, range: &Range<u64>) -> bool {
        let block_bytes = u64::from(self.file.block_bytes);
        let blocks = range.start / block_bytes..range.end.div_ceil(block_bytes);
        self.file.zeros.within(blocks.clone()).next() == Some(blocks)
    }

    /// Takes in the digests, unless they are not those that the head speaks of.
    pub(crate) fn set_digests(&self, table: &[u8]) -> bool {
        let is_whole = self.file.table == Some(digest(table));
        if is_whole {
            let _ = self.digests.set(table.as_chunks::<DIGEST_BYTES>().0.to_vec());
        }
        is_whole
    }

    /// Whether digests are known.
    pub(crate) fn has_digests(&self) -> bool {
        self.digests.get().is_some()
    }

    /// The digest of a block.
    pub(crate) fn digest_of(&self, block: u64) -> Option<Digest> {
        let index = self.file.zeros.index_of(block)?;
        self.digests.get()?.get(index as usize).copied()
    }

    /// Whether all of the file is wanted when any of it is read.
    pub(crate) fn is_whole(&self) -> bool {
        self.file.advice == image::Advice::Whole
    }

    /// So many zeroes were not fetched.
    pub(crate) fn filled(&self, bytes: u64) {
        self.filled_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let digests = self.digests.get().map_or(0, Vec::capacity);
        size_of::<Self>() + self.file.zeros.heap_bytes() + digests * DIGEST_BYTES
    }
}

/// Whether a sidecar is to be believed about a file: it cannot be told from the truth, so it must be of the
/// file's owner, or of root, and no other may write it.
fn is_trusted(sidecar: &Attr, file: &Attr) -> bool {
    let is_owner_s = sidecar.uid == 0 || sidecar.uid == file.uid;
    is_owner_s && sidecar.mode.bits() & 0o022 == 0
}

impl Cache {
    /// What a sidecar says of these data is wrong: all of them are begun anew, also what it said is zeroes.
    pub(crate) fn disbelieve(&self, object: &Object, data: &Arc<Data>) {
        let Some(advice) = data.advice() else { return };
        advice.is_disbelieved.store(true, Ordering::Relaxed);
        let file = String::from_utf8_lossy(&advice.file.name);
        tracing::warn!(%file, "file does not match {}, which is ignored for it from now on", image::NAME);
        let mut state = object.state();
        if state.data.as_ref().is_some_and(|current| Arc::ptr_eq(current, data)) {
            data.file.doom();
            state.data = None;
        }
    }

    /// A file of this name goes by what the sidecar beside it says, as far as that counts.
    pub(crate) fn advise(
        &self,
        object: &Arc<Object>,
        name: &[u8],
        sidecar: &Attr,
        image: &Image,
    ) -> Option<Arc<Advice>> {
        let file = image.sidecar.file(name)?.clone();
        let has_trace = !image.sidecar.trace.is_empty();
        let known = object.state().advice.clone();
        let known = known.filter(|known| known.file == file && known.has_trace == has_trace);
        let filled_bytes = self.counters.zero_bytes.clone();
        let advice = known.unwrap_or_else(|| Arc::new(Advice::new(file, has_trace, filled_bytes)));
        if advice.is_disbelieved.load(Ordering::Relaxed) {
            return None;
        }
        // The user's word on the size of blocks goes before a sidecar's.
        let is_block_free = self.options_of(object).block_bytes.is_none();
        {
            let mut state = object.state();
            if !is_trusted(sidecar, &state.attr) {
                image.tell(name, "owned by neither root nor the file's owner, or writable by others");
                return None;
            }
            if !advice.is_of(&state.version()) {
                image.tell(name, "the file has changed since; scan it again");
                return None;
            }
            if state.is_written_here() {
                return None;
            }
            state.advice = Some(advice.clone());
            let is_coarse = |block_bytes: u64| block_bytes > u64::from(advice.file.block_bytes);
            match state.data.clone() {
                Some(data) if is_block_free && is_coarse(data.file.block_bytes()) && data.is_untouched() => {
                    data.file.doom();
                    state.data = None;
                }
                Some(data) => data.set_advice(&advice),
                None => {}
            }
        }
        let data = self.data(object);
        // What it says may be of just before a change that does not show.
        self.came_young(object, &data, &data.version());
        object.weigh();
        Some(advice)
    }
}
