//! Directory cookies of 2^63 and more, which no kernel can seek to: a host file system with such cookies,
//! mounted, served from the mount, and mounted again.

use std::collections::BTreeSet;
use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::RawDir;
use tombolo_back_local_dir::LocalDir;
use tombolo_back_memory::Memory;
use tombolo_core::fs::{
    Client, Cookie, DirBudget, DirEntry, DirPage, Export, File, FileSystem, NodeId, OpenFlags,
    PermissionCheck,
};
use tombolo_core::{Answer, Ctx, Error, Result, SessionId};
use tombolo_front_fuse::dev::Options;

use crate::common::Mounted;

const HIGH: u64 = 1 << 63;
/// Number of files: several buffers of the listing.
const FILES: usize = 2500;

struct High(Memory);

struct HighSession(Arc<dyn FileSystem>);

impl Export for High {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(HighSession(self.0.attach(client)?)))
    }
}

impl FileSystem for HighSession {
    tombolo_core::forward!(to self.0; profile lookup forget getattr setattr access readlink create create_unnamed mkdir symlink mknod
        link unlink rmdir rename open release flush fsync read write statfs syncfs);

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        let budget = page.budget();
        let low = self.0.readdir(cx, file, Cookie(cookie.0 & !HIGH), page).wait();
        low.map(|low| {
            let mut high = DirPage::new(budget);
            for entry in low.iter() {
                assert!(high.push(DirEntry { cookie: Cookie(entry.cookie.0 | HIGH), ..entry }), "as long");
            }
            if low.is_end() {
                high.set_end();
            }
            high
        })
        .into()
    }
}

fn host() -> Mounted {
    let mounted = Mounted::new(&High(Memory::default()), &Options::default());
    (0..FILES).for_each(|number| drop(fs::File::create(mounted.at(format!("file-{number}")))));
    mounted
}

/// Lists names with a small buffer, so that the kernel resumes in the middle of pages.
fn names_by(path: &Path, buffer_bytes: usize) -> Vec<String> {
    let dir = fs::File::open(path).expect("opened");
    let mut buffer = vec![MaybeUninit::uninit(); buffer_bytes];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names
}

#[test]
fn cookies_beyond_2_63_are_listed_once() {
    let host = host();
    let through =
        Mounted::new(&LocalDir::open(host.path(), Default::default()).expect("served"), &Options::default());
    for buffer_bytes in [280, 3000, 1 << 16] {
        let names = names_by(through.path(), buffer_bytes);
        assert_eq!(names.len(), FILES, "{buffer_bytes}");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), FILES, "{buffer_bytes}");
    }
}

#[test]
fn listing_resumes_from_cookies_beyond_2_63() {
    let host = host();
    let client = Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::Caller };
    let export = LocalDir::open(host.path(), Default::default()).expect("served");
    let (fs, cx) = (export.attach(&client).expect("attached"), Ctx::root(SessionId(1)));
    let open =
        fs.open(&cx, NodeId::ROOT, OpenFlags::READ | OpenFlags::DIRECTORY).wait().expect("opened").open;
    let file = File { node: NodeId::ROOT, open };
    let page = |cookie, size_bytes| {
        let budget = DirBudget { size_bytes, entry_bytes: 24, align: 8, plus: false };
        fs.readdir(&cx, file, cookie, DirPage::new(budget)).wait()
    };
    let lines =
        |page: &DirPage| -> Vec<_> { page.iter().map(|entry| (entry.name.to_vec(), entry.cookie)).collect() };
    let all = lines(&page(Cookie::START, 1 << 20).expect("a page"));
    assert!(all.len() == FILES + 2 && all.iter().all(|(_, cookie)| cookie.0 >= HIGH));
    let mut rng = 1usize;
    for _ in 0..300 {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (rng >> 33) % all.len();
        let rest = lines(&page(all[at].1, 5000).expect("a page"));
        assert!(all[at + 1..].starts_with(&rest), "{at}");
        assert!(!rest.is_empty() || at + 1 == all.len(), "{at}");
    }
    assert!(matches!(page(Cookie(u64::MAX), 5000), Err(Error::BadCookie)));
    assert_eq!(lines(&page(all[7].1, 1 << 20).expect("a page")), all[8..]);
}
