//! Passing methods of the waist on.

/// Methods of [`FileSystem`](crate::fs::FileSystem) that a layer passes on, by their names.
///
/// `forward!(to self.inner; lookup getattr)` calls the same method of the field `inner`. `forward!(through self.call; lookup getattr)`
/// calls `self.call(Op::Lookup, |fs| fs.lookup(...))`, and so on: a layer that does the same around each; `with self.call` calls
/// `self.call(cx, |fs, cx| fs.lookup(cx, ...))`, where the layer passes on another context. The rest of the trait (what the
/// file system says of itself, and the optional groups) each layer writes out.
#[macro_export]
macro_rules! forward {
    ($way:ident $me:ident.$inner:tt; $($method:ident)+) => { $($crate::forward!(@$method $way $me $inner);)+ };

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
    (@fsync $($to:tt)+) => { $crate::forward!($($to)+ Fsync fsync(file: $crate::fs::File, what: $crate::fs::SyncWhat) -> ()); };
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
    (@forget to $me:ident $inner:tt) => {
        fn forget(&$me, cx: &$crate::Ctx, look_ups: &[($crate::fs::NodeId, u64)]) { $me.$inner.forget(cx, look_ups); }
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
}
