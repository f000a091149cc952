//! The page after a listing's last one, which a kernel requests to see the end.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_back_vrpc_client::VrpcFileSystem;
use tombolo_core::Result;
use tombolo_core::fs::{Cookie, File};
use tombolo_test_support::{Session, budget};
use tombolo_vrpc_tests::site::{Plan, Site, client};

/// Budgets of a page for all names, and for the first one.
const ALL: usize = 4096;
const ONE: usize = 32;

/// A page of a listing.
#[derive(Debug)]
struct Listed {
    names: Vec<String>,
    is_end: bool,
    next: Cookie,
    requests: u64,
}

/// A session with an opening of `dir`, which contains the entries `a` and `b`, and another session.
struct Opened {
    _site: Arc<Site>,
    fs: Arc<VrpcFileSystem>,
    session: Session,
    other: Session,
    file: File,
}

impl Opened {
    fn new() -> Self {
        let site = Site::serving(Arc::new(Memory::default()), Plan::default());
        let fs = site.export().attach_session(&client()).expect("a session");
        let (session, other) = (Session::of(fs.clone()), Session::attach(&site.export()));
        for name in ["dir", "dir/a", "dir/b"] {
            other.dir(name);
        }
        let file = session.open_dir("dir").expect("opened");
        Self { _site: site, fs, session, other, file }
    }

    fn list(&self, cookie: Cookie, size_bytes: usize) -> Result<Listed> {
        let before = self.fs.counts().calls;
        let page = self.session.readdir(self.file, cookie, budget(size_bytes, false))?;
        let names = page.iter().map(|line| String::from_utf8_lossy(line.name).into_owned());
        let names = names.filter(|name| !name.starts_with('.')).collect();
        let next = page.iter().last().map_or(cookie, |line| line.cookie);
        Ok(Listed { names, is_end: page.is_end(), next, requests: self.fs.counts().calls - before })
    }

    /// Lists all names, and returns the position of the end.
    fn list_all(&self, expected: &[&str]) -> Cookie {
        let all = self.list(Cookie::START, ALL).expect("listed");
        assert_eq!(
            (all.names, all.is_end, all.requests),
            (expected.iter().map(|it| (*it).into()).collect(), true, 1)
        );
        all.next
    }
}

#[test]
fn page_after_last_one_takes_no_request() {
    let opened = Opened::new();
    let end = opened.list_all(&["a", "b"]);
    let last = opened.list(end, ALL).expect("the end");
    assert_eq!((last.names.len(), last.is_end, last.requests), (0, true, 0));
    // Whoever polls at the end sees later names.
    opened.other.dir("dir/c");
    let later = opened.list(end, ALL).expect("listed");
    assert_eq!((later.names, later.requests), (vec!["c".to_owned()], 1));
}

#[test]
fn listing_after_a_rewind_is_current() {
    let opened = Opened::new();
    let end = opened.list_all(&["a", "b"]);
    let first = opened.list(Cookie::START, ONE).expect("listed");
    assert!(!first.is_end && first.requests == 1, "{first:?}");
    opened.other.dir("dir/c");
    let later = opened.list(end, ALL).expect("listed");
    assert_eq!((later.names, later.requests), (vec!["c".to_owned()], 1), "the end is of an earlier listing");
    let end = opened.list_all(&["a", "b", "c"]);
    assert_eq!(opened.list(first.next, ALL).expect("listed").requests, 1);
    assert_eq!(opened.list(end, ALL).expect("the end").requests, 0);
    opened.list_all(&["a", "b", "c"]);
}

#[test]
fn listing_of_removed_directory_ends_without_failure() {
    let opened = Opened::new();
    let end = opened.list_all(&["a", "b"]);
    for name in ["dir/a", "dir/b", "dir"] {
        opened.other.rmdir(name).expect("removed");
    }
    assert!(opened.list(end, ALL).expect("the end").is_end);
    assert!(opened.list(Cookie::START, ALL).is_err());
}
