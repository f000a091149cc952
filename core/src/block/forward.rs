//! Forwarding of a disk's methods.

/// Forwards the named methods of [`BlockDevice`](crate::block::BlockDevice).
///
/// `forward_disk!(to self.inner; read write)` calls the same method of the field `inner`.
/// `forward_disk!(through self.call; read write)` calls `self.call(Op::Read, |disk| disk.read(cx, ...))`, and
/// so on, with the most similar operation of a file, for a layer that wraps each call in the same way; `later
/// self.call` calls `self.call(cx, move |disk, cx| disk.read(cx, ...))`, for a layer that calls later.
#[macro_export]
macro_rules! forward_disk {
    ($way:ident $me:ident.$inner:tt; $($method:ident)+) => { $($crate::forward_disk!(@$method $way $me $inner);)+ };

    (@read $($to:tt)+) => { $crate::forward_disk!($($to)+ Read read(offset: u64, into: $crate::mem::Sink) -> ()); };
    (@write $($to:tt)+) => {
        $crate::forward_disk!($($to)+ Write write(offset: u64, stability: $crate::Stability, from: $crate::mem::Source) -> ());
    };
    (@flush $($to:tt)+) => { $crate::forward_disk!($($to)+ Flush flush() -> ()); };
    (@discard $($to:tt)+) => { $crate::forward_disk!($($to)+ Allocate discard(range: $crate::block::Range) -> ()); };
    (@write_zeroes $($to:tt)+) => {
        $crate::forward_disk!($($to)+ Allocate write_zeroes(range: $crate::block::Range, how: $crate::block::Zeroing) -> ());
    };
    (@extents $($to:tt)+) => {
        $crate::forward_disk!($($to)+ Seek extents(range: $crate::block::Range, count_max: usize) -> $crate::block::Extents);
    };
    (@profile to $me:ident $inner:tt) => {
        fn profile(&$me) -> $crate::block::Profile { $me.$inner.profile() }
    };
    (@geometry to $me:ident $inner:tt) => {
        fn geometry(&$me) -> $crate::block::Geometry { $me.$inner.geometry() }
    };
    (@submit to $me:ident $inner:tt) => {
        fn submit(&$me) { $me.$inner.submit(); }
    };
    (@resize to $me:ident $inner:tt) => {
        fn resize(&$me) -> Option<&dyn $crate::block::Resize> { $me.$inner.resize() }
    };

    (to $me:ident $inner:tt $op:ident $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        #[inline]
        fn $method(&$me, cx: &$crate::Ctx, $($argument: $kind),*) -> $crate::Answer<$answer> {
            $me.$inner.$method(cx, $($argument),*)
        }
    };
    (through $me:ident $call:ident $op:ident $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        fn $method(&$me, cx: &$crate::Ctx, $($argument: $kind),*) -> $crate::Answer<$answer> {
            $me.$call($crate::fs::Op::$op, |disk| disk.$method(cx, $($argument),*))
        }
    };
    (later $me:ident $call:ident $op:ident $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        fn $method(&$me, cx: &$crate::Ctx, $($argument: $kind),*) -> $crate::Answer<$answer> {
            $me.$call(cx, move |disk, cx| disk.$method(cx, $($argument),*))
        }
    };
}
