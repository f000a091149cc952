//! The amount of data to copy.

use tombolo_core::Result;
use tombolo_core::fs::FileType;

use crate::above::Above;
use crate::node::Node;

/// Passes the sizes of the regular files in a source to `add`: one sum for each page of a directory, or the
/// size of a source that is not a directory. `add` returns `true` to continue. Unreadable or too deep
/// directories and those that contain themselves are left out.
pub async fn measure(source: &Node, add: impl Fn(u64) -> bool) -> Result<()> {
    let attr = source.attr().await?;
    if attr.file_type != FileType::Directory {
        add(attr.size);
        return Ok(());
    }
    let mut above = Above::default();
    let mut ahead = vec![(0, source.clone())];
    while let Some((depth, dir)) = ahead.pop() {
        if above.enter(depth, &dir).is_err() {
            continue;
        }
        let Ok(mut listing) = dir.list(true).await else { continue };
        while let Ok(Some(page)) = listing.next_page().await {
            let mut bytes: u64 = 0;
            for node in page.into_iter().filter_map(|item| item.node) {
                match node.attr_found().copied() {
                    Some(attr) if attr.file_type == FileType::Directory => {
                        ahead.push((depth + 1, node));
                    }
                    Some(attr) if attr.file_type == FileType::Regular => {
                        bytes = bytes.saturating_add(attr.size)
                    }
                    _ => {}
                }
            }
            if !add(bytes) {
                return Ok(());
            }
        }
    }
    Ok(())
}
