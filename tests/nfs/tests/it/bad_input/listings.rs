//! READDIR and READDIRPLUS with too small counts and with unknown cookies.

use tombolo_nfs_tests::client::{Expect, Listing};
use tombolo_nfs_tests::fixture::{Fixture, on_each};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, FileHandleBuf, PostOpAttr, Reply, Status};

const START: Cookie3 = Cookie3(0);
const NONE: CookieVerifier = CookieVerifier([0; 8]);

type Page = Reply<Listing, PostOpAttr>;

fn filled(fixture: &Fixture) -> FileHandleBuf {
    let dir = fixture.dir("dir");
    for index in 0..30 {
        fixture.file_in(&dir, &format!("entry-{index:02}"), b"");
    }
    dir
}

/// Reads the same page by either procedure.
fn both(fixture: &Fixture, dir: &FileHandleBuf, cookie: Cookie3, verifier: CookieVerifier) -> [Page; 2] {
    [
        fixture.nfs.readdir(dir, cookie, verifier, 4096),
        fixture.nfs.readdirplus(dir, cookie, verifier, 4096, 4096),
    ]
}

on_each!(a_count_below_one_entry_is_too_small, |fixture| {
    let dir = filled(fixture);
    for count in [0, 1, 10, 100, 120, 128] {
        let attributes = fixture.nfs.readdir(&dir, START, NONE, count).failed(Status::TooSmall);
        assert_eq!(attributes.expect("attributes").fileid, fixture.attr(&dir).fileid);
        fixture.nfs.readdirplus(&dir, START, NONE, count, count).failed(Status::TooSmall);
        fixture.nfs.readdirplus(&dir, START, NONE, 4096, count).failed(Status::TooSmall);
    }
    for dircount in [0, 1, 10, 27] {
        fixture.nfs.readdirplus(&dir, START, NONE, dircount, 4096).failed(Status::TooSmall);
    }
});

on_each!(a_cookie_with_the_wrong_verifier_is_bad, |fixture| {
    let dir = filled(fixture);
    let page = fixture.nfs.readdir(&dir, START, NONE, 500).done();
    let cookie = page.entries.last().expect("entries").cookie;
    let CookieVerifier(mut wrong) = page.verifier;
    wrong[7] ^= 1;
    for page in both(fixture, &dir, cookie, CookieVerifier(wrong)) {
        page.failed(Status::BadCookie);
    }
    for page in both(fixture, &dir, cookie, page.verifier) {
        page.done();
    }
    // The start of a listing needs no verifier.
    for page in both(fixture, &dir, START, CookieVerifier(wrong)) {
        page.done();
    }
});

// Sends cookies that the server never issued: no crash, and no entries that do not exist.
on_each!(an_unknown_cookie_lists_existing_entries_or_is_bad, |fixture| {
    let dir = filled(fixture);
    let all = fixture.nfs.readdir(&dir, START, NONE, 8192).done();
    for cookie in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 32, 0x1234_5678_9abc, 3] {
        for page in both(fixture, &dir, Cookie3(cookie), all.verifier) {
            match page {
                Reply::Ok(page) => {
                    assert!(page.names().iter().all(|name| all.names().contains(name)), "{cookie:#x}");
                }
                Reply::Failed(status, _) => {
                    assert!(matches!(status, Status::BadCookie | Status::Inval), "{status:?}");
                }
            }
        }
    }
});

on_each!(a_cookie_of_another_directory_is_bad, |fixture| {
    let page = fixture.nfs.readdir(&filled(fixture), START, NONE, 500).done();
    let last = page.entries.last().expect("entries");
    let other = fixture.nfs.mkdir(&fixture.root, b"other", Default::default()).done().handle();
    for page in both(fixture, &other, last.cookie, page.verifier) {
        page.failed(Status::BadCookie);
    }
});
