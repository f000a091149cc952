//! Data offered by a layer above (write-back), which has just sent them to the origin: under *exclusive* the
//! cache stores them, so that they need not be fetched.

use std::sync::Arc;

use tombolo_core::fs::{DataCache, FileType, NodeId, WeakAttr};
use tombolo_core::{Answer, Ctx, Result};
use tombolo_mem::Source;

use super::file_system::CachedFileSystem;
use super::view::View;
use crate::object::Object;
use crate::options::Contract;

impl DataCache for CachedFileSystem {
    fn offer(&self, cx: &Ctx, node: NodeId, version: &WeakAttr, offset: u64, from: Source) -> Answer<()> {
        let (view, version) = (self.view(cx), *version);
        match view.object(node) {
            Ok(object) => Answer::later(async move { view.offer(&object, &version, offset, from).await }),
            Err(_) => Answer::ok(()),
        }
    }
}

impl View {
    /// Stores offered data that are not cached, if the file has that version and all its changes are made
    /// through this cache (*exclusive*).
    async fn offer(&self, object: &Arc<Object>, version: &WeakAttr, offset: u64, from: Source) -> Result<()> {
        let cache = self.cache().clone();
        let is_alone =
            cache.options_of(object).contract == Contract::Exclusive && cache.borrower.get().is_none();
        let is_wanted = || object.state().is_at_rest(version);
        if !is_alone || object.file_type != FileType::Regular || !is_wanted() {
            return Ok(());
        }
        let data = cache.data(object);
        let expected = data.expect(&(offset..offset.saturating_add(from.len() as u64)));
        // A later write drops the offered data, as it drops data being fetched; an earlier one shows now.
        if !is_wanted() {
            return Ok(());
        }
        cache.mark_recent(object, &data, version);
        let keeper = cache.clone();
        let kept = cache.in_pool(&self.cx, move || expected.keep(&keeper, offset, &from)).resolve().await;
        object.weigh();
        cache.make_room();
        if let Err(error) = kept {
            cache.complain(&error);
        }
        Ok(())
    }
}
