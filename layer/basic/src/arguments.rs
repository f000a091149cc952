//! Arguments of operations, stored by `delay` and `recall` until the operation begins.

use std::borrow::Borrow;

use tombolo_core::fs::{
    AccessMask, AllocateMode, Device, File, FileType, LockFamily, LockOwner, LockRange, Name, NameBuf,
    NewMode, NodeId, OpenFlags, RenameFlags, SyncScope, Whence, XattrName, XattrNameBuf, XattrSet,
};

/// An argument as an operation takes it, which may be borrowed; `Kept` is its owned form.
pub trait Keep {
    /// The owned form.
    type Kept;

    /// Copies the argument, so that it outlives the call.
    fn keep(self) -> Self::Kept;
}

/// The owned form of an argument, from which the operation's own form is borrowed again.
pub trait Lend {
    /// The operation's own form.
    type As<'a>
    where
        Self: 'a;

    /// Returns the argument as the operation takes it.
    fn lend(&self) -> Self::As<'_>;
}

// Implements both traits for types that are `Copy`.
macro_rules! plain {
    ($($kind:ty),+) => {
        $(impl Keep for $kind {
            type Kept = Self;

            fn keep(self) -> Self {
                self
            }
        }

        impl Lend for $kind {
            type As<'a> = Self;

            fn lend(&self) -> Self {
                *self
            }
        })+
    };
}

plain!(
    u64,
    usize,
    bool,
    NodeId,
    File,
    Option<File>,
    AccessMask,
    NewMode,
    FileType,
    Device,
    OpenFlags,
    RenameFlags,
    LockOwner,
    LockFamily,
    LockRange,
    SyncScope,
    XattrSet,
    AllocateMode,
    Whence
);

/// A stored copy of a borrowed argument.
pub struct Owned<T: ToOwned + ?Sized>(T::Owned);

impl<T: ToOwned + ?Sized> Keep for &T {
    type Kept = Owned<T>;

    fn keep(self) -> Owned<T> {
        Owned(self.to_owned())
    }
}

impl<T: ToOwned + ?Sized> Lend for Owned<T> {
    type As<'a>
        = &'a T
    where
        Self: 'a;

    fn lend(&self) -> &T {
        self.0.borrow()
    }
}

// Implements both traits for a borrowed type of names and its owned form.
macro_rules! names {
    ($($name:ident as $kept:ty),+) => {
        $(impl Keep for $name<'_> {
            type Kept = $kept;

            fn keep(self) -> $kept {
                self.to_owned()
            }
        }

        impl Lend for $kept {
            type As<'a> = $name<'a>;

            fn lend(&self) -> $name<'_> {
                self.as_name()
            }
        })+
    };
}

names!(Name as NameBuf, XattrName as XattrNameBuf);
