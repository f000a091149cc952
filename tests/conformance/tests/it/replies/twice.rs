//! A layer that sends every change twice, as a client that lost the first reply, and compares both answers.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tombolo_core::fs::{
    Attr, Change, Created, Entry, File, FileSystem, Locks, Made, Ranges, Renamed, Write, Written, Xattrs,
};
use tombolo_core::{Answer, Ctx, Error, KeyProperties, RequestKey, Result};
use tombolo_mem::Source;

pub struct Twice(pub Arc<dyn FileSystem>);

/// Comparison of two replies, and release of the second one's resources.
trait Reply: Debug + Send + 'static {
    fn same(&self, other: &Self) -> bool;
    fn give_back(&self, _fs: &dyn FileSystem, _cx: &Ctx) {}
}

impl Reply for () {
    fn same(&self, _: &Self) -> bool {
        true
    }
}

impl Reply for Change {
    fn same(&self, other: &Self) -> bool {
        self.after.is_some() == other.after.is_some()
    }
}

impl Reply for Renamed {
    fn same(&self, other: &Self) -> bool {
        self.from_dir.same(&other.from_dir) && self.to_dir.same(&other.to_dir)
    }
}

impl Reply for Written {
    fn same(&self, other: &Self) -> bool {
        (self.count, self.stability) == (other.count, other.stability) && self.file.same(&other.file)
    }
}

/// Clears the attributes that change by themselves: blocks, as a host frees preallocated ones, and the access
/// time.
fn lasting(attr: &Attr) -> Attr {
    Attr { blocks: 0, atime: attr.mtime, ..*attr }
}

impl Reply for (Attr, Change) {
    fn same(&self, other: &Self) -> bool {
        lasting(&self.0) == lasting(&other.0) && self.1.same(&other.1)
    }
}

impl Reply for Made {
    fn same(&self, other: &Self) -> bool {
        lasting(&self.entry.attr) == lasting(&other.entry.attr) && self.dir.same(&other.dir)
    }

    fn give_back(&self, fs: &dyn FileSystem, cx: &Ctx) {
        fs.forget(cx, &[(self.entry.node, 1)]);
    }
}

impl Reply for Created {
    fn same(&self, other: &Self) -> bool {
        let what =
            |entry: &Entry| (entry.attr.fsid, entry.attr.fileid, entry.attr.generation, entry.attr.size);
        what(&self.entry) == what(&other.entry) && self.dir.same(&other.dir)
    }

    fn give_back(&self, fs: &dyn FileSystem, cx: &Ctx) {
        fs.release(cx, File { node: self.entry.node, open: self.open });
        fs.forget(cx, &[(self.entry.node, 1)]);
    }
}

/// Returns `true` for transient errors, after which the second request is executed with any outcome.
fn is_passing(error: &Error) -> bool {
    matches!(error, Error::WouldBlock | Error::Busy | Error::Interrupted | Error::TimedOut)
}

fn settle<R: Reply>(fs: &dyn FileSystem, cx: &Ctx, first: Result<R>, second: &Result<R>) -> Result<R> {
    match (&first, second) {
        (Ok(one), Ok(other)) => {
            assert!(one.same(other), "answered {one:?}, and the second time {other:?}");
            other.give_back(fs, cx);
        }
        (Err(error), _) if is_passing(error) => {}
        (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string()),
        _ => panic!("answered {first:?}, and the second time {second:?}"),
    }
    first
}

impl Twice {
    fn twice<R: Reply>(&self, cx: &Ctx, send: impl Fn(&dyn FileSystem, &Ctx) -> Answer<R>) -> Answer<R> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let properties = KeyProperties::empty();
        let key =
            RequestKey { client: 1.into(), key: NEXT.fetch_add(1, Ordering::Relaxed).into(), properties };
        let keyed = Ctx { key: Some(key), ..cx.clone() };
        // If the first answer pends, the second request is sent meanwhile.
        let (first, second) = (send(&*self.0, &keyed), send(&*self.0, &keyed));
        let (fs, cx) = (self.0.clone(), cx.clone());
        match (first, second) {
            (Answer::Done(first), Answer::Done(second)) => settle(&*fs, &cx, first, &second).into(),
            (first, second) => Answer::later(async move {
                let first = first.resolve().await;
                let second = second.resolve().await;
                settle(&*fs, &cx, first, &second)
            }),
        }
    }
}

impl FileSystem for Twice {
    tombolo_core::forward!(to self.0;
        profile lookup forget getattr access readlink create_unnamed open release flush fsync read readdir
        statfs syncfs persistent_handles changes versions
    );
    tombolo_core::forward!(with self.twice; setattr create mkdir symlink mknod link unlink rmdir rename);
    tombolo_core::forward!(offer self.0; xattrs locks ranges);

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        self.twice(cx, |fs, cx| fs.write(cx, file, how, from.clone()))
    }
}

impl Xattrs for Twice {
    tombolo_core::forward!(to self.0; get list);
    tombolo_core::forward!(with self.twice; set remove);
}

impl Locks for Twice {
    tombolo_core::forward!(to self.0; test);
    tombolo_core::forward!(with self.twice; lock unlock);
}

impl Ranges for Twice {
    tombolo_core::forward!(to self.0; seek copy);
    tombolo_core::forward!(with self.twice; allocate);
}
