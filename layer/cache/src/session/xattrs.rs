//! Extended attributes, uncached: each request goes to the origin.

use tombolo_core::fs::{NodeId, Notice, XattrName, XattrSet, Xattrs, within};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_host_runtime::to_its_end;

use super::file_system::CachedFileSystem;
use super::view::View;

impl Xattrs for CachedFileSystem {
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        let name = name.to_owned();
        self.missed(
            self.view(cx)
                .with_xattrs(node, move |xattrs, cx, node| xattrs.get(cx, node, name.as_name(), limit_bytes)),
        )
    }

    fn set(
        &self,
        cx: &Ctx,
        node: NodeId,
        name: XattrName<'_>,
        value: &[u8],
        how: XattrSet,
        kill_set_gid: bool,
    ) -> Answer<()> {
        let (name, value) = (name.to_owned(), value.to_vec());
        self.change_xattrs(cx, node, move |xattrs, cx, node| {
            xattrs.set(cx, node, name.as_name(), &value, how, kill_set_gid)
        })
    }

    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.missed(
            self.view(cx).with_xattrs(node, move |xattrs, cx, node| xattrs.list(cx, node, limit_bytes)),
        )
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        let name = name.to_owned();
        self.change_xattrs(cx, node, move |xattrs, cx, node| xattrs.remove(cx, node, name.as_name()))
    }
}

impl CachedFileSystem {
    fn change_xattrs(
        &self,
        cx: &Ctx,
        node: NodeId,
        change: impl FnOnce(&dyn Xattrs, &Ctx, NodeId) -> Answer<()> + Send + 'static,
    ) -> Answer<()> {
        if self.is_read_only(node, None) {
            return Answer::err(Error::ReadOnly);
        }
        let view = self.view(cx);
        to_its_end(async move {
            let object = view.object(node)?;
            let done = view.clone().with_xattrs(node, change).await;
            // An access control list may change mode and permissions.
            object.state().forget_rights();
            object.doubt();
            view.tell([Notice::Attributes(node)]);
            done
        })
    }
}

impl View {
    async fn with_xattrs<T>(
        self,
        node: NodeId,
        ask: impl FnOnce(&dyn Xattrs, &Ctx, NodeId) -> Answer<T> + Send,
    ) -> Result<T> {
        let object = self.object(node)?;
        let (at_origin, cx) = (self.node(&object).await?, self.at_origin());
        let answer = within(self.cache().origin.fs.xattrs(), |xattrs| ask(xattrs, &cx, at_origin));
        answer.resolve().await.map_err(|error| match error {
            Error::Stale => self.cache().failed(&object, error),
            error => error,
        })
    }
}
