//! Where copies go.

use libtombolo::copy::{To, unfinished_name};
use libtombolo::{Last, Node, block_on};
use tombolo_core::Error;
use tombolo_core::fs::{FileType, NameBuf};

use crate::failure::{Failure, Outcome};

use super::super::open_path::OpenPath;
use super::source::Source;

/// What the last word of the command line came to.
#[derive(Debug)]
pub struct Target {
    pub dir: Node,
    pub path: Vec<u8>,
    /// The one name that a copy gets in it; `None`: each gets its source's.
    name: Option<NameBuf>,
    /// Nothing but that name was asked for, whatever it is of.
    is_name: bool,
    word: String,
}

/// How to take the last word of the command line.
#[derive(Clone, Copy, Debug)]
pub struct NameRules {
    /// As the name of the copy, also if it is a directory's.
    pub is_name: bool,
    /// And whatever stands there, a link too, makes room for the copy.
    pub replaces_name: bool,
    /// As the name of the copy if it is an unfinished one.
    pub resume: bool,
}

impl Target {
    /// A directory that is there takes copies under their own names, unless it is wished to be the copy; all
    /// else is the name of a copy. A link stands for what it leads to, as for cp(1), unless a link is copied.
    pub fn of(place: OpenPath, sources: &[Source], rules: NameRules) -> Result<Self, Failure> {
        let last = if rules.replaces_name { Last::Keep } else { Last::Follow };
        let found = place.find(last);
        if let Ok(node) = &found {
            let attr = block_on(node.attr()).map_err(|error| place.cannot("look at", &error))?;
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
            return Err(place.cannot("find", &Error::NotFound).remedy("make the directory first"));
        }
        let keeps_link = rules.replaces_name || matches!(sources, [source] if source.is_link());
        let parent = if keeps_link { place.parent() } else { block_on(place.tree.find_target(&place.path)) };
        let (dir, name) = parent.map_err(|error| match error {
            Error::InvalidArgument => {
                Failure::cannot(format_args!("copy over {}", place.word), "it is the top of what is exported")
                    .remedy("leave -T out to copy into it")
            }
            Error::NotFound if place.find(Last::Keep).is_ok() => {
                Failure::cannot(format_args!("write {}", place.word), "it is a link that leads nowhere")
                    .remedy("remove it first")
            }
            error => place.cannot("find the directory of", &error),
        })?;
        let path = dir_of(&place.label, name.as_name().as_bytes());
        Ok(Self { dir, path, name: Some(name), is_name: rules.is_name, word: place.word })
    }

    /// Fails when there is no room for so many sources.
    pub fn must_take(&self, sources: usize) -> Outcome {
        if sources > 1 && self.name.is_some() {
            let failure = Failure::cannot(format_args!("copy to {}", self.word), "it is not a directory");
            return Err(failure.remedy("several sources need one"));
        }
        Ok(())
    }

    /// Where a source of this name goes; `None`: what is in it goes into the directory.
    pub fn name_for(&self, source: Option<&NameBuf>) -> Option<To> {
        let name = self.name.clone().or_else(|| source.cloned())?;
        // Where the copy has a name of its own, the same words again could mean a copy within it.
        let may_be_taken_for_a_place = self.name.is_some() && !self.is_name;
        let unfinished = source.filter(|_| may_be_taken_for_a_place);
        let unfinished = unfinished.and_then(|source| unfinished_name(source.as_name()).ok());
        Some(To { dir: self.dir.clone(), name, dir_path: self.path.clone(), unfinished })
    }
}

/// Whether this directory is a copy of the one source that something is missing of.
fn is_unfinished(dir: &Node, sources: &[Source]) -> bool {
    let [Source { name: Some(name), .. }] = sources else { return false };
    unfinished_name(name.as_name()).is_ok_and(|name| dir.find(name.as_name()).wait().is_ok())
}

/// What the directory is called whose entry has this path: whatever stands before the name.
fn dir_of(label: &[u8], name: &[u8]) -> Vec<u8> {
    let label = label.strip_suffix(b"/").unwrap_or(label);
    label.strip_suffix(name).unwrap_or(label).to_vec()
}
