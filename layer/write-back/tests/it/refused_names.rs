//! Names that the origin refuses: the rest of their nodes arrives, and nothing stays hidden for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tombolo_core::fs::{
    Entry, Export, FileSystem, Made, Mode, Name, NodeId, Op, RenameFlags, Renamed, SetAttr,
};
use tombolo_core::{Answer, Ctx, Error, forward};
use tombolo_layer_write_back::Options;
use tombolo_test_support::{Session, until, wrapped};

use crate::refused::{refuse, refusing};
use crate::shown::{assert_contents, hidden, put_named, rename};
use crate::world::{Origin, Proxy, on_request};

/// A session of an origin that refuses names with a colon, and moves of such names, while the switch is on.
struct PickySession(Arc<dyn FileSystem>, Arc<AtomicBool>, fn() -> Error);

/// Puts such an origin's behaviour over an export.
fn picky_over(inner: Arc<dyn Export>, is_on: Arc<AtomicBool>, error: fn() -> Error) -> Arc<dyn Export> {
    wrapped(inner, move |session| PickySession(session, is_on.clone(), error))
}

impl PickySession {
    fn check<T: Send + 'static>(
        &self,
        _: &Ctx,
        (_, name): (NodeId, Name<'_>),
        ask: impl FnOnce(&dyn FileSystem) -> Answer<T>,
    ) -> Answer<T> {
        match self.1.load(Ordering::Relaxed) && name.as_bytes().contains(&b':') {
            true => Answer::err(self.2()),
            false => ask(&*self.0),
        }
    }
}

impl FileSystem for PickySession {
    forward!(to self.0; getattr setattr access readlink create_unnamed unlink rmdir open flush read write fsync
        readdir statfs syncfs forget release profile persistent_handles xattrs);
    forward!(named self.check; create mkdir symlink mknod);

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        match self.0.lookup(cx, parent, name).wait() {
            Err(Error::NotFound) if matches!(self.2(), Error::InvalidArgument | Error::NameTooLong) => {
                self.check(cx, (parent, name), |_| Answer::err(Error::NotFound))
            }
            found => found.map_or_else(Answer::err, Answer::ok),
        }
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        self.check(cx, (parent, name), |fs| fs.link(cx, node, parent, name))
    }

    fn rename(
        &self,
        cx: &Ctx,
        from_parent: NodeId,
        from: Name<'_>,
        to_parent: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Answer<Renamed> {
        self.check(cx, (from_parent, from), |_| {
            self.check(cx, (to_parent, to), |fs| fs.rename(cx, from_parent, from, to_parent, to, flags))
        })
    }
}

/// Returns an origin that refuses names with a colon, with the switch for that, off.
fn picky(error: fn() -> Error) -> (Origin, Arc<AtomicBool>) {
    let is_on = Arc::new(AtomicBool::new(false));
    (Origin::with(|inner| picky_over(inner, is_on.clone(), error)), is_on)
}

/// Flushes, which fails as the origin refuses something, and asserts that nothing else waits.
fn flush_refused(proxy: &Proxy) {
    let refused = format!("{:?}", proxy.write_back.flush().expect_err("refused"));
    assert!(refused.contains("the origin refuses what was done to"), "{refused}");
    let status = proxy.write_back.status();
    assert_eq!(status.settled, status.change, "{refused}");
}

/// Ends the refusals, and asserts that everything arrives.
fn allow(is_picky: &AtomicBool, proxy: &Proxy, origin: &Origin) {
    is_picky.store(false, Ordering::Relaxed);
    flush_all(proxy, origin);
}

/// Asserts that the origin accepts everything, and has no hidden name any more.
fn flush_all(proxy: &Proxy, origin: &Origin) {
    proxy.write_back.flush().expect("now it is allowed");
    let status = proxy.write_back.status();
    assert_eq!((status.refused, status.is_clean, status.conflicts), (0, true, 0));
    assert_eq!(hidden(&origin.direct), [""; 0]);
}

#[test]
fn name_that_the_origin_cannot_have_delays_nothing() {
    let errors: [fn() -> Error; 4] =
        [|| Error::InvalidArgument, || Error::NameTooLong, || Error::CrossDevice, || Error::TooManyLinks];
    for error in errors {
        let (mut origin, is_picky) = picky(error);
        for dir in ["dir", "sub"] {
            origin.direct.mkdir(dir).expect("made");
        }
        let earlier = ["old", "dir/file", "file", "sub/file"];
        put_named(&origin.direct, &earlier);
        let proxy = origin.proxy();
        proxy.mkdir("new").expect("made");
        for (from, to) in [("old", "o:ld"), ("dir", "d:ir"), ("file", "new/f:ile"), ("sub", "new/s:ub")] {
            rename(&proxy, from, to);
        }
        proxy.put("n:ew", b"new");
        proxy.mkdir("m:ade").expect("made");
        proxy.put("m:ade/file", b"file");
        proxy.put("other", b"other");
        is_picky.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            flush_refused(&proxy);
            assert_eq!(origin.direct.contents("other"), b"other");
            // Earlier files keep their former names.
            for file in earlier {
                assert_eq!(origin.direct.contents(file), file.as_bytes(), "{}", error());
            }
        }
        assert_eq!(proxy.write_back.status().refused, 6, "{}", error());
        let proxy = origin.restarted(proxy);
        flush_refused(&proxy);
        assert_eq!(proxy.contents("o:ld"), b"old");
        allow(&is_picky, &proxy, &origin);
        let moved = [("d:ir/file", "dir/file"), ("new/f:ile", "file"), ("new/s:ub/file", "sub/file")];
        assert_contents(&origin.direct, &moved);
        assert_contents(&origin.direct, &[("o:ld", "old"), ("n:ew", "new"), ("m:ade/file", "file")]);
    }
}

#[test]
fn hidden_node_returns_if_its_replacement_is_refused() {
    let (origin, is_picky) = picky(|| Error::NotPermitted);
    origin.direct.mkdir("dir").expect("made");
    // Names with a colon cannot be moved.
    put_named(&origin.direct, &["r:ing", "ring", "n:ew", "open", "o:ther", "dir/file"]);
    let proxy = origin.proxy();
    proxy.rename("r:ing", "ring", RenameFlags::EXCHANGE).expect("exchanged");
    let file = proxy.writer("open");
    rename(&proxy, "n:ew", "open");
    proxy.unlink("dir/file").expect("removed");
    proxy.rmdir("dir").expect("removed");
    rename(&proxy, "o:ther", "dir");
    is_picky.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        flush_refused(&proxy);
        assert_eq!(hidden(&origin.direct), [""; 0]);
        for name in ["r:ing", "ring", "n:ew", "open", "o:ther"] {
            assert_eq!(origin.direct.contents(name), name.as_bytes());
        }
        assert!(origin.direct.lookup("dir").is_ok());
    }
    assert_eq!(proxy.read_all(file, 0, usize::MAX), b"open");
    proxy.release(file);
    allow(&is_picky, &proxy, &origin);
    let moved = [("r:ing", "ring"), ("ring", "r:ing"), ("open", "n:ew"), ("dir", "o:ther")];
    assert_contents(&origin.direct, &moved);
}

/// Asserts that files are not sent again of which some names are refused, while each of these is tried again.
fn assert_sent_once(origin: &Origin, proxy: &Proxy, tried: Op, names: u64) {
    let sent = ["create", "write", "fsync", "setattr"].map(|op| origin.asked(op));
    let before = origin.asked(&format!("{tried:?}").to_lowercase());
    for _ in 0..3 {
        flush_refused(proxy);
    }
    assert_eq!(["create", "write", "fsync", "setattr"].map(|op| origin.asked(op)), sent);
    assert!(origin.asked(&format!("{tried:?}").to_lowercase()) >= before + 3 * names);
}

#[test]
fn refused_name_does_not_resend_its_file() {
    let (mut origin, is_picky) = picky(|| Error::NotPermitted);
    origin.direct.put("old", b"old");
    is_picky.store(true, Ordering::Relaxed);
    let proxy = origin.proxy();
    proxy.mkdir("dir").expect("made");
    proxy.put("dir/file", b"file");
    proxy.put("old", b"new");
    for (file, link) in [("dir/file", "dir/l:ink"), ("old", "dir/o:ld")] {
        proxy.link(file, link).expect("linked");
    }
    flush_refused(&proxy);
    assert_contents(&origin.direct, &[("dir/file", "file"), ("old", "new")]);
    let status = proxy.write_back.status();
    assert_eq!((status.refused, status.dirty_bytes), (2, 0));
    assert_sent_once(&origin, &proxy, Op::Link, 2);
    let shown = |at: &Session| {
        let files = [("dir/file", "file"), ("dir/l:ink", "file"), ("old", "new"), ("dir/o:ld", "new")];
        assert_contents(at, &files);
        files.iter().for_each(|(path, _)| assert_eq!(at.attr(*path).nlink, 2, "{path}"));
    };
    shown(&proxy);
    let proxy = origin.restarted(proxy);
    flush_refused(&proxy);
    shown(&proxy.session);
    allow(&is_picky, &proxy, &origin);
    shown(&origin.direct);
}

#[test]
fn origin_without_links_gets_file_under_allowed_name() {
    let [refuses_links, is_picky] = [(); 2].map(|()| Arc::new(AtomicBool::new(true)));
    let origin = Origin::with(|inner| {
        let inner = refuse(inner, Op::Link, refuses_links.clone());
        picky_over(inner, is_picky.clone(), || Error::NotPermitted)
    });
    origin.direct.put("old", b"old");
    let proxy = origin.proxy();
    proxy.put("n:ew", b"new");
    for (file, link) in [("n:ew", "new"), ("old", "renamed")] {
        proxy.link(file, link).expect("linked");
    }
    rename(&proxy, "old", "o:ld");
    for _ in 0..2 {
        flush_refused(&proxy);
        assert_contents(&origin.direct, &[("new", "new"), ("renamed", "old")]);
    }
    refuses_links.store(false, Ordering::Relaxed);
    allow(&is_picky, &proxy, &origin);
    assert_eq!(origin.direct.contents("o:ld"), b"old");
}

#[test]
fn file_without_any_allowed_name_is_sent_once() {
    let (mut origin, is_picky) = picky(|| Error::NotPermitted);
    let proxy = origin.proxy();
    proxy.put("n:ew", &[1; 100_000]);
    is_picky.store(true, Ordering::Relaxed);
    flush_refused(&proxy);
    assert_sent_once(&origin, &proxy, Op::Rename, 1);
    assert_eq!(hidden(&origin.direct).len(), 1);
    assert_eq!(proxy.contents("n:ew"), [1; 100_000]);
    let proxy = origin.restarted(proxy);
    assert_eq!(proxy.contents("n:ew"), [1; 100_000]);
    // Only what is written later is sent.
    proxy.overwrite("n:ew", 0, &[2; 10]);
    flush_refused(&proxy);
    allow(&is_picky, &proxy, &origin);
    assert_eq!(origin.direct.contents("n:ew"), [[2; 10].as_slice(), &[1; 99_990]].concat());
}

#[test]
fn other_names_arrive_beside_a_refused_one() {
    let (origin, is_picky) = picky(|| Error::NotPermitted);
    put_named(&origin.direct, &["a", "b"]);
    let proxy = origin.proxy();
    // `b` gets the name of `a`, but only once that has moved, and a refused one at once.
    proxy.link("b", "l:ink").expect("linked");
    rename(&proxy, "a", "c");
    rename(&proxy, "b", "a");
    proxy.mkdir("dir").expect("made");
    rename(&proxy, "dir", "d:ir");
    is_picky.store(true, Ordering::Relaxed);
    flush_refused(&proxy);
    assert_contents(&origin.direct, &[("c", "a"), ("a", "b")]);
    allow(&is_picky, &proxy, &origin);
    assert_eq!(origin.direct.contents("l:ink"), b"b");
}

#[test]
fn swap_beside_a_refused_name_keeps_time_of_root() {
    let (origin, is_picky) = picky(|| Error::NotPermitted);
    for dir in ["one", "other"] {
        origin.direct.mkdir(dir).expect("made");
        origin.direct.put(&format!("{dir}/file"), dir.as_bytes());
    }
    let proxy = origin.proxy();
    proxy.put("n:ew", b"new");
    is_picky.store(true, Ordering::Relaxed);
    flush_refused(&proxy);
    let time = |at: &Session| at.attr("").mtime;
    let before = time(&origin.direct);
    // One of the two gets a hidden name in the root meanwhile.
    proxy.rename("one/file", "other/file", RenameFlags::EXCHANGE).expect("exchanged");
    flush_refused(&proxy);
    assert_eq!(origin.direct.contents("one/file"), b"other");
    assert_eq!([time(&origin.direct), time(&proxy)], [before; 2]);
    allow(&is_picky, &proxy, &origin);
}

#[test]
fn file_moved_out_of_a_refused_directory_arrives() {
    let (mut origin, refuses) = refusing(Op::Mkdir);
    let proxy = origin.proxy();
    proxy.mkdir("made").expect("made");
    for name in ["moved", "renamed", "kept"] {
        proxy.put(&format!("made/{name}"), name.as_bytes());
    }
    flush_refused(&proxy);
    rename(&proxy, "made/moved", "moved");
    rename(&proxy, "made/renamed", "made/other");
    flush_refused(&proxy);
    assert_eq!(origin.direct.contents("moved"), b"moved");
    assert_eq!(hidden(&origin.direct), [""; 0]);
    let proxy = origin.restarted(proxy);
    flush_refused(&proxy);
    allow(&refuses, &proxy, &origin);
    assert_eq!(origin.direct.names("made"), ["kept", "other"]);
    let files = [("made/kept", "kept"), ("made/other", "renamed"), ("moved", "moved")];
    assert_contents(&origin.direct, &files);
}

#[test]
fn new_file_with_refused_name_in_new_directory_arrives() {
    for error in [|| Error::InvalidArgument, || Error::NameTooLong, (|| Error::NotPermitted) as fn() -> _] {
        let (origin, is_picky) = picky(error);
        is_picky.store(true, Ordering::Relaxed);
        let proxy = origin.proxy();
        proxy.mkdir("new").expect("made");
        put_named(&proxy, &["new/l:inked", "new/m:oved", "new/r:emoved"]);
        for _ in 0..2 {
            flush_refused(&proxy);
        }
        proxy.link("new/l:inked", "new/good").expect("linked");
        rename(&proxy, "new/m:oved", "new/moved");
        proxy.unlink("new/r:emoved").expect("removed");
        flush_refused(&proxy);
        assert_contents(&origin.direct, &[("new/good", "new/l:inked"), ("new/moved", "new/m:oved")]);
        assert_eq!(proxy.write_back.status().refused, 1);
        proxy.unlink("new/l:inked").expect("removed");
        flush_all(&proxy, &origin);
        assert_eq!(origin.direct.names("new"), ["good", "moved"]);
    }
}

#[test]
fn writer_of_a_file_with_refused_name_has_space() {
    let (origin, is_picky) = picky(|| Error::NotPermitted);
    is_picky.store(true, Ordering::Relaxed);
    let proxy = origin.proxy_with(Options { dirty_bytes_max: 1000, ..on_request() });
    proxy.put("n:ew", &[1; 900]);
    flush_refused(&proxy);
    let file = proxy.writer("n:ew");
    for index in 0..4 {
        proxy.write(file, index * 900, &[2; 900]).expect("the origin receives the data before");
    }
    proxy.release(file);
    allow(&is_picky, &proxy, &origin);
    assert_eq!(origin.direct.contents("n:ew"), [2; 3600]);
}

#[test]
fn refused_owners_are_not_tried_with_each_batch() {
    let (origin, proxy, user) = squashing();
    drop((proxy, user));
    let prompt = Duration::from_millis(1);
    let proxy = origin.proxy_with(Options { idle: prompt, delay_max: prompt, ..Options::default() });
    let mut asked = Vec::new();
    for batch in 0..8 {
        let before = origin.asked("setattr");
        let file = format!("file-{batch}");
        proxy.put(&file, b"data");
        proxy
            .setattr(&file, SetAttr { uid: Some(5), mode: Some(Mode::new(0o700)), ..SetAttr::default() })
            .expect("answered");
        let change = proxy.write_back.status().change;
        until("all but that is there", || proxy.write_back.status().at_origin >= change);
        asked.push(origin.asked("setattr") - before);
    }
    assert_eq!(proxy.write_back.status().refused, 8);
    assert!(asked.iter().all(|count| *count <= 16), "{asked:?}");
}

/// Returns an origin that squashes the superuser, with a session of its proxy for user 7.
fn squashing() -> (Origin, Proxy, Session) {
    let origin = Origin::squashing(&["0:65534", "7:7"], 65533);
    origin.direct.chmod("", 0o777).expect("answered");
    let proxy = origin.proxy();
    let user = proxy.by(7);
    (origin, proxy, user)
}

#[test]
fn mode_that_permits_a_refused_change_has_it_retried() {
    let (origin, proxy, at) = squashing();
    let direct = &origin.direct;
    for dir in ["dir", "dir/sub"] {
        direct.mkdir(dir).expect("made");
        direct.put(&format!("{dir}/file"), b"old");
    }
    for path in ["dir/file", "dir/sub/file", "dir/sub", "dir"] {
        direct.chown(path, 7, 7).expect("answered");
        direct.chmod(path, if path.ends_with("file") { 0o444 } else { 0o555 }).expect("answered");
    }
    for path in ["dir", "dir/sub", "dir/sub/file"] {
        at.chmod(path, 0o755).expect("answered");
    }
    at.put("dir/new", b"new");
    at.put("dir/sub/file", b"written");
    rename(&at, "dir/file", "dir/sub/moved");
    proxy.write_back.flush().expect("the modes permit it");
    let files = [("dir/new", "new"), ("dir/sub/file", "written"), ("dir/sub/moved", "old")];
    assert_contents(direct, &files);
    assert_eq!(proxy.write_back.status().attempts_ended, 1);
}
