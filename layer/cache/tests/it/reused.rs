//! An origin that reuses the handle and inode number of a removed file.

use std::sync::{Arc, Mutex};

use tombolo_core::fs::{
    Attr, Entry, File, FileSystem, FileType, Name, NodeId, OpenFlags, Opened, PersistentHandle,
    PersistentHandles,
};
use tombolo_core::{Answer, Ctx, Error, Result, forward};
use tombolo_layer_cache::{Contract, Options};
use tombolo_test_support::wrapped;

use crate::world::{Origin, pattern};

/// A session of such an origin.
struct Reusing {
    inner: Arc<dyn FileSystem>,
    /// Handles by index.
    given: Arc<Mutex<Vec<PersistentHandle>>>,
}

impl Reusing {
    fn handles(&self) -> &dyn PersistentHandles {
        self.inner.persistent_handles().expect("handles")
    }

    fn number(&self, cx: &Ctx, node: NodeId) -> Result<usize> {
        let handle = self.handles().handle_of(cx, node).wait()?;
        let mut given = self.given.lock().expect("no panic");
        let known = given.iter().position(|known| *known == handle);
        let is_gone =
            |known: &PersistentHandle| matches!(self.handles().resolve(cx, known).wait(), Err(Error::Stale));
        Ok(known.unwrap_or_else(|| match given.iter().position(is_gone) {
            Some(free) => {
                given[free] = handle;
                free
            }
            None => {
                given.push(handle);
                given.len() - 1
            }
        }))
    }

    fn shown(&self, cx: &Ctx, node: NodeId, attr: Attr) -> Attr {
        let fileid = self.number(cx, node).map_or(attr.fileid, |number| number as u64);
        Attr { fileid, ..attr }
    }
}

impl FileSystem for Reusing {
    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        let entry = self.inner.lookup(cx, parent, name);
        entry.wait().map(|entry| Entry { attr: self.shown(cx, entry.node, entry.attr), ..entry }).into()
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.inner.getattr(cx, node, file).wait().map(|attr| self.shown(cx, node, attr)).into()
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        let opened = self.inner.open(cx, node, flags).wait();
        opened
            .map(|opened| Opened { attr: opened.attr.map(|attr| self.shown(cx, node, attr)), ..opened })
            .into()
    }

    forward!(to self.inner; setattr access readlink create create_unnamed mkdir symlink mknod link unlink rmdir
        rename flush fsync read write readdir statfs syncfs forget release
        profile);
    forward!(own self; persistent_handles);
}

impl PersistentHandles for Reusing {
    forward!(to self.inner; volume parent);

    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        let number = self.number(cx, node);
        number.map(|number| PersistentHandle { kind: 1, bytes: [number as u8][..].into() }).into()
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let inner = self.given.lock().expect("no panic").get(usize::from(handle.bytes[0])).cloned();
        let Some(inner) = inner else { return Answer::err(Error::Stale) };
        let entry = self.handles().resolve(cx, &inner).wait();
        entry.map(|entry| Entry { attr: self.shown(cx, entry.node, entry.attr), ..entry }).into()
    }
}

#[test]
fn reused_origin_handle_leads_to_the_new_file() {
    let refresh = std::time::Duration::ZERO;
    for contract in [Contract::CloseToOpen, Contract::Refresh(refresh)] {
        let (mut origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        let given = Arc::<Mutex<_>>::default();
        origin.export = wrapped(origin.export, move |inner| Reusing { inner, given: given.clone() });
        let options = Options { contract, attr_refresh: refresh, ..Options::default() };
        let cached = origin.cached_with(dir.path(), options);
        let direct = &origin.direct;
        for round in 0..20_u8 {
            let (old, new) = (format!("old-{round}"), format!("new-{round}"));
            direct.put(&old, &pattern(5000, round));
            assert_eq!(cached.contents(&old), pattern(5000, round));
            let before = cached.lookup(&old).expect("there");
            direct.unlink(&old).expect("unlink");
            if round % 2 == 0 {
                direct.put(&new, &pattern(5000, round + 100));
                assert_eq!(cached.contents(&new), pattern(5000, round + 100), "{contract:?}");
                direct.unlink(&new).expect("unlink");
            } else {
                direct.mkdir(&new).expect("mkdir");
                let found = cached.lookup(&new).expect("there");
                assert_eq!(found.attr.file_type, FileType::Directory, "{contract:?}");
                assert_ne!(found.node, before.node, "it cannot be the file");
                direct.rmdir(&new).expect("rmdir");
            }
            assert!(matches!(cached.lookup(&old), Err(Error::NotFound)));
        }
    }
}
