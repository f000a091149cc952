//! Where copies go.

use libtombolo::copy::To;
use libtombolo::{Last, Node, block_on};
use tombolo_core::fs::{Error, FileType, NameBuf};

use crate::failure::{Failure, Outcome};

use super::super::place::Place;

/// What the last word of the command line came to.
#[derive(Debug)]
pub struct Target {
    /// The directory.
    pub dir: Node,
    /// What it is called.
    pub path: Vec<u8>,
    /// The one name that a copy gets in it; `None`: each gets its source's.
    name: Option<NameBuf>,
    word: String,
}

impl Target {
    /// A directory that is there takes copies under their own names, unless it `is_name`; all else is the name of a copy.
    pub fn of(place: Place, is_name: bool) -> Result<Self, Failure> {
        let found = place.find(Last::Follow);
        if let Ok(node) = &found {
            let attr = block_on(node.attr()).map_err(|error| place.cannot("look at", &error))?;
            if attr.file_type == FileType::Directory && !is_name {
                return Ok(Self { dir: node.clone(), path: place.label, name: None, word: place.word });
            }
        }
        match found {
            Ok(_) | Err(Error::NotFound) => {}
            Err(error) => return Err(place.cannot("find", &error)),
        }
        if found.is_err() && place.label.ends_with(b"/") && !is_name {
            return Err(place.cannot("find", &Error::NotFound).remedy("make the directory first"));
        }
        let (dir, name) = place.parent().map_err(|error| match error {
            Error::InvalidArgument => {
                Failure::cannot(format_args!("copy over {}", place.word), "it is the top of what is exported")
                    .remedy("leave -T out to copy into it")
            }
            error => place.cannot("find the directory of", &error),
        })?;
        let path = dir_of(&place.label, name.as_name().as_bytes());
        Ok(Self { dir, path, name: Some(name), word: place.word })
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
    pub fn name_for(&self, source: Option<NameBuf>) -> Option<To> {
        let name = self.name.clone().or(source)?;
        Some(To { dir: self.dir.clone(), name, dir_path: self.path.clone() })
    }
}

/// What the directory is called whose entry has this path: whatever stands before the name.
fn dir_of(label: &[u8], name: &[u8]) -> Vec<u8> {
    let label = label.strip_suffix(b"/").unwrap_or(label);
    label.strip_suffix(name).unwrap_or(label).to_vec()
}
