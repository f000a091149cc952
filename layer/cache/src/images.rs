//! Use of the sidecars of image directories: zero blocks, digests, traces, and files wanted as a whole.
//!
//! A sidecar is a regular file of the tree, read through the cache. Its entry for a file ([`Advice`]) applies
//! while the file has the size and modification time recorded in the entry; an outdated entry is ignored. A
//! trace is the sidecar's list of the parts that a clone reads first. `session/advising.rs` loads sidecars.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tombolo_core::fs::{Attr, WeakAttr};
use tombolo_core::lock;
use tombolo_wire_image::{self as image, DIGEST_BYTES, Digest, ImageFile, Sidecar, digest};

use crate::cache::Cache;
use crate::counters::Counters;
use crate::data::Data;
use crate::dedup::Hashed;
use crate::object::Object;
use crate::store::ObjectId;

/// The sidecars read most recently.
#[derive(Debug, Default)]
pub(crate) struct Images(Mutex<VecDeque<Known>>);

/// Maximum number of sidecars in memory.
const IMAGES_MAX: usize = 8;

#[derive(Debug)]
struct Known {
    sidecar: ObjectId,
    version: WeakAttr,
    /// `None` if the file is no sidecar.
    image: Option<Arc<Image>>,
}

/// A decoded sidecar.
#[derive(Debug)]
pub(crate) struct Image {
    pub sidecar: Sidecar,
    /// Length of the sidecar's head, in bytes; the tables follow it.
    head_bytes: usize,
    /// `true` once a prefetch of the trace has been started.
    is_begun: AtomicBool,
    /// `true` while a prefetch of the trace is in progress.
    is_coming: AtomicBool,
    /// `true` once the log says that a part of the sidecar is ignored.
    is_told: AtomicBool,
}

/// A sidecar's entry for one file.
#[derive(Debug)]
pub(crate) struct Advice {
    pub file: ImageFile,
    /// `true` if the image has a trace of its first reads.
    pub has_trace: bool,
    /// `true` once it was logged that fetched data did not match a digest.
    is_unlike: AtomicBool,
    /// `true` once the entry was found wrong; it is then ignored.
    is_disbelieved: AtomicBool,
    /// Digests of the non-zero blocks, if loaded.
    digests: OnceLock<Vec<Digest>>,
    /// Counters of the cache, among them that of zero bytes not fetched.
    counters: Arc<Counters>,
}

impl Images {
    /// Returns the sidecar of this version; `None` if it was not read before, `Some(None)` if the file is no
    /// sidecar.
    pub(crate) fn known(&self, sidecar: ObjectId, version: &WeakAttr) -> Option<Option<Arc<Image>>> {
        let all = lock(&self.0);
        let known = all.iter().find(|known| (known.sidecar, &known.version) == (sidecar, version));
        known.map(|known| known.image.clone())
    }

    /// Stores a sidecar (`None`: the file is none), and returns the stored one, which a concurrent reader may
    /// have stored before.
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

    /// Returns the range of a file's table of digests, if it has one.
    pub(crate) fn table(&self, name: &[u8]) -> Option<Range<u64>> {
        let index = self.sidecar.files.iter().position(|file| file.name == name)?;
        self.sidecar.tables(self.head_bytes).get(index)?.clone()
    }

    /// Starts a prefetch of the trace, and returns `true` if the caller is to perform it: at the first call,
    /// or at each one with `again`, unless one is in progress. [`Image::end_trace`] ends it.
    pub(crate) fn begins_trace(&self, again: bool) -> bool {
        let was_begun = self.is_begun.swap(true, Ordering::Relaxed);
        let is_wanted = !self.sidecar.trace.is_empty() && (again || !was_begun);
        is_wanted && !self.is_coming.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn end_trace(&self) {
        self.is_coming.store(false, Ordering::Relaxed);
    }

    /// Logs why an entry is ignored, once per sidecar.
    pub(crate) fn tell(&self, name: &[u8], why: &str) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            let file = String::from_utf8_lossy(name);
            tracing::warn!(%file, "{} of this file is ignored: {why}", image::NAME);
        }
    }
}

impl Advice {
    fn new(file: ImageFile, has_trace: bool, counters: Arc<Counters>) -> Self {
        let [is_unlike, is_disbelieved] = [false; 2].map(AtomicBool::new);
        Self { file, has_trace, is_unlike, is_disbelieved, digests: OnceLock::new(), counters }
    }

    /// Returns `true` if the entry applies to this version of the file.
    pub(crate) fn is_of(&self, version: &WeakAttr) -> bool {
        self.file.is_of(version.size, version.mtime) && !self.is_disbelieved.load(Ordering::Relaxed)
    }

    /// Returns `true` if no block differs from its digest, where there is one.
    pub(crate) fn fits(&self, blocks: &Hashed) -> bool {
        let block_bytes = u64::from(self.file.block_bytes);
        blocks.iter().all(|(offset, _, found)| {
            self.digest_of(offset / block_bytes).is_none_or(|expected| expected == *found)
        })
    }

    /// Logs that fetched data do not match, once per entry.
    pub(crate) fn tell_unlike(&self) {
        if !self.is_unlike.swap(true, Ordering::Relaxed) {
            let file = String::from_utf8_lossy(&self.file.name);
            tracing::warn!(%file, "fetched data do not match {}: fetching them again", image::NAME);
        }
    }

    /// Returns `true` if the sidecar lists the whole range as zero.
    pub(crate) fn are_zeros(&self, range: &Range<u64>) -> bool {
        let block_bytes = u64::from(self.file.block_bytes);
        let blocks = range.start / block_bytes..range.end.div_ceil(block_bytes);
        self.file.zeros.within(blocks.clone()).next() == Some(blocks)
    }

    /// Stores the digests if they match the digest in the sidecar's head; otherwise returns `false`.
    pub(crate) fn set_digests(&self, table: &[u8]) -> bool {
        let is_whole = self.file.table == Some(digest(table));
        if is_whole {
            let _ = self.digests.set(table.as_chunks::<DIGEST_BYTES>().0.to_vec());
        }
        is_whole
    }

    pub(crate) fn has_digests(&self) -> bool {
        self.digests.get().is_some()
    }

    /// Returns the digest of a block; `None` for a zero block, or if the digests are not loaded.
    pub(crate) fn digest_of(&self, block: u64) -> Option<Digest> {
        let index = self.file.zeros.index_of(block)?;
        self.digests.get()?.get(index as usize).copied()
    }

    /// Returns `true` if the whole file is wanted when any of it is read.
    pub(crate) fn is_whole(&self) -> bool {
        self.file.advice == image::Advice::Whole
    }

    pub(crate) fn filled(&self, bytes: u64) {
        self.counters.zero_bytes.add(bytes);
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let digests = self.digests.get().map_or(0, Vec::capacity);
        size_of::<Self>() + self.file.zeros.heap_bytes() + digests * DIGEST_BYTES
    }
}

/// Returns `true` if a sidecar is trusted for a file: its contents cannot be verified, so it must be owned by
/// the file's owner or root, and not be writable by group or others.
fn is_trusted(sidecar: &Attr, file: &Attr) -> bool {
    let is_owner_s = sidecar.uid == 0 || sidecar.uid == file.uid;
    is_owner_s && sidecar.mode.bits() & 0o022 == 0
}

impl Cache {
    /// Ignores a sidecar's wrong entry from now on: all data of the file are dropped, including its zero
    /// blocks.
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

    /// Applies the sidecar's entry of this name to a file, unless the entry is untrusted, outdated or wrong,
    /// or the file is open for writing or was written locally.
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
        let advice = known.unwrap_or_else(|| Arc::new(Advice::new(file, has_trace, self.counters.clone())));
        if advice.is_disbelieved.load(Ordering::Relaxed) {
            return None;
        }
        // The user's block size overrides a sidecar's.
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
                Some(data) => *lock(&data.advice) = Some(advice.clone()),
                None => {}
            }
        }
        let data = self.data(object);
        // The entry may describe the state before a change in the same tick of the origin's clock.
        self.mark_recent(object, &data, &data.version());
        object.weigh();
        Some(advice)
    }
}
