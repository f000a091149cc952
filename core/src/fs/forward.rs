//! Forwarding of waist methods.

use crate::{Answer, Error};

/// Calls an operation of an optional group (such as [`Xattrs`](crate::fs::Xattrs)). Fails with
/// [`Error::NotSupported`] if `group` is `None`: the underlying file system lacks the group, which a layer
/// should offer only if the underlying file system does.
#[inline]
pub fn within<G: ?Sized, T>(group: Option<&G>, call: impl FnOnce(&G) -> Answer<T>) -> Answer<T> {
    group.map_or_else(|| Answer::err(Error::NotSupported), call)
}

/// Forwards the named methods of [`FileSystem`](crate::fs::FileSystem) and its optional groups.
///
/// `forward!(to self.inner; lookup getattr)` calls the same method of the field `inner`. `forward!(through
/// self.call; lookup getattr)` calls `self.call(Op::Lookup, |fs| fs.lookup(...))`, and so on, for a layer
/// that wraps each call in the same way; `with self.call` calls `self.call(cx, |fs, cx| fs.lookup(cx, ...))`,
/// for a layer that forwards another context; `later self.call` does so with owned copies of the arguments,
/// converted by `keep` and `lend`, methods that the layer defines for the arguments' types. `at self.call`
/// calls `self.call(node, |fs, node| fs.getattr(cx, node, ...))`, for a layer that translates the first
/// argument, a node or a file. `named self.call` calls `self.call(cx, (parent, name), |fs| fs.mkdir(cx,
/// parent, name, ...))`, for methods that begin with the name of an entry. `about self.call` does as `later`,
/// and calls `self.call(cx, node, move |fs, cx| ...)` with the node of the first argument. `now self.call`
/// answers at once, with the result of the method of the same name of `self.call()`.
///
/// A group's method is forwarded to the same group of the file system, if it has one. `forward!(to
/// self.inner; xattrs)` returns the group of `inner` itself, `forward!(offer self.inner; xattrs)` that of the
/// layer, if `inner` has one, and `forward!(own self; xattrs)` that of `self` in any case.
#[macro_export]
macro_rules! forward {
    ($way:ident $me:ident.$inner:tt; $($method:ident)+) => { $($crate::forward!(@$method $way $me $inner);)+ };
    (own $me:ident; $($group:ident)+) => { $($crate::forward!(@$group own $me $me);)+ };

    (@lookup $($to:tt)+) => { $crate::forward!($($to)+ Lookup lookup(parent: $crate::fs::NodeId, name: $crate::fs::Name<'_>) -> $crate::fs::Entry); };
    (@getattr $($to:tt)+) => {
        $crate::forward!($($to)+ Getattr getattr(node: $crate::fs::NodeId, file: Option<$crate::fs::File>) -> $crate::fs::Attr);
    };
    (@setattr $($to:tt)+) => {
        $crate::forward!($($to)+ Setattr setattr(node: $crate::fs::NodeId, file: Option<$crate::fs::File>, set: &$crate::fs::SetAttr)
            -> ($crate::fs::Attr, $crate::fs::Change));
    };
    (@access $($to:tt)+) => { $crate::forward!($($to)+ Access access(node: $crate::fs::NodeId, mask: $crate::fs::AccessMask) -> ()); };
    (@readlink $($to:tt)+) => { $crate::forward!($($to)+ Readlink readlink(node: $crate::fs::NodeId) -> Vec<u8>); };
    (@create $($to:tt)+) => {
        $crate::forward!($($to)+ Create create(parent: $crate::fs::NodeId, name: $crate::fs::Name<'_>, how: &$crate::fs::Create)
            -> $crate::fs::Created);
    };
    (@create_unnamed $($to:tt)+) => {
        $crate::forward!($($to)+ CreateUnnamed create_unnamed(parent: $crate::fs::NodeId, how: &$crate::fs::Create) -> $crate::fs::Created);
    };
    (@mkdir $($to:tt)+) => {
        $crate::forward!($($to)+ Mkdir mkdir(parent: $crate::fs::NodeId, name: $crate::fs::Name<'_>, mode: $crate::fs::NewMode) -> $crate::fs::Made);
    };
    (@symlink $($to:tt)+) => {
        $crate::forward!($($to)+ Symlink symlink(parent: $crate::fs::NodeId, name: $crate::fs::Name<'_>, target: &[u8]) -> $crate::fs::Made);
    };
    (@mknod $($to:tt)+) => {
        $crate::forward!($($to)+ Mknod mknod(parent: $crate::fs::NodeId, name: $crate::fs::Name<'_>, file_type: $crate::fs::FileType,
            mode: $crate::fs::NewMode, rdev: $crate::fs::Device) -> $crate::fs::Made);
    };
    (@link $($to:tt)+) => {
        $crate::forward!($($to)+ Link link(node: $crate::fs::NodeId, parent: $crate::fs::NodeId, name: $crate::fs::Name<'_>) -> $crate::fs::Made);
    };
    (@unlink $($to:tt)+) => {
        $crate::forward!($($to)+ Unlink unlink(parent: $crate::fs::NodeId, name: $crate::fs::Name<'_>) -> $crate::fs::Change);
    };
    (@rmdir $($to:tt)+) => { $crate::forward!($($to)+ Rmdir rmdir(parent: $crate::fs::NodeId, name: $crate::fs::Name<'_>) -> $crate::fs::Change); };
    (@rename $($to:tt)+) => {
        $crate::forward!($($to)+ Rename rename(from_parent: $crate::fs::NodeId, from: $crate::fs::Name<'_>, to_parent: $crate::fs::NodeId,
            to: $crate::fs::Name<'_>, flags: $crate::fs::RenameFlags) -> $crate::fs::Renamed);
    };
    (@open $($to:tt)+) => { $crate::forward!($($to)+ Open open(node: $crate::fs::NodeId, flags: $crate::fs::OpenFlags) -> $crate::fs::Opened); };
    (@flush $($to:tt)+) => { $crate::forward!($($to)+ Flush flush(file: $crate::fs::File, owner: $crate::fs::LockOwner) -> ()); };
    (@fsync $($to:tt)+) => { $crate::forward!($($to)+ Fsync fsync(file: $crate::fs::File, what: $crate::fs::SyncScope) -> ()); };
    (@read $($to:tt)+) => {
        $crate::forward!($($to)+ Read read(file: $crate::fs::File, offset: u64, into: $crate::mem::Sink) -> $crate::fs::ReadDone);
    };
    (@write $($to:tt)+) => {
        $crate::forward!($($to)+ Write write(file: $crate::fs::File, how: &$crate::fs::Write, from: $crate::mem::Source) -> $crate::fs::Written);
    };
    (@readdir $($to:tt)+) => {
        $crate::forward!($($to)+ Readdir readdir(file: $crate::fs::File, cookie: $crate::fs::Cookie, page: $crate::fs::DirPage)
            -> $crate::fs::DirPage);
    };
    (@statfs $($to:tt)+) => { $crate::forward!($($to)+ Statfs statfs(node: $crate::fs::NodeId) -> $crate::fs::StatFs); };
    (@syncfs $($to:tt)+) => { $crate::forward!($($to)+ Syncfs syncfs() -> ()); };
    (@get $($to:tt)+) => {
        $crate::forward!($($to)+ in xattrs Getxattr get(node: $crate::fs::NodeId, name: $crate::fs::XattrName<'_>, limit_bytes: usize) -> Vec<u8>);
    };
    (@set $($to:tt)+) => {
        $crate::forward!($($to)+ in xattrs Setxattr set(node: $crate::fs::NodeId, name: $crate::fs::XattrName<'_>, value: &[u8],
            how: $crate::fs::XattrSet, kill_set_gid: bool) -> ());
    };
    (@list $($to:tt)+) => {
        $crate::forward!($($to)+ in xattrs Listxattr list(node: $crate::fs::NodeId, limit_bytes: usize) -> Vec<u8>);
    };
    (@remove $($to:tt)+) => {
        $crate::forward!($($to)+ in xattrs Removexattr remove(node: $crate::fs::NodeId, name: $crate::fs::XattrName<'_>) -> ());
    };
    (@test $($to:tt)+) => {
        $crate::forward!($($to)+ in locks TestLock test(file: $crate::fs::File, lock: &$crate::fs::Lock) -> Option<$crate::fs::Lock>);
    };
    (@lock $($to:tt)+) => {
        $crate::forward!($($to)+ in locks Lock lock(file: $crate::fs::File, lock: &$crate::fs::Lock, wait: bool) -> ());
    };
    (@unlock $($to:tt)+) => {
        $crate::forward!($($to)+ in locks Unlock unlock(file: $crate::fs::File, family: $crate::fs::LockFamily, range: $crate::fs::LockRange,
            owner: $crate::fs::LockOwner) -> ());
    };
    (@handle_of $($to:tt)+) => {
        $crate::forward!($($to)+ in persistent_handles HandleOf handle_of(node: $crate::fs::NodeId) -> $crate::fs::PersistentHandle);
    };
    (@resolve $($to:tt)+) => {
        $crate::forward!($($to)+ in persistent_handles Resolve resolve(handle: &$crate::fs::PersistentHandle) -> $crate::fs::Entry);
    };
    (@parent $($to:tt)+) => {
        $crate::forward!($($to)+ in persistent_handles Parent parent(node: $crate::fs::NodeId) -> $crate::fs::Entry);
    };
    (@node_by_number $($to:tt)+) => {
        $crate::forward!($($to)+ in persistent_handles Resolve node_by_number(node: $crate::fs::NodeId) -> $crate::fs::Entry);
    };
    (@record $($to:tt)+) => {
        $crate::forward!($($to)+ in persistent_handles HandleOf record(node: $crate::fs::NodeId) -> Vec<u8>);
    };
    (@recall $($to:tt)+) => {
        $crate::forward!($($to)+ in persistent_handles Resolve recall(node: $crate::fs::NodeId, record: &[u8]) -> ());
    };
    (@allocate $($to:tt)+) => {
        $crate::forward!($($to)+ in ranges Allocate allocate(file: $crate::fs::File, offset: u64, len: u64, mode: $crate::fs::AllocateMode) -> ());
    };
    (@seek $($to:tt)+) => {
        $crate::forward!($($to)+ in ranges Seek seek(file: $crate::fs::File, offset: u64, whence: $crate::fs::Whence) -> u64);
    };
    (@copy $($to:tt)+) => {
        $crate::forward!($($to)+ in ranges Copy copy(from: $crate::fs::File, from_offset: u64, to: $crate::fs::File, to_offset: u64, len: u64)
            -> u64);
    };
    (@lend $($to:tt)+) => {
        $crate::forward!($($to)+ in lending Read lend(handle: &$crate::fs::PersistentHandle, version: &$crate::fs::WeakAttr, offset: u64,
            into: $crate::mem::Sink) -> ());
    };
    (@xattrs $($to:tt)+) => { $crate::forward!($($to)+ xattrs Xattrs); };
    (@locks $($to:tt)+) => { $crate::forward!($($to)+ locks Locks); };
    (@persistent_handles $($to:tt)+) => { $crate::forward!($($to)+ persistent_handles PersistentHandles); };
    (@ranges $($to:tt)+) => { $crate::forward!($($to)+ ranges Ranges); };
    (@changes $($to:tt)+) => { $crate::forward!($($to)+ changes Changes); };
    (@versions $($to:tt)+) => { $crate::forward!($($to)+ versions Versions); };
    (@data_cache $($to:tt)+) => { $crate::forward!($($to)+ data_cache DataCache); };
    (@backing_files $($to:tt)+) => { $crate::forward!($($to)+ backing_files BackingFiles); };
    (@descriptors $($to:tt)+) => { $crate::forward!($($to)+ descriptors Descriptors); };
    (@digests $($to:tt)+) => { $crate::forward!($($to)+ digests Digests); };
    (@packing $($to:tt)+) => { $crate::forward!($($to)+ packing CompressedReads); };
    (@lending $($to:tt)+) => { $crate::forward!($($to)+ lending Lending); };
    (@profile to $me:ident $inner:tt) => {
        fn profile(&$me) -> $crate::fs::Profile { $me.$inner.profile() }
    };
    (@volume to $me:ident $inner:tt) => {
        fn volume(&$me) -> $crate::fs::Volume {
            $me.$inner.persistent_handles().map(|handles| handles.volume()).unwrap_or_default()
        }
    };
    (@forget to $me:ident $inner:tt) => {
        fn forget(&$me, cx: &$crate::Ctx, look_ups: &[($crate::fs::NodeId, u64)]) { $me.$inner.forget(cx, look_ups); }
    };
    (@is_prompt to $me:ident $inner:tt) => {
        fn is_prompt(&$me, file: $crate::fs::File) -> bool { $me.$inner.is_prompt(file) }
    };
    (@release to $me:ident $inner:tt) => {
        fn release(&$me, cx: &$crate::Ctx, file: $crate::fs::File) { $me.$inner.release(cx, file); }
    };

    (to $me:ident $inner:tt $op:ident $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        #[inline]
        fn $method(&$me, cx: &$crate::Ctx, $($argument: $kind),*) -> $crate::Answer<$answer> {
            $me.$inner.$method(cx, $($argument),*)
        }
    };
    (with $me:ident $call:ident $op:ident $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        fn $method(&$me, cx: &$crate::Ctx, $($argument: $kind),*) -> $crate::Answer<$answer> {
            $me.$call(cx, |fs, cx| fs.$method(cx, $($argument),*))
        }
    };
    (through $me:ident $call:ident $op:ident $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        #[inline]
        fn $method(&$me, cx: &$crate::Ctx, $($argument: $kind),*) -> $crate::Answer<$answer> {
            $me.$call($crate::fs::Op::$op, |fs| fs.$method(cx, $($argument),*))
        }
    };
    (at $me:ident $call:ident $op:ident $method:ident($place:ident: $place_kind:ty $(, $argument:ident: $kind:ty)*) -> $answer:ty) => {
        #[inline]
        fn $method(&$me, cx: &$crate::Ctx, $place: $place_kind $(, $argument: $kind)*) -> $crate::Answer<$answer> {
            $me.$call($place, |fs, $place| fs.$method(cx, $place $(, $argument)*))
        }
    };
    (named $me:ident $call:ident $op:ident $method:ident($parent:ident: $parent_kind:ty, $name:ident: $name_kind:ty
        $(, $argument:ident: $kind:ty)*) -> $answer:ty) => {
        fn $method(&$me, cx: &$crate::Ctx, $parent: $parent_kind, $name: $name_kind $(, $argument: $kind)*) -> $crate::Answer<$answer> {
            $me.$call(cx, ($parent, $name), |fs| fs.$method(cx, $parent, $name $(, $argument)*))
        }
    };
    (now $me:ident $call:ident $op:ident $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        fn $method(&$me, cx: &$crate::Ctx, $($argument: $kind),*) -> $crate::Answer<$answer> {
            $me.$call().$method(cx, $($argument),*).into()
        }
    };
    (later $me:ident $call:ident $op:ident $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        fn $method(&$me, cx: &$crate::Ctx, $($argument: $kind),*) -> $crate::Answer<$answer> {
            $(let $argument = $argument.keep();)*
            $me.$call(cx, move |fs, cx| fs.$method(cx, $($argument.lend()),*))
        }
    };
    (about $me:ident $call:ident $op:ident $method:ident($node:ident: $node_kind:ty $(, $argument:ident: $kind:ty)*) -> $answer:ty) => {
        fn $method(&$me, cx: &$crate::Ctx, $node: $node_kind $(, $argument: $kind)*) -> $crate::Answer<$answer> {
            $(let $argument = $argument.keep();)*
            $me.$call(cx, $node, move |fs, cx| fs.$method(cx, $node $(, $argument.lend())*))
        }
    };

    (to $me:ident $inner:tt in $group:ident $op:ident $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        fn $method(&$me, cx: &$crate::Ctx, $($argument: $kind),*) -> $crate::Answer<$answer> {
            $crate::fs::within($me.$inner.$group(), |group| group.$method(cx, $($argument),*))
        }
    };
    (with $me:ident $call:ident in $group:ident $op:ident $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        fn $method(&$me, cx: &$crate::Ctx, $($argument: $kind),*) -> $crate::Answer<$answer> {
            $me.$call(cx, |fs, cx| $crate::fs::within(fs.$group(), |group| group.$method(cx, $($argument),*)))
        }
    };
    (through $me:ident $call:ident in $group:ident $op:ident $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        fn $method(&$me, cx: &$crate::Ctx, $($argument: $kind),*) -> $crate::Answer<$answer> {
            $me.$call($crate::fs::Op::$op, |fs| $crate::fs::within(fs.$group(), |group| group.$method(cx, $($argument),*)))
        }
    };
    (at $me:ident $call:ident in $group:ident $op:ident $method:ident($place:ident: $place_kind:ty $(, $argument:ident: $kind:ty)*) -> $answer:ty) => {
        fn $method(&$me, cx: &$crate::Ctx, $place: $place_kind $(, $argument: $kind)*) -> $crate::Answer<$answer> {
            $me.$call($place, |fs, $place| $crate::fs::within(fs.$group(), |group| group.$method(cx, $place $(, $argument)*)))
        }
    };
    (later $me:ident $call:ident in $group:ident $op:ident $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        fn $method(&$me, cx: &$crate::Ctx, $($argument: $kind),*) -> $crate::Answer<$answer> {
            $(let $argument = $argument.keep();)*
            $me.$call(cx, move |fs, cx| $crate::fs::within(fs.$group(), |group| group.$method(cx, $($argument.lend()),*)))
        }
    };

    (to $me:ident $inner:tt $group:ident $kind:ident) => {
        fn $group(&$me) -> Option<&dyn $crate::fs::$kind> { $me.$inner.$group() }
    };
    (own $me:ident $itself:tt $group:ident $kind:ident) => {
        fn $group(&$me) -> Option<&dyn $crate::fs::$kind> { Some($me) }
    };
    (offer $me:ident $inner:tt $group:ident $kind:ident) => {
        fn $group(&$me) -> Option<&dyn $crate::fs::$kind> { $me.$inner.$group().map(|_| $me as &dyn $crate::fs::$kind) }
    };
}
