//! Access of borrowing proxies to cached data: a descriptor for those of this host, data for others.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tombolo_core::fs::{AccessMask, FileType, Lending, OpenFlags, PersistentHandle, WeakAttr};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_mem::Sink;

use super::Session;
use super::file_system::CachedFileSystem;
use super::view::View;
use crate::data::Data;
use crate::fetcher::Fetcher;
use crate::object::Object;
use crate::origin::SESSION;
use crate::read_ahead::Ahead;
use crate::sharing::message::Ask;
use crate::store::Lendable;

/// Returns the parts of the requested range that are cached, if the file still has the requested version, was
/// not written locally, and the origin permits the requesting user to read it.
pub(crate) async fn lend(session: &Arc<Session>, ask: &Ask) -> Option<Lendable> {
    let cx = Ctx { identity: ask.user.clone(), ..Ctx::root(SESSION) };
    let view = View::new(session, &cx);
    view.lend(ask).await.inspect_err(|error| tracing::debug!(%error, "data not lent")).ok().flatten()
}

impl View {
    async fn lend(&self, ask: &Ask) -> Result<Option<Lendable>> {
        let cache = self.cache();
        let Some(object) = cache.objects.known(&cache.store, &ask.handle) else { return Ok(None) };
        let is_current = || object.state().version() == ask.version;
        if object.file_type != FileType::Regular || !is_current() || !cache.store.keeps(object.id) {
            return Ok(None);
        }
        self.check(&object, AccessMask::READ).await?;
        let data = cache.data(&object);
        {
            // Local writes go into the same file, where borrowers would read them.
            let state = object.state();
            if state.is_written_in_parts() || data.was_written() || data.version() != ask.version {
                return Ok(None);
            }
            data.is_lent.store(true, Ordering::Relaxed);
        }
        let range = ask.range.clone();
        cache.in_pool(&self.cx, move || data.file.lend(range)).resolve().await
    }
}

impl Lending for CachedFileSystem {
    fn lend(
        &self,
        cx: &Ctx,
        handle: &PersistentHandle,
        version: &WeakAttr,
        offset: u64,
        into: Sink,
    ) -> Answer<()> {
        let view = View::new(self.session(), cx);
        Answer::later(view.lend_data(handle.clone(), *version, offset, into))
    }
}

impl View {
    /// Fills `into` with data of a version, which are fetched if they are missing. A proxy that itself uses a
    /// site cache lends only cached data: two proxies that query each other would deadlock.
    async fn lend_data(
        self,
        handle: PersistentHandle,
        version: WeakAttr,
        offset: u64,
        into: Sink,
    ) -> Result<()> {
        let cache = self.cache();
        let fetches = cache.middle.get().is_none();
        let object = match cache.objects.known(&cache.store, &handle) {
            Some(object) => object,
            None if fetches => self.resolved(&handle).await?,
            None => return Err(Error::NotFound),
        };
        if object.file_type != FileType::Regular {
            return Err(Error::NotFound);
        }
        if object.state().version() != version && fetches {
            cache.fetch_attr(&self.cx, &object).await?;
        }
        if object.state().version() != version {
            return Err(Error::NotFound);
        }
        self.check(&object, AccessMask::READ).await?;
        let (data, range) = (cache.data(&object), offset..offset.saturating_add(into.len() as u64));
        let is_written = data.was_written() || object.state().is_written_here();
        if is_written || data.version() != version || range.end > version.size {
            return Err(Error::NotFound);
        }
        if !data.is_here(&range) {
            match fetches {
                true => self.fetch_part(&object, &data, &range).await?,
                false => return Err(Error::NotFound),
            }
        }
        data.file.touch();
        let wanted = into.len();
        let read = match data.read_at_once(offset, &into)? {
            Some(read) => read,
            None => cache.in_pool(&self.cx, move || data.read(offset, &into)).resolve().await?,
        };
        // A short count means a damaged block, which the next read fetches again.
        if read != wanted {
            return Err(Error::NotFound);
        }
        cache.counters.lent_bytes.add(read as u64);
        Ok(())
    }

    /// Resolves a handle unknown to the cache, which becomes known.
    async fn resolved(&self, handle: &PersistentHandle) -> Result<Arc<Object>> {
        let asked = Instant::now();
        let entry = self.cache().origin.handles()?.resolve(&self.at_origin(), handle).resolve().await?;
        Ok(self.met(&entry, asked).await?.1)
    }

    /// Fetches a part of a file, and waits for it. Fails with `NotFound` if it is not cached then.
    pub(super) async fn fetch_part(
        &self,
        object: &Arc<Object>,
        data: &Arc<Data>,
        range: &Range<u64>,
    ) -> Result<()> {
        let origin = self.open_unasked(object, OpenFlags::READ).await?;
        let wanted = data.want(range, &Ahead::NONE, 0);
        Fetcher::new(self.cache(), object, data, &origin).start(&wanted.own);
        for fetch in wanted.own.iter().chain(&wanted.theirs) {
            self.cx.interrupt.unless_raised(fetch.outcome()).await?;
        }
        if data.is_here(range) { Ok(()) } else { Err(Error::NotFound) }
    }
}
