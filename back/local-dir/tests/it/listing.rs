//! Listings continued at any cookie, also of removed directories.

use std::fs;

use tombolo_core::Error;
use tombolo_core::fs::{Cookie, DirPage, File};
use tombolo_test_support::budget;

use crate::common::{World, served};

fn page(world: &World, file: File, cookie: Cookie, size_bytes: usize) -> Result<DirPage, Error> {
    world.readdir(file, cookie, budget(size_bytes, false))
}

fn cookies(page: &DirPage) -> Vec<Cookie> {
    page.iter().map(|entry| entry.cookie).collect()
}

#[test]
fn the_listing_of_a_removed_directory_ends() {
    let (tree, world) = served();
    let dir = tree.path().join("dir");
    // ext4 has a list of one block, or a tree.
    for (files, read_bytes) in [(10, 200), (10, 1 << 20), (600, 2000), (600, 1 << 20)] {
        fs::create_dir(&dir).expect("mkdir");
        (0..files).for_each(|number| drop(fs::write(dir.join(format!("file-{number}")), "")));
        let file = world.open_dir("dir").expect("opened");
        let read = cookies(&page(&world, file, Cookie::START, read_bytes).expect("a page"));
        fs::remove_dir_all(&dir).expect("removed");
        // The next page comes from the entries buffered before, or there is none.
        let last = *read.last().expect("entries");
        let mut next = last;
        loop {
            match page(&world, file, next, 2000) {
                Ok(page) if page.is_end() => break,
                Ok(page) => next = *cookies(&page).last().expect("entries"),
                Err(error) => {
                    assert!(matches!(error, Error::NotFound), "{error:?}");
                    break;
                }
            }
        }
        for from in [Cookie::START, read[read.len() / 2], last] {
            match page(&world, file, from, 2000) {
                Ok(page) => assert!(page.is_end() && page.is_empty(), "{from:?}"),
                Err(error) => assert!(matches!(error, Error::NotFound), "{from:?}: {error:?}"),
            }
        }
        world.release(file);
    }
}

#[test]
fn a_listing_that_has_ended_asks_for_no_place() {
    let (tree, world) = served();
    fs::write(tree.path().join("file"), "").expect("write");
    let file = world.open_dir("").expect("opened");
    let whole = page(&world, file, Cookie::START, 1 << 16).expect("a page");
    assert!(whole.is_end() && whole.len() == 3);
    let last = *cookies(&whole).last().expect("entries");
    for _ in 0..3 {
        let rest = page(&world, file, last, 1 << 16).expect("a page");
        assert!(rest.is_end() && rest.is_empty());
    }
    let again = page(&world, file, Cookie::START, 1 << 16).expect("a page");
    assert_eq!(cookies(&again), cookies(&whole), "it starts anew");
    assert!(matches!(page(&world, file, Cookie(u64::MAX), 1 << 16), Err(Error::BadCookie)));
    let again = page(&world, file, Cookie::START, 1 << 16).expect("a page");
    assert_eq!(cookies(&again), cookies(&whole), "and so after a place that there is not");
    world.release(file);
}
