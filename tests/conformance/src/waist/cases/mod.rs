//! Cases by theme.

mod attributes;
mod changes;
mod create;
mod data;
mod handles;
mod life;
mod links;
mod listing;
mod locks;
mod names;
mod owners;
mod permissions;
mod races;
mod ranges;
mod rename;
mod versions;
mod xattrs;

use super::Case;

/// All cases by group.
pub(super) const GROUPS: &[&[Case]] = &[
    names::CASES,
    links::CASES,
    create::CASES,
    life::CASES,
    data::CASES,
    attributes::CASES,
    owners::CASES,
    permissions::CASES,
    rename::CASES,
    listing::CASES,
    xattrs::CASES,
    locks::CASES,
    handles::CASES,
    ranges::CASES,
    races::CASES,
    changes::CASES,
    versions::CASES,
];

/// Table of cases by function name, with their needs.
macro_rules! cases {
    ($group:literal: $($name:ident $(needs $($need:ident)|+)?),+ $(,)?) => {
        pub(super) const CASES: &[$crate::waist::Case] = &[
            $($crate::waist::Case {
                name: concat!($group, "::", stringify!($name)),
                needs: $crate::waist::Needs::empty()$($(.union($crate::waist::Needs::$need))+)?,
                run: |world| $crate::report::IntoVerdict::into_verdict($name(world)),
            }),+
        ];
    };
}
use cases;
