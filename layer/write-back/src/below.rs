//! Listing of the cache's directories.

use tombolo_core::fs::{Cookie, DirBudget, DirPage, File, FileSystem, NodeId, OpenFlags};
use tombolo_core::{Ctx, Result};

/// Capacity of a page, which is read without attributes.
const PAGE: DirBudget = DirBudget { size_bytes: 32 << 10, entry_bytes: 24, align: 8, plus: false };

/// Lists a directory to its end, or until `goes_on` returns `false` for a page.
pub(crate) async fn list(
    below: &dyn FileSystem,
    cx: &Ctx,
    node: NodeId,
    goes_on: impl FnMut(&DirPage) -> bool,
) -> Result<()> {
    let flags = OpenFlags::READ | OpenFlags::DIRECTORY;
    let file = File { node, open: below.open(cx, node, flags).resolve().await?.open };
    let listed = list_opened(below, cx, file, goes_on).await;
    below.release(cx, file);
    listed
}

async fn list_opened(
    below: &dyn FileSystem,
    cx: &Ctx,
    file: File,
    mut goes_on: impl FnMut(&DirPage) -> bool,
) -> Result<()> {
    let (mut cookie, mut page) = (Cookie::START, DirPage::new(PAGE));
    loop {
        page.reset(PAGE);
        page = below.readdir(cx, file, cookie, page).resolve().await?;
        match page.iter().last() {
            Some(last) if goes_on(&page) && !page.is_end() => cookie = last.cookie,
            _ => return Ok(()),
        }
    }
}
