//! How changes are kept back from an origin, and where.

use std::path::{Path, PathBuf};

use tombolo_layer_cache::{Contract, Policy};
use tombolo_layer_write_back as write_back;

use crate::assembly::options::cache::{CacheMode, Size};
use crate::failure::{Failure, Outcome};

/// How changes are kept back, if that is asked for and possible.
pub fn options_of(
    mode: CacheMode,
    limit: Option<Size>,
    policy: &Policy,
) -> Result<Option<write_back::Options>, Failure> {
    if mode != CacheMode::WriteBack {
        return match limit {
            Some(_) => {
                let problem = "--write-back-limit is of --mode write-back";
                Err(Failure::usage(problem).remedy("add --mode write-back --contract exclusive"))
            }
            None => Ok(None),
        };
    }
    if policy.is_leased() {
        let problem =
            "--mode write-back is not for --contract lease: other holders would not see what waits here";
        return Err(Failure::usage(problem).remedy(
            "leave out --mode write-back, or add --contract exclusive, if all changes come through this proxy",
        ));
    }
    if policy.default.contract != Contract::Exclusive || !policy.tells_changes() {
        let problem = "--mode write-back takes a tree that no other machine changes meanwhile";
        return Err(Failure::usage(problem)
            .remedy("add --contract exclusive, if all changes come through this proxy"));
    }
    let mut options = write_back::Options::default();
    if let Some(limit) = limit {
        options.dirty_bytes_max = limit.0;
    }
    Ok(Some(options))
}

/// Where changes lie that the origin does not have.
pub fn dir_in(cache: &Path) -> PathBuf {
    cache.join("write-back")
}

/// Fails if changes lie in a cache directory that the origin does not have.
pub fn refuse_what_is_kept(doing: &str, cache: &Path, remedy: &str) -> Outcome {
    match write_back::kept_in(&dir_in(cache)) {
        Ok(0) => Ok(()),
        Ok(count) => {
            let problem =
                format!("{count} files and names in it are changed, and the origin does not have that yet");
            Err(Failure::cannot(doing, problem).remedy(remedy))
        }
        Err(error) => Err(Failure::cannot(doing, &error)),
    }
}
