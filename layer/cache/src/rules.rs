//! Cache options by name and path.
//!
//! A rule applies by the name, or the path, under which the origin last reported an object. For an object
//! known only by its handle, the name is searched in its last known directory. Until the name is known, and
//! the directory's path if a rule of paths may decide, the strictest options apply.

use std::ffi::CString;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo_core::fs::FileType;
use tombolo_core::lock;
use tombolo_sys::pattern::Pattern;

use crate::cache::Cache;
use crate::object::Object;
use crate::options::{Contract, Options};
use crate::store::ObjectId;

/// Options for files whose name matches a pattern.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Pattern of the names or paths to which the rule applies.
    pub pattern: Pattern,
    /// Options of the files with these names.
    pub options: Options,
}

/// Options of the files of a tree: those of the first rule whose pattern matches, otherwise `default`.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Options of files without a matching rule.
    pub default: Options,
    /// The rules, in order of precedence.
    pub rules: Vec<Rule>,
}

impl From<Options> for Policy {
    fn from(default: Options) -> Self {
        Self { default, rules: Vec::new() }
    }
}

impl Policy {
    /// Returns `true` if sessions can be notified of all changes.
    pub fn tells_changes(&self) -> bool {
        all_are(&self.default, &self.rules, |options| options.contract.tells_changes())
    }

    /// Returns `true` if all files are read-only.
    pub fn is_read_only(&self) -> bool {
        all_are(&self.default, &self.rules, |options| options.read_only)
    }

    /// Returns `true` if any files have the contract *exclusive*.
    pub fn is_exclusive(&self) -> bool {
        !all_are(&self.default, &self.rules, |options| options.contract != Contract::Exclusive)
    }

    /// Returns `true` if any files have the contract *lease*.
    pub fn is_leased(&self) -> bool {
        !all_are(&self.default, &self.rules, |options| options.contract != Contract::Lease)
    }

    /// Returns options that keep the guarantees of all rules, for files whose rule is unknown.
    fn strictest(&self) -> Options {
        let all = || self.rules.iter().map(|rule| &rule.options).chain([&self.default]);
        let contract = match self.default.contract {
            contract if all().all(|options| options.contract == contract) => contract,
            _ if self.tells_changes() => Contract::Exclusive,
            _ => Contract::CloseToOpen,
        };
        let shortest = |time: fn(&Options) -> Duration| {
            let times = all().map(|options| match options.contract {
                Contract::Refresh(refresh) => refresh,
                _ => time(options),
            });
            times.min().unwrap_or_default()
        };
        Options {
            contract,
            attr_refresh: shortest(|options| options.attr_refresh),
            rights_refresh: shortest(|options| options.rights_refresh),
            read_only: all().any(|options| options.read_only),
            ..self.default
        }
    }

    /// Returns the policy with *close-to-open* in place of *exclusive* and *lease*.
    pub(crate) fn shared(&self) -> Self {
        let shared = |options: &Options| match options.contract {
            Contract::Exclusive | Contract::Lease => Options { contract: Contract::CloseToOpen, ..*options },
            _ => *options,
        };
        let rule = |rule: &Rule| Rule { pattern: rule.pattern.clone(), options: shared(&rule.options) };
        Self { default: shared(&self.default), rules: self.rules.iter().map(rule).collect() }
    }
}

/// A policy, and the options of files whose rule is unknown.
pub(crate) struct AppliedPolicy {
    policy: Policy,
    strictest: Options,
}

impl AppliedPolicy {
    fn options_by(&self, rule: u32) -> &Options {
        let index = rule.checked_sub(FIRST).and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| self.policy.rules.get(index)) {
            Some(rule) => &rule.options,
            None if rule == UNKNOWN => &self.strictest,
            None => &self.policy.default,
        }
    }
}

impl From<Policy> for AppliedPolicy {
    fn from(policy: Policy) -> Self {
        Self { strictest: policy.strictest(), policy }
    }
}

impl Deref for AppliedPolicy {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.policy
    }
}

fn all_are(default: &Options, rules: &[Rule], is: impl Fn(&Options) -> bool) -> bool {
    is(default) && rules.iter().all(|rule| is(&rule.options))
}

/// Returns the number (as in [`Place`]) of the first rule that matches a name, or the path that ends with
/// this name; [`UNKNOWN`] if that depends on an unknown path, [`NONE`] if no rule matches.
fn rule_for(rules: &[Rule], name: &[u8], path: impl FnOnce() -> Option<Vec<u8>>) -> u32 {
    let name = CString::new(name).unwrap_or_default();
    let is_of_paths = rules.iter().any(|rule| rule.pattern.is_of_paths());
    let path = if is_of_paths { path().and_then(|path| CString::new(path).ok()) } else { None };
    for (rule, Rule { pattern, .. }) in (FIRST..).zip(rules) {
        match (pattern.is_of_paths(), &path) {
            (true, None) => return UNKNOWN,
            (true, Some(path)) if pattern.matches(path) => return rule,
            (false, _) if pattern.matches(&name) => return rule,
            _ => {}
        }
    }
    NONE
}

/// Rule that applies to an object; and its path, if it is a directory.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// [`UNKNOWN`], [`NONE`], or the index of a rule plus [`FIRST`].
    rule: AtomicU32,
    /// Path of a directory without a leading `/`, if known.
    path: Mutex<Option<Arc<[u8]>>>,
}

const UNKNOWN: u32 = 0;
const NONE: u32 = 1;
const FIRST: u32 = 2;

impl Place {
    /// Records that no rule matches, as the object has no name.
    pub(crate) fn set_unnamed(&self) {
        self.rule.store(NONE, Ordering::Relaxed);
    }
}

/// Maximum depth of directories whose path is determined, which bounds the recursion.
const DEPTH_MAX: usize = 256;

impl Cache {
    pub(crate) fn tells_changes(&self) -> bool {
        self.held_policy.tells_changes()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.held_policy.is_read_only()
    }

    /// Returns an object's options. May lock its state to find its name: the caller must not have it locked.
    pub(crate) fn options_of(&self, object: &Object) -> &Options {
        let policy = if object.is_unanswered() { &self.unheld_policy } else { self.policy() };
        if policy.rules.is_empty() {
            return &policy.default;
        }
        if object.place.rule.load(Ordering::Relaxed) == UNKNOWN {
            self.look_for_name(object);
        }
        policy.options_by(object.place.rule.load(Ordering::Relaxed))
    }

    /// Returns the options that apply to files of this name in a directory.
    pub(crate) fn options_for(&self, dir: &Object, name: &[u8]) -> &Options {
        let policy = self.policy();
        policy.options_by(rule_for(&policy.rules, name, || self.path_below(dir, name)))
    }

    /// Records that the origin has reported an object in this directory under this name, and applies the
    /// rule.
    pub(crate) fn found_in(&self, object: &Object, dir: &Object, name: &[u8]) {
        object.state().parent = Some(dir.id);
        self.named(object, dir, name);
    }

    /// Applies the rule for an object found under a cached name, unless its rule is known.
    pub(crate) fn known_in(&self, object: &Object, dir: &Object, name: &[u8]) {
        if !self.held_policy.rules.is_empty() && object.place.rule.load(Ordering::Relaxed) == UNKNOWN {
            self.named(object, dir, name);
        }
    }

    fn named(&self, object: &Object, dir: &Object, name: &[u8]) {
        if self.held_policy.rules.is_empty() {
            return;
        }
        if object.file_type == FileType::Directory {
            *lock(&object.place.path) = self.path_below(dir, name).map(Into::into);
        }
        let rule = rule_for(&self.held_policy.rules, name, || self.path_below(dir, name));
        object.place.rule.store(rule, Ordering::Relaxed);
    }

    fn look_for_name(&self, object: &Object) {
        // Without the path, searching all names of the directory at each call would not determine the rule.
        if !self.can_decide(object) {
            return;
        }
        match self.parent_and_name(object) {
            Some((dir, name)) => self.named(object, &dir, &name),
            None if object.id == ObjectId::ROOT => object.place.set_unnamed(),
            // The name may be found later.
            None => {}
        }
    }

    /// Returns `true` if the rule of an object can be determined by its name: no rule is of paths, or the
    /// path of its directory is known. The root counts as such an object.
    fn can_decide(&self, object: &Object) -> bool {
        if object.id == ObjectId::ROOT
            || !self.held_policy.rules.iter().any(|rule| rule.pattern.is_of_paths())
        {
            return true;
        }
        let parent = object.state().parent;
        let dir = parent.and_then(|parent| self.object(parent).ok());
        dir.is_some_and(|dir| self.path_of(&dir, DEPTH_MAX).is_some())
    }

    /// Returns the directory in which the origin last reported an object, and a name of the object in it, if
    /// one is cached.
    pub(crate) fn parent_and_name(&self, object: &Object) -> Option<(Arc<Object>, Vec<u8>)> {
        let parent = object.state().parent.filter(|parent| *parent != object.id)?;
        let dir = self.object(parent).ok()?;
        let name = {
            let state = dir.state();
            let found = state.names.after(0).find(|(.., target)| target.object == object.id);
            found.map(|(_, name, _)| name.to_vec())
        };
        name.map(|name| (dir, name))
    }

    /// Returns the path of a file within the tree, if it is known.
    pub(crate) fn path_of_file(&self, object: &Object) -> Option<Vec<u8>> {
        let (dir, name) = self.parent_and_name(object)?;
        self.path_below(&dir, &name)
    }

    fn path_below(&self, dir: &Object, name: &[u8]) -> Option<Vec<u8>> {
        let dir = self.path_of(dir, DEPTH_MAX)?;
        Some(if dir.is_empty() { name.to_vec() } else { [&*dir, b"/", name].concat() })
    }

    fn path_of(&self, dir: &Object, depth_max: usize) -> Option<Arc<[u8]>> {
        if dir.id == ObjectId::ROOT {
            return Some(Arc::default());
        }
        let known = lock(&dir.place.path).clone();
        if known.is_some() {
            return known;
        }
        let (above, name) = self.parent_and_name(dir)?;
        let above = self.path_of(&above, depth_max.checked_sub(1)?)?;
        let path = if above.is_empty() { name } else { [&*above, b"/", &name].concat() };
        let path: Arc<[u8]> = path.into();
        *lock(&dir.place.path) = Some(path.clone());
        Some(path)
    }
}
