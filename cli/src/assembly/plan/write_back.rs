//! Write-back options of a cache, and their directory.

use std::path::{Path, PathBuf};

use tombolo_core::Error;
use tombolo_core::fs::Export;
use tombolo_layer_cache::{Contract, Policy};
use tombolo_layer_write_back as write_back;

use crate::assembly::options::cache::{CacheMode, Size};
use crate::commands::files::user::Myself;
use crate::failure::{Failure, OrCannot, Outcome};

/// Returns the write-back options, if enabled; fails if the policy does not permit them.
pub fn options_of(
    mode: CacheMode,
    limit: Option<Size>,
    policy: &Policy,
) -> Result<Option<write_back::Options>, Failure> {
    if mode != CacheMode::WriteBack {
        return match limit {
            Some(_) => {
                let problem = "--write-back-limit requires --mode write-back";
                Err(Failure::usage(problem).remedy("add --mode write-back --contract exclusive"))
            }
            None => Ok(None),
        };
    }
    if policy.is_leased() {
        let problem =
            "--mode write-back excludes --contract lease: other lease holders would not see unsent changes";
        return Err(Failure::usage(problem).remedy(
            "omit --mode write-back, or add --contract exclusive, if all changes are made through this proxy",
        ));
    }
    if policy.default.contract != Contract::Exclusive || !policy.tells_changes() {
        let problem = "--mode write-back requires that no other client changes the tree";
        return Err(Failure::usage(problem)
            .remedy("add --contract exclusive, if all changes are made through this proxy"));
    }
    let default = write_back::Options::default();
    let dirty_bytes_max = limit.map_or(default.dirty_bytes_max, |limit| limit.0);
    Ok(Some(write_back::Options { dirty_bytes_max, ..default }))
}

/// Returns the directory of unsent changes.
pub fn dir_in(cache: &Path) -> PathBuf {
    cache.join("write-back")
}

/// Tests the permissions of this user at the origin and logs restrictions. Fails if the origin is read-only,
/// unless unsent changes exist already.
pub fn try_out(doing: &str, cache: &Path, export: &dyn Export) -> Outcome {
    let user = Myself::ask().identity;
    let uid = user.uid;
    let allowed = match write_back::try_out(export, user) {
        Ok(allowed) => allowed,
        Err(error @ (Error::ReadOnly | Error::NotPermitted | Error::AccessDenied)) => {
            let problem = format!("user {uid} cannot create files in the root of the origin: {error}");
            if matches!(error, Error::ReadOnly) && matches!(write_back::kept_in(&dir_in(cache)), Ok(0)) {
                return Err(
                    Failure::cannot(doing, problem).remedy("export it writable, or omit --mode write-back")
                );
            }
            tracing::warn!("{problem}; refused changes are retained, and listed by tombolo session show");
            return Ok(());
        }
        // The origin is unreachable or full: errors are reported when changes are sent.
        Err(error) => {
            tracing::info!(%error, "cannot determine the origin's permissions for this user");
            return Ok(());
        }
    };
    if let Some(owner) = allowed.squashed_to {
        tracing::warn!(
            "the origin assigns files created by user {uid} to user {owner}: the proxy then shows that owner, and other owners set by programs \
             are refused (tombolo serve --squash none lets the superuser set them)"
        );
    } else if allowed.refuses_owners {
        tracing::warn!("the origin permits no changes of owners: owners set by programs are refused");
    }
    if allowed.refuses_modes {
        tracing::warn!(
            "the origin does not permit user {uid} to set file modes: modes set by programs are refused"
        );
    }
    Ok(())
}

/// Fails if a cache directory has unsent changes.
pub fn refuse_what_is_kept(doing: &str, cache: &Path, remedy: &str) -> Outcome {
    match write_back::kept_in(&dir_in(cache)).or_cannot(doing)? {
        0 => Ok(()),
        count => {
            let problem = format!("{count} files and names in it have unsent changes");
            Err(Failure::cannot(doing, problem).remedy(remedy))
        }
    }
}
