//! Use of sidecars for files being read.

use std::sync::Arc;

use tombolo_core::fs::{AccessMask, FileType, Name, NameBuf};
use tombolo_core::{Error, Result};
use tombolo_host_runtime::promise::Promise;
use tombolo_host_runtime::task;
use tombolo_mem::Buffer;
use tombolo_wire_image::{FIRST_FILE, HEAD_BYTES_MAX, Malformed, NAME, PREFIX_BYTES, Sidecar, head_bytes};

use super::reading::WHOLE_BYTES;
use super::view::View;
use crate::freshness::Look;
use crate::images::Image;
use crate::names::Known;
use crate::object::Object;
use crate::openings::Opening;
use crate::origin::detached;

/// Length of the first READ, which covers the head of most sidecars.
const FIRST_BYTES: u64 = 64 << 10;

/// Maximum size of a table of digests, which is read as a whole: that of 512 MiB in blocks of 4 KiB.
const TABLE_BYTES_MAX: u64 = 4 << 20;

impl View {
    /// Applies the sidecar in the directory of a file that is larger than [`WHOLE_BYTES`], if there is one.
    /// Each opening searches for it once; other reads of the opening wait for the search.
    pub(super) async fn advise(&self, opening: &Opening) -> Result<()> {
        let object = &opening.object;
        let is_large = object.state().version().size > WHOLE_BYTES;
        if !is_large || !self.cache().options_of(object).sidecars {
            return Ok(());
        }
        let (advised, is_first) = opening.advised();
        if !is_first {
            return self.cx.interrupt.unless_raised(advised.kept()).await;
        }
        // The guard resolves the promise also on an error or a cancelled read, as other reads wait for it.
        let _over = Over(advised);
        if let Err(error) = self.look_for_advice(object).await {
            tracing::debug!(%error, "sidecar not used");
        }
        Ok(())
    }

    /// Starts the prefetch of an image's trace at each open of the image's first file ([`FIRST_FILE`]).
    pub(super) fn note_opening(&self, object: &Arc<Object>) {
        let cache = self.cache();
        if object.file_type != FileType::Regular || !cache.options_of(object).sidecars {
            return;
        }
        let Some((dir, name)) = cache.parent_and_name(object) else { return };
        if *name != *FIRST_FILE.as_bytes() {
            return;
        }
        let view = Self { session: self.session.clone(), cx: detached(&self.cx) };
        task::spawn_boxed(Box::pin(async move {
            match view.image_of(&dir, &name).await {
                Ok(Some((sidecar, image))) => view.begin_trace(&dir, &sidecar, &image, true),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "sidecar not used"),
            }
        }));
    }

    async fn look_for_advice(&self, object: &Arc<Object>) -> Result<()> {
        let cache = self.cache();
        let Some((dir, name)) = cache.parent_and_name(object) else { return Ok(()) };
        let Some((sidecar, image)) = self.image_of(&dir, &name).await? else { return Ok(()) };
        let attr = sidecar.state().attr;
        let Some(advice) = cache.advise(object, &name, &attr, &image) else { return Ok(()) };
        self.begin_trace(&dir, &sidecar, &image, false);
        if advice.has_trace {
            // The digests are loaded after the trace's data: until then nothing should wait for them.
            return Ok(());
        }
        if !cache.dedup.is_empty() {
            return self.learn_digests(&sidecar, &name, &image).await;
        }
        // No cached block can match yet, so the first reads need not wait for the digests.
        let view = Self { session: self.session.clone(), cx: detached(&self.cx) };
        task::spawn_boxed(Box::pin(async move {
            if let Err(error) = view.learn_digests(&sidecar, &name, &image).await {
                tracing::debug!(%error, "cannot load the digests of the sidecar");
            }
        }));
        Ok(())
    }

    /// Returns the sidecar in a directory and its contents, if it is valid. `beside` names a file for the
    /// log.
    async fn image_of(&self, dir: &Arc<Object>, beside: &[u8]) -> Result<Option<(Arc<Object>, Arc<Image>)>> {
        let cache = self.cache();
        let Some(sidecar) = self.child(dir, NAME.as_bytes()).await? else { return Ok(None) };
        let version = sidecar.state().version();
        let image = match cache.images.known(sidecar.id, &version) {
            Some(known) => known,
            None => {
                let read = self.read_sidecar(&sidecar).await?;
                let read = read.inspect_err(|error| {
                    let beside = String::from_utf8_lossy(beside);
                    tracing::warn!(%beside, %error, "{NAME} is invalid and ignored");
                });
                cache.images.add(sidecar.id, version, read.ok().map(Image::new))
            }
        };
        Ok(image.map(|image| (sidecar, image)))
    }

    /// Loads the digests of a file's blocks, so that equal blocks can be copied when they are read.
    pub(super) async fn learn_digests(
        &self,
        sidecar: &Arc<Object>,
        name: &[u8],
        image: &Image,
    ) -> Result<()> {
        let cache = self.cache();
        let Some((dir, _)) = cache.parent_and_name(sidecar) else { return Ok(()) };
        let Some(object) = self.child(&dir, name).await? else { return Ok(()) };
        let advice = object.state().advice.clone().filter(|advice| !advice.has_digests());
        let table = image.table(name).filter(|table| table.end - table.start <= TABLE_BYTES_MAX);
        if let (Some(advice), Some(table)) = (advice, table) {
            let bytes = self.read_own(sidecar, table.start, (table.end - table.start) as usize).await?;
            if !advice.set_digests(&bytes) {
                image.tell(name, "its digests are damaged");
            }
        }
        Ok(())
    }

    /// Returns the regular file of this name in a directory, if there is one.
    pub(super) async fn child(&self, dir: &Arc<Object>, name: &[u8]) -> Result<Option<Arc<Object>>> {
        let cache = self.cache();
        let options = cache.options_of(dir);
        let may_look = self.may(dir, AccessMask::EXECUTE) == Some(true);
        let known = {
            let state = dir.state();
            let is_known = may_look && state.is_believed(Look::Stat, options);
            is_known.then(|| state.names.look_up(name)).flatten()
        };
        let known = match known {
            Some(Known::Absent) => return Ok(None),
            Some(Known::Found(target)) => cache.object(target.object).ok(),
            None => None,
        };
        let known = known.filter(|object| object.believed(Look::Stat, cache.options_of(object)).is_some());
        let name: NameBuf = Name::new(name).map_err(|_| Error::InvalidArgument)?.to_owned();
        let found = match known {
            Some(object) => Some(object),
            None => match self.find(dir, &name).await {
                Ok((_, object)) => Some(object),
                Err(Error::NotFound) => None,
                Err(error) => return Err(error),
            },
        };
        Ok(found.filter(|object| object.file_type == FileType::Regular))
    }

    /// Reads and decodes a sidecar's head. Also returns the head's length, in bytes.
    async fn read_sidecar(
        &self,
        object: &Arc<Object>,
    ) -> Result<std::result::Result<(Sidecar, usize), Malformed>> {
        let size = object.state().version().size;
        let mut head = self.read_own(object, 0, size.min(FIRST_BYTES) as usize).await?;
        let len = match head.first_chunk::<PREFIX_BYTES>().ok_or(Malformed::Length).and_then(head_bytes) {
            Ok(len) if len as u64 <= size && len <= HEAD_BYTES_MAX => len,
            Ok(_) => return Ok(Err(Malformed::Length)),
            Err(error) => return Ok(Err(error)),
        };
        if let Some(rest) = len.checked_sub(head.len()) {
            head.extend(self.read_own(object, head.len() as u64, rest).await?);
        }
        head.truncate(len);
        Ok(Sidecar::decode(&head).map(|sidecar| (sidecar, len)))
    }

    /// Reads a part of a file through the cache, with the rights of the operation's user.
    async fn read_own(&self, object: &Arc<Object>, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.check(object, AccessMask::READ).await?;
        let cache = self.cache();
        let (data, range) = (cache.data(object), offset..offset + len as u64);
        if range.end > data.version().size {
            return Err(Error::Stale);
        }
        if !data.is_here(&range) {
            self.fetch_part(object, &data, &range).await?;
        }
        let mut buffer = Buffer::new(len);
        let sink = buffer.sink(0..len);
        let read = cache.in_pool(&self.cx, move || data.read(offset, &sink)).resolve().await?;
        let bytes = buffer.as_slice().filter(|_| read == len);
        bytes.map(<[u8]>::to_vec).ok_or(Error::Stale)
    }
}

/// A guard that resolves a promise on drop.
struct Over(Arc<Promise<()>>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.keep(());
    }
}
