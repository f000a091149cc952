//! Persistent handles: object numbers, which never change, and, if it fits, the origin's handle, by which an
//! object is found after its row was removed.

use std::time::Instant;

use tombolo_core::fs::{Attr, Entry, FileType, NodeId, PersistentHandle, PersistentHandles, Volume};
use tombolo_core::{Answer, Ctx, Error, Result, or_answer};
use tombolo_host_runtime::rows::file_type_number;

use super::file_system::CachedFileSystem;
use super::view::View;
use crate::freshness::Look;
use crate::object::Object;
use crate::objects::{id_of, node_of};
use crate::store::ObjectId;

/// Type number of the cache's handles: above the kernel's, and without the bit that `back/local-dir` adds to
/// the kernel's.
const KIND: i32 = 1 << 12;

/// Factor of the next object number that gives the first position of names in a directory whose row was
/// removed; and the maximum of that position, half of the lowest position of an uncached name (`unkept`).
const PLACES_PER_ID: u64 = 1 << 8;
const PLACE_MAX: u64 = 1 << 39;

/// Maximum length of a handle that the NFS server can pass to its clients.
const BYTES_MAX: usize = 46;

/// Returns the handle of an object by which it is found again without a row: its number (8 bytes), the type
/// of the origin's handle (2), the fingerprint of the file (4), the origin's handle. `None` if that is too
/// long, or the type exceeds two bytes.
fn long_handle(object: &Object) -> Option<Vec<u8>> {
    let (handle, fingerprint) = (&object.handle, fingerprint(&object.state().attr));
    let kind = u16::try_from(handle.kind).ok()?;
    let number = &object.id.0.to_le_bytes()[..];
    let bytes = [number, &kind.to_le_bytes(), &fingerprint.to_le_bytes(), &handle.bytes].concat();
    (bytes.len() <= BYTES_MAX).then_some(bytes)
}

/// Decodes the part of a handle after the number: the fingerprint and the origin's handle.
fn read_origins(bytes: &[u8]) -> Option<(u32, PersistentHandle)> {
    let (kind, bytes) = bytes.split_first_chunk::<2>()?;
    let (fingerprint, bytes) = bytes.split_first_chunk::<4>()?;
    let handle = PersistentHandle { kind: u16::from_le_bytes(*kind).into(), bytes: bytes.into() };
    Some((u32::from_le_bytes(*fingerprint), handle))
}

/// Returns `true` if a client's handle was made for this object.
fn is_of(object: &Object, (expected, handle): &(u32, PersistentHandle)) -> bool {
    object.handle == *handle && fingerprint(&object.state().attr) == *expected
}

/// Computes a checksum that distinguishes a file from another one to which the origin assigns the same
/// handle.
fn fingerprint(attr: &Attr) -> u32 {
    let numbers = [attr.fileid, attr.fsid, u64::from(file_type_number(attr.file_type))];
    numbers.iter().fold(0, |sum, number| crc32c::crc32c_append(sum, &number.to_le_bytes()))
}

impl PersistentHandles for CachedFileSystem {
    fn volume(&self) -> Volume {
        self.session().cache.store.volume()
    }

    fn handle_of(&self, _: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        let cache = &self.session().cache;
        let handle = |id: ObjectId| {
            let object = cache.objects.restored(&cache.store, id).ok_or(Error::Stale)?;
            let long = long_handle(&object);
            if long.is_none() {
                cache.store.keep_rows();
            }
            Ok(PersistentHandle {
                kind: KIND,
                bytes: long.map_or_else(|| id.0.to_le_bytes()[..].into(), |bytes| bytes[..].into()),
            })
        };
        id_of(node).and_then(handle).into()
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let number = handle.bytes.split_first_chunk::<8>().filter(|_| handle.kind == KIND);
        let Some((number, origins)) = number else { return Answer::err(Error::Stale) };
        let (node, view) = (NodeId(u64::from_le_bytes(*number)), View::new(self.session(), cx));
        match (view.object(node), read_origins(origins)) {
            (Err(Error::Stale), Some(origins)) => Answer::later(view.found_again(node, origins)),
            (Ok(object), Some(origins)) if !is_of(&object, &origins) => Answer::err(Error::Stale),
            _ => self.node_by_number(cx, node),
        }
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        Answer::later(View::new(self.session(), cx).parent(node))
    }

    fn node_by_number(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        let view = View::new(self.session(), cx);
        let object = or_answer!(view.object(node));
        match view.entry_now(&object) {
            Some(entry) => Answer::ok(entry),
            // The object is resolved by its handle, as the origin's session may retain the node of a removed
            // file.
            None => Answer::later(async move {
                let attr = view.cache().resolve(&view.cx, &object).await?;
                view.given(Entry { node: node_of(object.id), attr }, &object).await
            }),
        }
    }

    fn record(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        let object = View::new(self.session(), cx).object(node);
        self.session().cache.index_bound.keep_rows();
        object.map(|object| object.record()).into()
    }

    fn recall(&self, _: &Ctx, node: NodeId, record: &[u8]) -> Answer<()> {
        id_of(node).and_then(|id| self.session().cache.recall(id, record)).into()
    }
}

impl View {
    /// Finds an object whose row was removed, by the origin's handle, and gives it its former number. Fails
    /// with [`Error::Stale`] if the number was never given, if the origin's handle is another file's now, or
    /// if the file has got another number since that is in use.
    async fn found_again(self, node: NodeId, origins: (u32, PersistentHandle)) -> Result<Entry> {
        let (id, (expected, handle), cache) = (id_of(node)?, origins, self.cache());
        if !cache.store.has_given(id) {
            return Err(Error::Stale);
        }
        let asked = Instant::now();
        let entry = cache.origin.resolve(&self.cx, &handle).await?;
        let new = Object::new(id, handle, entry.attr, &cache.objects.shared);
        new.set_node(Some(entry.node));
        if fingerprint(&entry.attr) != expected {
            return Err(Error::Stale);
        }
        if new.file_type == FileType::Directory {
            // The position must exceed all that a reader may have received before. It is derived from the
            // next object number, because almost every new name has used up an object number.
            let place = cache.store.new_id()?.0.saturating_mul(PLACES_PER_ID).min(PLACE_MAX);
            new.state().names.restored(false, place);
        }
        // No file may have two numbers: the later one is removed, unless it is in use.
        let other = cache.objects.known(&cache.store, &new.handle).map(|known| known.id);
        if let Some(other) = other.filter(|other| *other != id) {
            // The queue is flushed first, as an object queued for writing counts as in use.
            let store = cache.store.clone();
            let flushed = cache.in_pool(&self.cx, move || {
                store.flush();
                Ok(())
            });
            flushed.resolve().await?;
            cache.remove_unwanted(other, &new.handle);
        }
        let object = cache.objects.add_again(&cache.store, new).ok_or(Error::Stale)?;
        let attr = cache.learn(&object, &entry.attr, asked)?;
        cache.objects.doubt_late(&object, asked);
        self.given(Entry { node, attr }, &object).await
    }

    /// Returns the parent directory: of a directory, as the origin reports it; of a file, the one in which
    /// the origin last reported it.
    async fn parent(self, node: NodeId) -> Result<Entry> {
        let dir = self.object(node)?;
        if dir.file_type != FileType::Directory {
            let met_in = dir.state().parent.ok_or(Error::Stale)?;
            let above = self.object(node_of(met_in))?;
            let attr = self.attr(&above, Look::Stat).await?;
            return self.given(Entry { node: node_of(above.id), attr }, &above).await;
        }
        let node = self.node(&dir).await?;
        let asked = std::time::Instant::now();
        let above = self.cache().origin.handles()?.parent(&self.at_origin(), node).resolve().await?;
        let (entry, object) = self.met(&above, asked).await?;
        self.given(entry, &object).await
    }
}
