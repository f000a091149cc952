//! Cases by theme.

mod attributes;
mod data;
mod links;
mod listing;
mod locks;
mod mapping;
mod names;
mod permissions;
mod processes;
mod ranges;
mod rename;
mod xattrs;

use super::Case;

/// All cases by group.
pub(super) const GROUPS: &[&[Case]] = &[
    names::CASES,
    links::CASES,
    data::CASES,
    ranges::CASES,
    attributes::CASES,
    rename::CASES,
    listing::CASES,
    mapping::CASES,
    xattrs::CASES,
    locks::CASES,
    processes::CASES,
    permissions::CASES,
];

/// Table of cases by function name; those after `root:` need the superuser.
macro_rules! cases {
    ($group:literal: $($name:ident),* $(,)? $(; root: $($rooted:ident),+ $(,)?)?) => {
        pub(super) const CASES: &[$crate::posix::Case] = &[
            $($crate::posix::Case {
                name: concat!($group, "::", stringify!($name)),
                root: false,
                run: |world| $crate::report::IntoVerdict::into_verdict($name(world)),
            },)*
            $($($crate::posix::Case {
                name: concat!($group, "::", stringify!($rooted)),
                root: true,
                run: |world| $crate::report::IntoVerdict::into_verdict($rooted(world)),
            },)+)?
        ];
    };
}
use cases;
