//! Cache options by name and path.
//!
//! A rule applies by the name under which an object was last looked up. For an object known only by its
//! handle, the name is searched in its last known directory.

use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::FileType;
use tombolo_sys::pattern::Pattern;

use crate::cache::Cache;
use crate::object::Object;
use crate::options::{Contract, Options};
use crate::store::ObjectId;

/// Options for files whose name matches a pattern.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The matching names.
    pub pattern: Pattern,
    /// Their options.
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

    /// Returns `true` if any file is cached under *exclusive*.
    pub fn is_exclusive(&self) -> bool {
        !all_are(&self.default, &self.rules, |options| options.contract != Contract::Exclusive)
    }

    /// Returns `true` if any file is cached under the origin's lease.
    pub fn is_leased(&self) -> bool {
        !all_are(&self.default, &self.rules, |options| options.contract != Contract::Lease)
    }

    fn options_by(&self, rule: Option<usize>) -> &Options {
        rule.and_then(|index| self.rules.get(index)).map_or(&self.default, |rule| &rule.options)
    }

    /// Returns the policy for a tree that others change.
    pub(crate) fn shared(&self) -> Self {
        let shared = |options: &Options| match options.contract {
            Contract::Exclusive | Contract::Lease => Options { contract: Contract::CloseToOpen, ..*options },
            _ => *options,
        };
        let rule = |rule: &Rule| Rule { pattern: rule.pattern.clone(), options: shared(&rule.options) };
        Self { default: shared(&self.default), rules: self.rules.iter().map(rule).collect() }
    }
}

fn all_are(default: &Options, rules: &[Rule], is: impl Fn(&Options) -> bool) -> bool {
    is(default) && rules.iter().all(|rule| is(&rule.options))
}

/// Returns the index of the first rule that matches a name, or the path that ends with it.
fn rule_for(rules: &[Rule], name: &[u8], path: impl FnOnce() -> Option<Vec<u8>>) -> Option<usize> {
    let name = CString::new(name).ok()?;
    let is_of_paths = rules.iter().any(|rule| rule.pattern.is_of_paths());
    let path = if is_of_paths { path().and_then(|path| CString::new(path).ok()) } else { None };
    rules.iter().position(|Rule { pattern, .. }| match pattern.is_of_paths() {
        true => path.as_deref().is_some_and(|path| pattern.matches(path)),
        false => pattern.matches(&name),
    })
}

/// Rule of an object.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// 0: unknown; 1: none; 2: the first.
    rule: AtomicU32,
    /// Path of a directory, without a leading `/`.
    path: Mutex<Option<Arc<[u8]>>>,
}

const UNKNOWN: u32 = 0;
const NONE: u32 = 1;

impl Place {
    fn set(&self, rule: Option<usize>) {
        let rule = rule.and_then(|index| u32::try_from(index).ok()?.checked_add(NONE + 1));
        self.rule.store(rule.unwrap_or(NONE), Ordering::Relaxed);
    }

    fn path(&self) -> MutexGuard<'_, Option<Arc<[u8]>>> {
        self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maximum depth of directories whose path is determined.
const DEPTH_MAX: usize = 256;

impl Cache {
    /// Returns `true` if sessions can be notified of all changes.
    pub(crate) fn tells_changes(&self) -> bool {
        self.held_policy.tells_changes()
    }

    /// Returns `true` if all files are read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.held_policy.is_read_only()
    }

    /// Returns `true` if options depend on the names of files.
    pub(crate) fn has_rules(&self) -> bool {
        !self.held_policy.rules.is_empty()
    }

    /// Returns the options of an object. Must not be called with its state locked.
    pub(crate) fn options_of(&self, object: &Object) -> &Options {
        let policy = if object.is_unanswered() { &self.unheld_policy } else { self.policy() };
        if policy.rules.is_empty() {
            return &policy.default;
        }
        if object.place.rule.load(Ordering::Relaxed) == UNKNOWN {
            self.look_for_name(object);
        }
        let rule = object.place.rule.load(Ordering::Relaxed).checked_sub(NONE + 1);
        policy.options_by(rule.map(|index| index as usize))
    }

    /// Returns the options of an object created under a name.
    pub(crate) fn options_for(&self, dir: &Object, name: &[u8]) -> &Options {
        let policy = self.policy();
        policy.options_by(rule_for(&policy.rules, name, || self.path_below(dir, name)))
    }

    /// Applies the rule for an object that was looked up in this directory under this name.
    pub(crate) fn found_in(&self, object: &Object, dir: &Object, name: &[u8]) {
        object.state().parent = Some(dir.id);
        self.named(object, dir, name);
    }

    /// Does the same, unless the object's rule is known already.
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
            *object.place.path() = self.path_below(dir, name).map(Into::into);
        }
        object.place.set(rule_for(&self.held_policy.rules, name, || self.path_below(dir, name)));
    }

    fn look_for_name(&self, object: &Object) {
        match self.parent_and_name(object) {
            Some((dir, name)) => self.named(object, &dir, &name),
            None if object.id == ObjectId::ROOT => object.place.set(None),
            // It may be found later.
            None => {}
        }
    }

    /// Returns the directory and name under which an object was last looked up.
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
        let known = dir.place.path().clone();
        if known.is_some() {
            return known;
        }
        let (above, name) = self.parent_and_name(dir)?;
        let above = self.path_of(&above, depth_max.checked_sub(1)?)?;
        let path = if above.is_empty() { name } else { [&*above, b"/", &name].concat() };
        let path: Arc<[u8]> = path.into();
        *dir.place.path() = Some(path.clone());
        Some(path)
    }
}
