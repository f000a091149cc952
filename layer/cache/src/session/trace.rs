//! Prefetch of an image's trace: the first reads of a clone, recorded in the sidecar, in their order.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use tombolo_core::fs::{Attr, OpenFlags};
use tombolo_core::{Error, Result};
use tombolo_host_runtime::task;
use tombolo_wire_image::Sidecar;

use super::coming::Coming;
use super::view::View;
use crate::data::Fetch;
use crate::fetcher::Fetcher;
use crate::images::Image;
use crate::object::Object;
use crate::origin::{OriginFile, detached};
use crate::read_ahead::Ahead;

/// Maximum size of one request; and divisor of the cache's capacity that limits a trace.
const BATCH_BYTES: u64 = 256 << 10;
const TRACE_PART: u64 = 2;

/// Successive steps of a trace in one file, which may share a compressed read.
struct Batch {
    file: u32,
    ranges: Vec<Range<u64>>,
}

/// Iterates over the batches of a trace, up to `left_bytes` in total, as a sidecar may list any amount.
/// Cached bytes count too.
fn batches(sidecar: &Sidecar, mut left_bytes: u64) -> impl Iterator<Item = Batch> {
    let pieces = sidecar.trace.iter().flat_map(|step| {
        let file = sidecar.files.get(step.file as usize);
        let range =
            file.map_or(0..0, |file| file.bytes_of(step.start..step.start.saturating_add(step.count)));
        let starts = range.clone().step_by(BATCH_BYTES as usize);
        starts.map(move |start| (step.file, start..range.end.min(start.saturating_add(BATCH_BYTES))))
    });
    let pieces = pieces.take_while(move |(_, piece)| {
        let left = left_bytes.checked_sub(piece.end - piece.start);
        left_bytes = left.unwrap_or_default();
        left.is_some()
    });
    let mut pieces = pieces.peekable();
    std::iter::from_fn(move || {
        let (file, first) = pieces.next()?;
        let mut left_bytes = BATCH_BYTES.saturating_sub(first.end - first.start);
        let mut ranges = vec![first];
        while let Some((_, range)) =
            pieces.next_if(|(next, range)| *next == file && range.end - range.start <= left_bytes)
        {
            left_bytes -= range.end - range.start;
            ranges.push(range);
        }
        Some(Batch { file, ranges })
    })
}

/// A file of a trace, and its opening at the origin once a part is missing. The file is opened as the user
/// that started the prefetch, who must have the permission to read it.
struct Traced {
    object: Arc<Object>,
    origin: Option<Arc<OriginFile>>,
}

impl View {
    /// Prefetches the trace of an image in the background, once, or with `again` at each call; then loads
    /// digests, with which later reads copy equal blocks.
    pub(super) fn begin_trace(
        &self,
        dir: &Arc<Object>,
        sidecar: &Arc<Object>,
        image: &Arc<Image>,
        again: bool,
    ) {
        if !image.begins_trace(again) {
            return;
        }
        let view = Self { session: self.session.clone(), cx: detached(&self.cx) };
        let (dir, sidecar, image) = (dir.clone(), sidecar.clone(), image.clone());
        task::spawn_boxed(Box::pin(async move {
            let attr = sidecar.state().attr;
            let opened = view.bring_trace(&dir, &attr, &image).await;
            for file in opened.iter().filter_map(|index| image.sidecar.files.get(*index as usize)) {
                let _ = or_skipped(view.learn_digests(&sidecar, &file.name, &image).await);
            }
            image.end_trace();
        }));
    }

    /// Prefetches a trace in order, with few bytes in flight. Returns the indices of the found files.
    async fn bring_trace(&self, dir: &Arc<Object>, sidecar: &Attr, image: &Image) -> Vec<u32> {
        let cache = self.cache();
        let (mut opened, mut coming) = (HashMap::new(), Coming::default());
        for batch in batches(&image.sidecar, cache.store.capacity_bytes() / TRACE_PART) {
            if let Entry::Vacant(place) = opened.entry(batch.file) {
                place.insert(or_skipped(self.traced_file(dir, sidecar, image, batch.file).await));
            }
            let Some(Some(traced)) = opened.get_mut(&batch.file) else { continue };
            let Some(begun) = or_skipped(self.begin_batch(traced, &batch).await) else {
                opened.insert(batch.file, None);
                continue;
            };
            coming.add(begun);
            // A fetch has failed, so the others would probably fail too. A reader will see the error itself.
            if !coming.until_at_most(cache.line.trickle_bytes()).await {
                return found(opened);
            }
        }
        found(opened)
    }

    /// Returns a file of a trace, if it matches the sidecar.
    async fn traced_file(
        &self,
        dir: &Arc<Object>,
        sidecar: &Attr,
        image: &Image,
        file: u32,
    ) -> Result<Traced> {
        let name = &image.sidecar.files.get(file as usize).ok_or(Error::NotFound)?.name;
        let object = self.child(dir, name).await?.ok_or(Error::NotFound)?;
        self.cache().advise(&object, name, sidecar, image).ok_or(Error::Stale)?;
        Ok(Traced { object, origin: None })
    }

    /// Starts the missing fetches of a batch. Opens the file at the origin if there are any.
    async fn begin_batch(&self, traced: &mut Traced, batch: &Batch) -> Result<Vec<Arc<Fetch>>> {
        let (cache, object) = (self.cache(), &traced.object);
        let data = cache.data(object);
        batch.ranges.iter().for_each(|range| data.take_zeros(range, &Ahead::NONE));
        if batch.ranges.iter().all(|range| data.is_here(range)) {
            return Ok(Vec::new());
        }
        let origin = match &traced.origin {
            Some(origin) => origin,
            None => traced.origin.insert(self.open_unasked(object, OpenFlags::READ).await?),
        };
        // The version may have changed meanwhile.
        let data = cache.data(object);
        let begun: Vec<_> =
            batch.ranges.iter().flat_map(|range| data.want(range, &Ahead::NONE, 0).own).collect();
        begun.iter().for_each(|fetch| cache.counters.traced_bytes.add(data.trace_brings(fetch)));
        Fetcher::new(cache, object, &data, origin).start(&begun);
        Ok(begun)
    }
}

/// Returns the indices of the files that were found.
fn found(opened: HashMap<u32, Option<Traced>>) -> Vec<u32> {
    opened.into_iter().filter_map(|(index, traced)| traced.map(|_| index)).collect()
}

/// Logs a failure: that part of the trace is skipped.
fn or_skipped<T>(part: Result<T>) -> Option<T> {
    part.inspect_err(|error| tracing::debug!(%error, "part of the trace is skipped")).ok()
}

#[cfg(test)]
mod tests {
    use tombolo_core::fs::Timestamp;
    use tombolo_wire_image::{Advice, ImageFile, Step, ZeroMap};

    use super::*;

    #[test]
    fn a_trace_of_more_than_there_is_anywhere_ends() {
        let size = 1 << 62;
        let file = ImageFile {
            name: b"memory".into(),
            size,
            mtime: Timestamp::default(),
            block_bytes: 4096,
            advice: Advice::OnDemand,
            zeros: ZeroMap::default(),
            table: None,
        };
        let step = Step { file: 0, start: 0, count: size / 4096 };
        let sidecar = Sidecar { files: vec![file], trace: vec![step] };
        let bytes =
            batches(&sidecar, 1 << 20).flat_map(|batch| batch.ranges).map(|range| range.end - range.start);
        assert_eq!(bytes.sum::<u64>(), 1 << 20);
    }
}
