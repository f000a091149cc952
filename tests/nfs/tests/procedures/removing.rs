//! REMOVE, RMDIR, RENAME.

use std::time::{Duration, Instant};

use tombolo_nfs_tests::client::{Expect, mode};
use tombolo_nfs_tests::place::{
    Place, assert_around, assert_one_of, assert_unchanged, on_each, removed_and_open,
};
use tombolo_wire_nfs3::{Reply, Status};

#[test]
fn remove_takes_a_name_away() {
    on_each(|place| {
        let file = place.file("file", b"data");
        place.nfs.link(&file, &place.root, b"again").done();
        let before = place.attr(&place.root);
        let wcc = place.nfs.remove(&place.root, b"file").done();
        assert_around(place, &place.root, &before, &wcc);
        assert_eq!(place.names(), ["again"]);
        assert_eq!((place.attr(&file).nlink, place.contents(&file)), (1, b"data".to_vec()));
        place.nfs.remove(&place.root, b"again").done();
        place.nfs.getattr(&file).failed(Status::Stale);
        place.nfs.read(&file, 0, 4).failed(Status::Stale);
        let wcc = place.nfs.remove(&place.root, b"again").failed(Status::NoEnt);
        assert_unchanged(place, &place.root, &wcc);
    });
}

/// The server keeps files open between calls; one that is gone takes no space for that.
#[test]
fn a_removed_file_gives_its_space_back() {
    let place = Place::on_host();
    let tree = place.on_disk("").expect("on the host");
    let open_and_gone = || removed_and_open(&tree);
    let remove = || _ = place.nfs.remove(&place.root, b"file").done();
    let replace = || _ = place.nfs.rename(&place.root, b"new", &place.root, b"file").done();
    for (is_read, go) in [(true, &remove as &dyn Fn()), (false, &remove), (true, &replace), (false, &replace)]
    {
        std::fs::write(tree.join("file"), [7; 100_000]).expect("a file");
        std::fs::write(tree.join("new"), b"").expect("a file");
        let file = place.nfs.lookup(&place.root, b"file").done().handle;
        if is_read {
            place.nfs.read(&file, 0, 10).done();
        }
        go();
        let begun = Instant::now();
        while !open_and_gone().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", open_and_gone());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn remove_of_a_directory_is_refused() {
    on_each(|place| {
        place.dir("dir");
        match place.nfs.remove(&place.root, b"dir") {
            Reply::Ok(_) => panic!("a directory was removed"),
            // Linux says the one, POSIX the other.
            Reply::Failed(status, wcc) => {
                assert_one_of(&status, &[Status::IsDir, Status::Perm]);
                assert_unchanged(place, &place.root, &wcc);
            }
        }
        let file = place.file("file", b"");
        place.nfs.remove(&file, b"x").failed(Status::NotDir);
    });
}

#[test]
fn remove_of_a_link_leaves_what_it_leads_to() {
    on_each(|place| {
        place.file("file", b"data");
        place.nfs.symlink(&place.root, b"link", b"file", mode(0o777)).done();
        place.nfs.remove(&place.root, b"link").done();
        assert_eq!(place.names(), ["file"]);
    });
}

#[test]
fn rmdir_removes_an_empty_directory_and_nothing_else() {
    on_each(|place| {
        let dir = place.dir("dir");
        place.file_in(&dir, "inner", b"");
        place.file("file", b"");
        for (name, status) in
            [(&b"dir"[..], Status::NotEmpty), (b"file", Status::NotDir), (b"nothing", Status::NoEnt)]
        {
            let wcc = place.nfs.rmdir(&place.root, name).failed(status);
            assert_unchanged(place, &place.root, &wcc);
        }
        place.nfs.remove(&dir, b"inner").done();
        let before = place.attr(&place.root);
        let wcc = place.nfs.rmdir(&place.root, b"dir").done();
        assert_around(place, &place.root, &before, &wcc);
        assert_eq!(place.names(), ["file"]);
        place.nfs.getattr(&dir).failed(Status::Stale);
        place.nfs.mkdir(&dir, b"late", mode(0o755)).failed(Status::Stale);
    });
}

#[test]
fn rename_moves_and_replaces() {
    on_each(|place| {
        let (file, dir, old) = (place.file("file", b"new"), place.dir("dir"), place.file("other", b""));
        place.nfs.rename(&place.root, b"other", &dir, b"taken").done();
        let (from, to) = (place.attr(&place.root), place.attr(&dir));
        let ok = place.nfs.rename(&place.root, b"file", &dir, b"taken").done();
        assert_around(place, &place.root, &from, &ok.from_dir);
        assert_around(place, &dir, &to, &ok.to_dir);
        assert_eq!(place.nfs.lookup(&dir, b"taken").done().handle, file, "the handle goes along");
        assert_eq!(place.contents(&file), b"new");
        place.nfs.getattr(&old).failed(Status::Stale);
        place.nfs.rename(&dir, b"taken", &dir, b"taken").done();
        assert_eq!(place.contents(&file), b"new", "renamed to itself");
    });
}

#[test]
fn rename_refuses_what_makes_no_sense() {
    on_each(|place| {
        let (file, dir) = (place.file("file", b""), place.dir("dir"));
        let full = place.nfs.mkdir(&place.root, b"full", mode(0o755)).done().handle();
        place.file_in(&full, "inner", b"");
        let refused = |from: &[u8], to_dir, to: &[u8], statuses: &[Status]| match place.nfs.rename(
            &place.root,
            from,
            to_dir,
            to,
        ) {
            Reply::Ok(_) => panic!("{} became {}", from.escape_ascii(), to.escape_ascii()),
            Reply::Failed(status, wcc) => {
                assert_one_of(&status, statuses);
                assert_unchanged(place, &place.root, &wcc.from_dir);
                assert_unchanged(place, to_dir, &wcc.to_dir);
            }
        };
        let root = &place.root;
        refused(b"nothing", root, b"new", &[Status::NoEnt]);
        // RFC 1813 §3.3.14: of different kinds, or a directory with entries: EXIST; Linux is more exact.
        refused(b"file", root, b"dir", &[Status::Exist, Status::IsDir]);
        refused(b"dir", root, b"file", &[Status::Exist, Status::NotDir]);
        refused(b"dir", root, b"full", &[Status::Exist, Status::NotEmpty]);
        refused(b"dir", &dir, b"inner", &[Status::Inval]);
        refused(b"file", &file, b"inner", &[Status::NotDir]);
        assert_eq!(place.names(), ["dir", "file", "full"]);
    });
}
