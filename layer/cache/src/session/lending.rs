//! What a proxy that borrows may have of the data here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_core::fs::{AccessMask, FileType};
use tombolo_core::{Ctx, Result};

use super::Session;
use super::view::View;
use crate::origin::SESSION;
use crate::sharing::message::Ask;
use crate::store::Lendable;

/// What can be lent of what a borrower asks for: of that very version, and to a user that the origin lets read the file.
pub(crate) async fn lend(session: &Arc<Session>, ask: &Ask) -> Option<Lendable> {
    let cx = Ctx { identity: ask.user.clone(), ..Ctx::root(SESSION) };
    let view = View::new(session, &cx);
    view.lend(ask).await.inspect_err(|error| tracing::debug!(%error, "nothing is lent")).ok().flatten()
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
            // What is written here goes on in the same file: others would find it there.
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
