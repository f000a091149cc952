//! READDIR and READDIRPLUS.

use std::collections::BTreeSet;

use tombolo_nfs_tests::client::{Expect, Listing};
use tombolo_nfs_tests::fixture::{Fixture, assert_seen, on_each};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, FileHandleBuf, Status};

const START: Cookie3 = Cookie3(0);
const NONE: CookieVerifier = CookieVerifier([0; 8]);

fn fill(fixture: &Fixture, dir: &FileHandleBuf, count: usize) -> BTreeSet<String> {
    let names: BTreeSet<_> = (0..count).map(|index| format!("entry-{index:03}")).collect();
    for name in &names {
        fixture.file_in(dir, name, b"");
    }
    names
}

/// Reads all pages from the start.
fn pages(next: impl FnMut(Cookie3, CookieVerifier) -> Listing) -> Vec<Listing> {
    pages_from((START, NONE), next)
}

fn pages_from(
    mut at: (Cookie3, CookieVerifier),
    mut next: impl FnMut(Cookie3, CookieVerifier) -> Listing,
) -> Vec<Listing> {
    let mut pages = Vec::new();
    loop {
        let page = next(at.0, at.1);
        let eof = page.eof;
        at = (page.entries.last().map_or(at.0, |last| last.cookie), page.verifier);
        assert!(eof || !page.entries.is_empty(), "an empty page in the middle");
        pages.push(page);
        if eof {
            return pages;
        }
    }
}

fn names_of(pages: &[Listing]) -> Vec<String> {
    pages.iter().flat_map(Listing::names).collect()
}

on_each!(readdir_lists_every_name_with_its_number, |fixture| {
    let dir = fixture.dir("dir");
    fill(fixture, &dir, 3);
    let page = fixture.nfs.readdir(&dir, START, NONE, 4096).done();
    assert!(page.eof);
    assert_seen(fixture, &dir, page.dir_attributes);
    assert_eq!(page.entries.len(), 5, "three names and two dots");
    for entry in &page.entries {
        let node = match entry.name.as_slice() {
            b"." => dir,
            b".." => fixture.root,
            name => fixture.nfs.lookup(&dir, name).done().handle,
        };
        assert_eq!(entry.fileid, fixture.attr(&node).fileid);
    }
    let file = fixture.file("file", b"");
    assert_eq!(
        fixture.nfs.readdir(&file, START, NONE, 4096).failed(Status::NotDir),
        Some(fixture.attr(&file))
    );
});

on_each!(readdir_pages_fit_count_and_lose_no_entry, |fixture| {
    let dir = fixture.dir("dir");
    let names = fill(fixture, &dir, 100);
    for count in [160, 300, 1000, 4096] {
        let pages = pages(|cookie, verifier| {
            let page = fixture.nfs.readdir(&dir, cookie, verifier, count).done();
            assert!(page.result_bytes <= count as usize, "{} bytes of {count}", page.result_bytes);
            page
        });
        let listed = names_of(&pages);
        assert_eq!(listed.len(), 100, "each once, with pages of {count}");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), names);
    }
});

on_each!(readdir_fills_its_count, |fixture| {
    let dir = fixture.dir("dir");
    fill(fixture, &dir, 100);
    let page = fixture.nfs.readdir(&dir, START, NONE, 2000).done();
    // 36 bytes each: a page that stops early costs a call more.
    assert!(page.result_bytes > 2000 - 40, "{} bytes", page.result_bytes);
});

on_each!(cookies_remain_valid_while_the_directory_changes, |fixture| {
    let dir = fixture.dir("dir");
    let names = fill(fixture, &dir, 60);
    let first = fixture.nfs.readdir(&dir, START, NONE, 1000).done();
    let seen = first.names();
    // Listed names are removed: the listing must continue behind them, where a server that counts entries
    // by index would skip some.
    for name in &seen {
        fixture.nfs.remove(&dir, name.as_bytes()).done();
    }
    fixture.file_in(&dir, "late", b"");
    let behind = (first.entries.last().expect("entries").cookie, first.verifier);
    let rest =
        pages_from(behind, |cookie, verifier| fixture.nfs.readdir(&dir, cookie, verifier, 1000).done());
    let mut listed = [seen, names_of(&rest)].concat();
    listed.retain(|name| name != "late");
    assert_eq!(listed.len(), 60, "each once");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), names);
});

on_each!(readdirplus_returns_the_results_of_lookup, |fixture| {
    let dir = fixture.dir("dir");
    fill(fixture, &dir, 5);
    let page = fixture.nfs.readdirplus(&dir, START, NONE, 4096, 8192).done();
    assert!(page.eof);
    assert_seen(fixture, &dir, page.dir_attributes);
    assert_eq!(page.names().len(), 5);
    for entry in page.entries.iter().filter(|entry| !entry.name.starts_with(b".")) {
        let found = fixture.nfs.lookup(&dir, &entry.name).done();
        assert_eq!((entry.handle, entry.attributes), (Some(found.handle), found.attributes));
        assert_eq!(entry.fileid, found.attributes.expect("attributes").fileid);
    }
    for dots in page.entries.iter().filter(|entry| entry.name.starts_with(b".")) {
        let at = if dots.name == b"." { dir } else { fixture.root };
        assert_eq!(dots.fileid, fixture.attr(&at).fileid);
        assert!(dots.handle.is_none_or(|handle| handle == at));
    }
});

on_each!(readdirplus_honours_dircount_and_maxcount, |fixture| {
    let dir = fixture.dir("dir");
    let names = fill(fixture, &dir, 60);
    for (dircount, maxcount) in [(4096, 700), (4096, 2000), (200, 32_768), (100, 1000)] {
        let pages = pages(|cookie, verifier| {
            let page = fixture.nfs.readdirplus(&dir, cookie, verifier, dircount, maxcount).done();
            assert!(page.result_bytes <= maxcount as usize, "{} of {maxcount}", page.result_bytes);
            // Number, name and cookie of each (RFC 1813 §3.3.17), with what XDR adds.
            let size = |name: &[u8]| 24 + name.len().next_multiple_of(4);
            let names_bytes: usize = page.entries.iter().map(|entry| size(&entry.name)).sum();
            assert!(names_bytes <= dircount as usize, "{names_bytes} of {dircount}");
            page
        });
        let listed = names_of(&pages);
        assert_eq!(listed.len(), 60, "each once, with {dircount} and {maxcount}");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), names);
    }
});

on_each!(listing_requires_read_permission, |fixture| {
    let dir = fixture.dir("dir");
    let private = tombolo_nfs_tests::client::mode(0o711);
    fixture.nfs.setattr(&dir, private, None).done();
    let user = fixture.as_user(1000);
    user.readdir(&dir, START, NONE, 4096).failed(Status::Acces);
    user.readdirplus(&dir, START, NONE, 4096, 8192).failed(Status::Acces);
});

#[test]
fn listings_hide_the_parent_of_the_export() {
    let fixture = Fixture::on_host();
    let page = fixture.nfs.readdir(&fixture.root, START, NONE, 4096).done();
    let up = page.entries.iter().find(|entry| entry.name == b"..").expect("two dots");
    assert_eq!(up.fileid, fixture.attr(&fixture.root).fileid);
}
