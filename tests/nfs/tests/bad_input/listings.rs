//! READDIR and READDIRPLUS with too little room, and with cookies from nowhere.

use tombolo_nfs_tests::client::{Expect, Listing};
use tombolo_nfs_tests::place::{Place, on_each};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, FileHandleBuf, PostOpAttr, Reply, Status};

const START: Cookie3 = Cookie3(0);
const NONE: CookieVerifier = CookieVerifier([0; 8]);

type Page = Reply<Listing, PostOpAttr>;

fn filled(place: &Place) -> FileHandleBuf {
    let dir = place.dir("dir");
    for index in 0..30 {
        place.file_in(&dir, &format!("entry-{index:02}"), b"");
    }
    dir
}

/// The same page by either procedure.
fn both(place: &Place, dir: &FileHandleBuf, cookie: Cookie3, verifier: CookieVerifier) -> [Page; 2] {
    [place.nfs.readdir(dir, cookie, verifier, 4096), place.nfs.readdirplus(dir, cookie, verifier, 4096, 4096)]
}

#[test]
fn room_for_no_entry_is_too_small() {
    on_each(|place| {
        let dir = filled(place);
        for count in [0, 1, 10, 100, 120, 128] {
            let attributes = place.nfs.readdir(&dir, START, NONE, count).failed(Status::TooSmall);
            assert_eq!(attributes.expect("attributes").fileid, place.attr(&dir).fileid);
            place.nfs.readdirplus(&dir, START, NONE, count, count).failed(Status::TooSmall);
            place.nfs.readdirplus(&dir, START, NONE, 4096, count).failed(Status::TooSmall);
        }
        for dircount in [0, 1, 10, 27] {
            place.nfs.readdirplus(&dir, START, NONE, dircount, 4096).failed(Status::TooSmall);
        }
    });
}

#[test]
fn a_cookie_with_the_wrong_verifier_is_bad() {
    on_each(|place| {
        let dir = filled(place);
        let page = place.nfs.readdir(&dir, START, NONE, 500).done();
        let cookie = page.entries.last().expect("entries").cookie;
        let CookieVerifier(mut wrong) = page.verifier;
        wrong[7] ^= 1;
        for page in both(place, &dir, cookie, CookieVerifier(wrong)) {
            page.failed(Status::BadCookie);
        }
        for page in both(place, &dir, cookie, page.verifier) {
            page.done();
        }
        // At the start there is nothing to be verified.
        for page in both(place, &dir, START, CookieVerifier(wrong)) {
            page.done();
        }
    });
}

/// A cookie that was never given out is no way to crash a server, nor to see what is not there.
#[test]
fn a_cookie_from_nowhere_lists_what_is_there_or_is_bad() {
    on_each(|place| {
        let dir = filled(place);
        let all = place.nfs.readdir(&dir, START, NONE, 8192).done();
        for cookie in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 32, 0x1234_5678_9abc, 3] {
            for page in both(place, &dir, Cookie3(cookie), all.verifier) {
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
}

#[test]
fn a_stale_cookie_goes_on_behind_what_is_gone() {
    on_each(|place| {
        let dir = filled(place);
        let page = place.nfs.readdir(&dir, START, NONE, 500).done();
        let last = page.entries.last().expect("entries");
        place.nfs.remove(&dir, &last.name).done();
        let rest = place.nfs.readdir(&dir, last.cookie, page.verifier, 8192).done();
        assert_eq!(page.names().len() + rest.names().len(), 30, "each once");
        let other = place.nfs.mkdir(&place.root, b"other", Default::default()).done().handle();
        for page in both(place, &other, last.cookie, page.verifier) {
            page.failed(Status::BadCookie);
        }
    });
}
