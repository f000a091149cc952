//! Targets of copies.

use libtombolo::copy::{To, unfinished_name};
use libtombolo::{Last, Node, block_on};
use tombolo_core::Error;
use tombolo_core::fs::{FileType, NameBuf};

use crate::failure::{Failure, Outcome};

use super::super::open_path::OpenPath;
use super::source::Source;

/// The resolved last argument of the command line.
#[derive(Debug)]
pub struct Target {
    pub dir: Node,
    pub path: Vec<u8>,
    /// Name of the copy, if the target names it. `None`: each copy has its source's name in `dir`; of a
    /// source without a name, the contents are copied into `dir`.
    name: Option<NameBuf>,
    /// `true` if the name itself was requested, whatever it refers to.
    is_name: bool,
    word: String,
}

/// Interpretation of the last argument.
#[derive(Clone, Copy, Debug)]
pub struct NameRules {
    /// `true` if the last argument is the name of the copy, even if it is a directory.
    pub is_name: bool,
    /// `true` if the copy also replaces whatever exists there, including a symbolic link.
    pub replaces_name: bool,
    /// `true` if a directory that is an unfinished copy is continued, and not copied into.
    pub resume: bool,
}

impl Target {
    /// Resolves the target. Copies are placed in an existing directory under their own names, unless the
    /// directory is to be the copy; otherwise the target names the copy. A symbolic link is followed, as by
    /// cp(1), unless a link is copied.
    pub fn of(place: OpenPath, sources: &[Source], rules: NameRules) -> Result<Self, Failure> {
        let last = if rules.replaces_name { Last::Keep } else { Last::Follow };
        let found = place.find(last);
        if let Ok(node) = &found {
            let attr = block_on(node.attr()).map_err(|error| place.cannot("get attributes of", &error))?;
            let is_copy = rules.is_name || rules.resume && is_unfinished(node, sources);
            if attr.file_type == FileType::Directory && !is_copy {
                return Ok(Self {
                    dir: node.clone(),
                    path: place.label,
                    name: None,
                    is_name: false,
                    word: place.word,
                });
            }
        }
        match found {
            Ok(_) | Err(Error::NotFound) => {}
            Err(error) => return Err(place.cannot("find", &error)),
        }
        if found.is_err() && place.label.ends_with(b"/") && !rules.is_name {
            return Err(place.cannot("find", &Error::NotFound).remedy("create the directory first"));
        }
        let keeps_link = rules.replaces_name || matches!(sources, [source] if source.is_link());
        let parent = if keeps_link { place.parent() } else { block_on(place.tree.find_target(&place.path)) };
        let (dir, name) = parent.map_err(|error| match error {
            Error::InvalidArgument => {
                Failure::cannot(format_args!("copy over {}", place.word), "it is the root of an export")
                    .remedy("copy into it without -T")
            }
            Error::NotFound if place.find(Last::Keep).is_ok() => {
                Failure::cannot(format_args!("write {}", place.word), "it is a dangling symbolic link")
                    .remedy("remove it first")
            }
            error => place.cannot("find the directory of", &error),
        })?;
        let path = dir_of(&place.label, name.as_name().as_bytes());
        Ok(Self { dir, path, name: Some(name), is_name: rules.is_name, word: place.word })
    }

    /// Fails if there are several sources and the target is not a directory.
    pub fn must_take(&self, sources: usize) -> Outcome {
        if sources > 1 && self.name.is_some() {
            let failure = Failure::cannot(format_args!("copy to {}", self.word), "it is not a directory");
            return Err(failure.remedy("several sources need a directory"));
        }
        Ok(())
    }

    /// Returns the destination of a source with this name; `None`: its contents are copied into the
    /// directory.
    pub fn name_for(&self, source: Option<&NameBuf>) -> Option<To> {
        let name = self.name.clone().or_else(|| source.cloned())?;
        // The target names the copy. If the copy is interrupted and the command repeated, the target exists,
        // and would be taken for a directory to copy into: until then a file in it marks it as unfinished.
        let may_be_taken_for_a_place = self.name.is_some() && !self.is_name;
        let unfinished = source.filter(|_| may_be_taken_for_a_place);
        let unfinished = unfinished.and_then(|source| unfinished_name(source.as_name()).ok());
        Some(To { dir: self.dir.clone(), name, dir_path: self.path.clone(), unfinished })
    }
}

/// Returns `true` if the directory is an unfinished copy of the only source.
fn is_unfinished(dir: &Node, sources: &[Source]) -> bool {
    let [Source { name: Some(name), .. }] = sources else { return false };
    unfinished_name(name.as_name()).is_ok_and(|name| dir.find(name.as_name()).wait().is_ok())
}

/// Returns the directory part of a path with this final name.
fn dir_of(label: &[u8], name: &[u8]) -> Vec<u8> {
    let label = label.strip_suffix(b"/").unwrap_or(label);
    label.strip_suffix(name).unwrap_or(label).to_vec()
}
