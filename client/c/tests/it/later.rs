//! Asynchronous queries.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tombolo::{Stat, tombolo_stat_async};

use crate::common::{Opened, Served, c};

const PATIENCE: Duration = Duration::from_secs(60);
const LATER: c_int = 0;
const DONE: c_int = 1;

type Told = (ThreadId, c_int, Option<Stat>);

unsafe extern "C" fn tell(context: *mut c_void, result: c_int, stat: *const Stat) {
    // SAFETY: the box that `ask` passed, for its only call.
    let sender = unsafe { Box::from_raw(context.cast::<Sender<Told>>()) };
    // SAFETY: null, or attributes until this returns.
    let stat = unsafe { stat.as_ref() }.copied();
    let _ = sender.send((thread::current().id(), result, stat));
}

fn ask(tree: &Opened, path: &str, flags: c_uint) -> (c_int, Receiver<Told>) {
    let (sender, told) = channel::<Told>();
    let context = Box::into_raw(Box::new(sender));
    // SAFETY: an open tree, a string, and a function that takes the box on any thread.
    let result = unsafe { tombolo_stat_async(tree.0, c(path).as_ptr(), flags, Some(tell), context.cast()) };
    if result < 0 {
        // SAFETY: the callback was not called, and never will be.
        drop(unsafe { Box::from_raw(context) });
    }
    (result, told)
}

#[test]
fn callback_is_called_once_and_immediately_for_cached_answers() {
    let served = Served::new();
    let tree = served.open();
    for (path, flags) in [("a/link", 0), ("a/link", 1), ("none", 0)] {
        let (result, told) = ask(&tree, path, flags);
        assert_eq!(result, LATER, "{path}");
        let (thread, number, stat) = told.recv_timeout(PATIENCE).expect("called");
        assert_ne!(thread, thread::current().id());
        assert!(told.recv().is_err(), "once");
        let expected = if flags == 0 { tree.stat(path) } else { tree.lstat(path) };
        assert_eq!(if number == 0 { Ok(stat.unwrap()) } else { Err(number) }, expected);
        assert_eq!(stat.is_some(), number == 0);
        // Not all first answers of a session are cached.
        let again = if flags == 0 { tree.stat(path) } else { tree.lstat(path) };
        assert_eq!(again, expected);
        if tree.counts().from_memory == 0 {
            tombolo_skip::skip!("this user or file system cannot watch the host's changes");
        }
        let (result, told) = ask(&tree, path, flags);
        assert_eq!(result, DONE, "{path}");
        assert_eq!(
            told.try_recv().expect("called before it returned"),
            (thread::current().id(), number, stat)
        );
    }
}

#[test]
fn it_is_not_called_for_what_is_invalid() {
    let served = Served::new();
    let tree = served.open();
    for (path, flags, errno) in [("", 0, libc::ENOENT), ("a", 2, libc::EINVAL)] {
        let (result, told) = ask(&tree, path, flags);
        assert_eq!(result, -errno);
        assert!(told.recv().is_err());
    }
}

#[test]
fn closing_a_tree_calls_all_pending_callbacks() {
    let served = Served::new();
    for _ in 0..20 {
        let tree = served.open();
        let asked: Vec<_> = (0..50).map(|number| ask(&tree, &format!("none-{number}"), 0)).collect();
        drop(tree);
        for (result, told) in asked {
            assert_eq!(result, LATER);
            let (_, number, stat) = told.try_recv().expect("called before it was closed");
            assert!([-libc::ENOENT, -libc::ECANCELED].contains(&number), "{number}");
            assert!(stat.is_none());
        }
    }
}

#[test]
fn a_callback_may_ask_and_close_the_tree() {
    unsafe extern "C" fn ask_and_close(context: *mut c_void, result: c_int, _: *const Stat) {
        // SAFETY: the box passed below, for its only call.
        let (tree, sender) =
            *unsafe { Box::from_raw(context.cast::<(Opened, Sender<(c_int, Result<u64, c_int>)>)>()) };
        let again = tree.stat("a/b/file").map(|stat| stat.size);
        drop(tree);
        let _ = sender.send((result, again));
    }
    let served = Served::new();
    let tree = served.open();
    let pointer = tree.0;
    let (sender, told) = channel::<(c_int, Result<u64, c_int>)>();
    let context = Box::into_raw(Box::new((tree, sender)));
    // SAFETY: an open tree, a string, and a function that takes the box on any thread.
    let result =
        unsafe { tombolo_stat_async(pointer, c"none".as_ptr(), 0, Some(ask_and_close), context.cast()) };
    assert_eq!(result, LATER);
    assert_eq!(told.recv_timeout(PATIENCE), Ok((-libc::ENOENT, Ok(7))));
    assert_ne!(pointer, ptr::null_mut());
}
