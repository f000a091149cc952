//! Listing directories.

use std::collections::HashMap;

use tombolo_core::Error;
use tombolo_core::fs::{Cookie, File, FileType, OpenFlags};
use tombolo_test_support::{budget, name, plain};

use super::cases;
use crate::is_long_run;
use crate::refused;
use crate::waist::world::Listed;
use crate::waist::{Verdict, World};

cases! { "listing":
    an_empty_directory_lists_its_dots,
    every_name_is_listed_with_its_number_and_type,
    small_pages_lose_nothing,
    a_page_too_small_for_one_entry_is_empty,
    a_listing_goes_on_from_any_cookie,
    cookies_are_good_in_another_opening,
    remaining_names_are_listed_once_under_change,
    thousands_of_names_are_all_listed,
    a_listing_starts_anew_from_the_start,
    a_listing_with_attributes_counts_look_ups needs FORGETS,
    listing_needs_a_directory_opening,
    listing_a_removed_directory_ends,
}

fn open(w: &World) -> File {
    w.open(w.dir, OpenFlags::READ | OpenFlags::DIRECTORY).expect("open directory")
}

fn fill(w: &World, count: usize) -> Vec<String> {
    let names: Vec<_> = (0..count).map(|index| format!("entry-{index:05}")).collect();
    for text in &names {
        let created = w.create(text, &plain()).expect("create");
        w.release(File { node: created.entry.node, open: created.open });
        w.forget(created.entry.node);
    }
    names
}

fn counts(listed: &[Listed]) -> HashMap<&str, usize> {
    let mut counts = HashMap::new();
    listed.iter().for_each(|listed| *counts.entry(listed.name.as_str()).or_default() += 1);
    counts
}

fn an_empty_directory_lists_its_dots(w: &World) {
    let dir = w.dir("dir");
    let listed = w.list(dir, 4096);
    let mut names: Vec<_> = listed.iter().map(|listed| (listed.name.as_str(), listed.fileid)).collect();
    names.sort_unstable();
    assert_eq!(names, [(".", w.attr(dir).fileid), ("..", w.attr(w.dir).fileid)]);
}

fn every_name_is_listed_with_its_number_and_type(w: &World) {
    w.file_with("file", b"");
    w.dir("dir");
    w.symlink("link", b"target").expect("symlink");
    let fifo = FileType::Fifo;
    w.fs.mknod(&w.cx, w.dir, name("fifo"), fifo, Default::default(), Default::default())
        .wait()
        .expect("mknod");
    let listed = w.list(w.dir, 4096);
    assert_eq!(listed.len(), 6);
    for listed in listed.iter().filter(|listed| !listed.name.starts_with('.')) {
        let attr = w.lookup(&listed.name).expect("lookup").attr;
        assert_eq!(listed.fileid, attr.fileid, "{}", listed.name);
        assert!(listed.file_type.is_none_or(|file_type| file_type == attr.file_type), "{}", listed.name);
    }
}

fn small_pages_lose_nothing(w: &World) {
    let names = fill(w, 100);
    for size_bytes in [48, 100, 333, 4096] {
        let listed = w.list(w.dir, size_bytes);
        let counts = counts(&listed);
        assert_eq!(listed.len(), 102, "pages of {size_bytes} bytes");
        assert!(
            names.iter().all(|name| counts.get(name.as_str()) == Some(&1)),
            "pages of {size_bytes} bytes"
        );
    }
}

fn a_page_too_small_for_one_entry_is_empty(w: &World) {
    fill(w, 1);
    let file = open(w);
    let (page, end) = w.page(file, Cookie::START, budget(8, false)).expect("readdir");
    assert!(page.is_empty() && !end);
    w.release(file);
}

fn a_listing_goes_on_from_any_cookie(w: &World) {
    fill(w, 60);
    let file = open(w);
    let all = w.list_from(file, Cookie::START, 1024);
    for index in [0, 1, 7, 30, 60, 61] {
        let rest = w.list_from(file, all[index].cookie, 1024);
        let names = |listed: &[Listed]| listed.iter().map(|listed| listed.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&rest), names(&all[index + 1..]), "from entry {index}");
    }
    w.release(file);
}

fn cookies_are_good_in_another_opening(w: &World) {
    let names = fill(w, 60);
    let first = open(w);
    let (page, _) = w.page(first, Cookie::START, budget(600, false)).expect("readdir");
    w.release(first);
    let cookie = page.last().expect("entries").cookie;
    let other = w.other_session();
    let second = open(&other);
    let mut listed = page;
    listed.extend(other.list_from(second, cookie, 600));
    other.release(second);
    let counts = counts(&listed);
    assert!(
        names.iter().all(|name| counts.get(name.as_str()) == Some(&1)),
        "an entry was lost or listed twice"
    );
}

fn remaining_names_are_listed_once_under_change(w: &World) -> Verdict {
    let names = fill(w, 400);
    let file = open(w);
    let mut listed = Vec::new();
    let mut cookie = Cookie::START;
    for round in 0.. {
        let (page, end) = w.page(file, cookie, budget(1500, false)).expect("readdir");
        cookie = page.last().map_or(cookie, |last| last.cookie);
        listed.extend(page);
        if end {
            break;
        }
        // Removes every fourth name, independent of the listing's position; other names are created and
        // removed.
        for text in names.iter().skip(4 * 8 * round).step_by(4).take(8) {
            w.unlink(text).expect("unlink");
        }
        w.file_with(&format!("late-{round}"), b"");
    }
    w.release(file);
    let counts = counts(&listed);
    for (index, text) in names.iter().enumerate() {
        let times = counts.get(text.as_str()).copied().unwrap_or(0);
        let stays = index % 4 != 0;
        assert!(times == 1 || (!stays && times == 0), "{text} was listed {times} times");
    }
    Ok(())
}

fn thousands_of_names_are_all_listed(w: &World) {
    // Many pages of 8 KiB.
    let names = fill(w, if is_long_run() { 10_000 } else { 1_000 });
    assert_eq!(w.names(w.dir), names);
}

fn a_listing_starts_anew_from_the_start(w: &World) {
    fill(w, 5);
    let file = open(w);
    assert_eq!(w.list_from(file, Cookie::START, 4096).len(), 7);
    w.unlink("entry-00002").expect("unlink");
    w.file_with("late", b"");
    let again = w.list_from(file, Cookie::START, 4096);
    assert_eq!(again.len(), 7);
    assert!(again.iter().any(|listed| listed.name == "late"));
    assert!(!again.iter().any(|listed| listed.name == "entry-00002"));
    w.release(file);
}

fn a_listing_with_attributes_counts_look_ups(w: &World) {
    fill(w, 3);
    let file = open(w);
    let (page, _) = w.page(file, Cookie::START, budget(4096, true)).expect("readdir");
    w.release(file);
    for listed in &page {
        if listed.name.starts_with('.') {
            assert!(listed.entry.is_none(), "the dots are not looked up");
            continue;
        }
        let entry = listed.entry.expect("attributes were asked for");
        assert_eq!(entry.attr.fileid, listed.fileid);
        assert_eq!(w.attr(entry.node).fileid, listed.fileid);
        assert_eq!(w.lookup(&listed.name).expect("lookup").node, entry.node);
        w.forget(entry.node);
        assert_eq!(w.attr(entry.node).fileid, listed.fileid, "one of two look-ups is left");
        w.forget(entry.node);
        refused!(w.fs.getattr(&w.cx, entry.node, None).wait(), Error::Stale);
    }
}

fn listing_needs_a_directory_opening(w: &World) {
    let file = w.file("file");
    refused!(w.page(file, Cookie::START, budget(4096, false)), Error::NotDirectory | Error::BadOpen);
    w.release(file);
    let dir = open(w);
    w.release(dir);
    refused!(w.page(dir, Cookie::START, budget(4096, false)), Error::BadOpen);
}

fn listing_a_removed_directory_ends(w: &World) -> Verdict {
    let dir = w.dir("dir");
    let file = w.open(dir, OpenFlags::READ | OpenFlags::DIRECTORY).expect("open directory");
    w.rmdir("dir").expect("rmdir");
    match w.page(file, Cookie::START, budget(4096, false)) {
        Ok((page, end)) => {
            assert!(end && page.iter().all(|listed| listed.name.starts_with('.')), "{page:?}");
        }
        Err(Error::NotFound | Error::Stale) => {}
        Err(error) => panic!("{error:?}"),
    }
    w.release(file);
    Ok(())
}
