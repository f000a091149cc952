//! Opening the state file: locking, reading, and replacement.
//!
//! An old file is never modified. Its contents are read, and a draft with the records still relevant replaces
//! it by rename; if the process is killed before that, the next one finds the old file.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use thiserror::Error;
use tombolo_core::fs::{PersistentHandle, Volume};
use tombolo_mem::{MapError, Region};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::{self, HEADER_BYTES, HEADER_CHECKED_FROM, INTENT_BYTES, OUTCOME_BYTES, SLOTS_MAX, state};
use super::record::{StoredIntent, StoredOutcome, handle_of, read_intent, read_outcome};
use super::slots::Slots;
use super::{INTENTS, Journal, intent_offset};

/// Reasons why a state file cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Written by a newer version. The file is left unchanged.
    #[error("{}: written by a newer version ({found}, supported: {})", path.display(), layout::VERSION)]
    Newer {
        /// Path of the state file.
        path: PathBuf,
        /// Format version found in the file.
        found: u32,
    },
    /// Locked by another server, which uses it.
    #[error("{}: in use by another server", path.display())]
    InUse {
        /// Path of the state file, or of the draft that replaces it.
        path: PathBuf,
    },
    /// The state file, or the draft that replaces it, cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file concerned.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The draft cannot be mapped into memory.
    #[error("{}: {source}", path.display())]
    Map {
        /// Path of the draft.
        path: PathBuf,
        /// Reason of the failure.
        #[source]
        source: MapError,
    },
    /// The export refuses a session, or its root cannot be examined.
    #[error("cannot examine the export: {0}")]
    Export(#[from] tombolo_core::Error),
}

/// The tree that a state file belongs to.
#[derive(Clone, Debug)]
pub struct Tree {
    pub volume: Volume,
    pub root: PersistentHandle,
}

/// Undamaged records that an earlier process has left in the state file.
#[derive(Debug, Default)]
pub struct RecoveredRecords {
    pub intents: Vec<StoredIntent>,
    pub outcomes: Vec<StoredOutcome>,
}

/// A state file, locked against other servers.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: File,
}

/// A new state file under a temporary name.
#[derive(Debug)]
pub struct Draft {
    from: PathBuf,
    to: PathBuf,
}

/// Number of attempts to lock the file, of which each fails if the owner has just replaced it.
const TRIES: usize = 16;

impl Lock {
    /// Locks the file at `path`, creating it if missing.
    pub fn take(path: &Path) -> Result<Self, OpenError> {
        for _ in 0..TRIES {
            let file = open(path, false)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { path: path.into() }),
                Err(TryLockError::Error(source)) => return Err(at(path)(source)),
            }
            // The previous owner may have replaced the file.
            let ours = file.metadata().map_err(at(path))?;
            match fs::metadata(path) {
                Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                    return Ok(Self { path: path.into(), file });
                }
                _ => continue,
            }
        }
        Err(OpenError::InUse { path: path.into() })
    }

    /// Reads the records of an earlier process about `tree`. Returns none if the file is damaged, or of an
    /// older version, an earlier boot or another tree, and logs that; fails if its version is newer.
    pub fn read(&self, tree: &Tree) -> Result<RecoveredRecords, OpenError> {
        let path = &self.path;
        let len = self.file.metadata().map_err(at(path))?.len();
        if len == 0 {
            return Ok(RecoveredRecords::default());
        }
        let len_max = HEADER_BYTES as u64 + u64::from(SLOTS_MAX) * (INTENT_BYTES + OUTCOME_BYTES) as u64;
        let bytes = if len <= len_max { fs::read(path).map_err(at(path))? } else { Vec::new() };
        let Some((header, _)) =
            layout::Header::read_from_prefix(&bytes).ok().filter(|(header, _)| header.magic == layout::MAGIC)
        else {
            return Ok(self.set_aside("damaged"));
        };
        if header.version.get() > layout::VERSION {
            return Err(OpenError::Newer { path: path.clone(), found: header.version.get() });
        }
        if (1..layout::VERSION).contains(&header.version.get()) {
            return Ok(self.set_aside("older"));
        }
        if !is_undamaged(&header, &bytes) {
            return Ok(self.set_aside("damaged"));
        }
        if boot_id().is_none_or(|boot| boot != header.boot) {
            tracing::info!("{}: from an earlier boot of this machine; ignored", path.display());
            return Ok(RecoveredRecords::default());
        }
        let root = handle_of(&tree.root);
        let same_root = root.is_some_and(|root| root.as_bytes() == header.root.as_bytes());
        if header.volume != tree.volume.0 || !same_root {
            tracing::warn!("{}: belongs to another tree; ignored", path.display());
            return Ok(RecoveredRecords::default());
        }
        Ok(self.slots_of(&header, &bytes))
    }

    fn slots_of(&self, header: &layout::Header, bytes: &[u8]) -> RecoveredRecords {
        let (mut found, mut damaged) = (RecoveredRecords::default(), 0);
        let (intents, outcomes) = bytes
            .get(HEADER_BYTES..)
            .unwrap_or_default()
            .split_at_checked(header.intents.get() as usize * INTENT_BYTES)
            .unwrap_or_default();
        for slot in intents.chunks_exact(INTENT_BYTES).filter(|slot| is_taken(slot)) {
            match read_intent(slot) {
                Some(intent) => found.intents.push(intent),
                None => damaged += 1,
            }
        }
        for slot in outcomes.chunks_exact(OUTCOME_BYTES).filter(|slot| is_taken(slot)) {
            match read_outcome(slot) {
                Some(outcome) => found.outcomes.push(outcome),
                None => damaged += 1,
            }
        }
        if damaged > 0 {
            tracing::warn!("{}: ignored {damaged} damaged records", self.path.display());
        }
        found
    }

    /// Retains a malformed file, or one of an older version, for the operator. The file is linked to another
    /// name rather than copied, because a full file system has no space for a copy. The server starts even if
    /// that fails.
    fn set_aside(&self, what: &str) -> RecoveredRecords {
        let aside = with_suffix(&self.path, &format!(".{what}"));
        let removed = match fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        match removed.and_then(|()| fs::hard_link(&self.path, &aside)) {
            Ok(()) => tracing::warn!("{}: {what}; set aside as {}", self.path.display(), aside.display()),
            Err(error) => tracing::warn!(
                %error,
                "{}: {what}; cannot be set aside as {}",
                self.path.display(),
                aside.display()
            ),
        }
        RecoveredRecords::default()
    }

    /// Creates an empty file, under a temporary name, with space for `outcomes` outcomes. Sequence numbers
    /// begin after `sequence`.
    pub fn draft(&self, tree: &Tree, outcomes: u32, sequence: u64) -> Result<(Journal, Draft), OpenError> {
        let outcomes = outcomes.min(SLOTS_MAX);
        let path = with_suffix(&self.path, ".new");
        let mut file = open(&path, true)?;
        file.try_lock().map_err(|_| OpenError::InUse { path: path.clone() })?;
        let len = intent_offset(INTENTS) + outcomes as usize * OUTCOME_BYTES;
        write_empty(&mut file, &header(tree, outcomes), len).map_err(at(&path))?;
        let region =
            Region::map(&file, 0, len).map_err(|source| OpenError::Map { path: path.clone(), source })?;
        let journal = Journal {
            region,
            intents: Arc::new(Slots::new(INTENTS)),
            answered: Mutex::default(),
            outcomes: Slots::new(outcomes),
            sequence: AtomicU64::new(sequence.saturating_add(1)),
            lost: AtomicBool::new(false),
            _file: file,
        };
        Ok((journal, Draft { from: path, to: self.path.clone() }))
    }
}

impl Draft {
    /// Renames the draft to the final name. Releases `lock`, because the new file has a lock of its own.
    pub fn publish(self, lock: Lock) -> Result<(), OpenError> {
        fs::rename(&self.from, &self.to).map_err(at(&self.to))?;
        drop(lock);
        Ok(())
    }
}

fn is_taken(slot: &[u8]) -> bool {
    slot.first_chunk().is_some_and(|bytes| u16::from_le_bytes(*bytes) != state::FREE)
}

/// Returns `true` if a header of the current version is undamaged and matches the file's length.
fn is_undamaged(header: &layout::Header, bytes: &[u8]) -> bool {
    let checked = header.as_bytes().get(HEADER_CHECKED_FROM..).unwrap_or_default();
    let (intents, outcomes) = (header.intents.get(), header.outcomes.get());
    let len = HEADER_BYTES + intents as usize * INTENT_BYTES + outcomes as usize * OUTCOME_BYTES;
    header.version.get() == layout::VERSION
        && header.checksum.get() == crc32c::crc32c(checked)
        && (header.intent_bytes.get(), header.outcome_bytes.get())
            == (INTENT_BYTES as u32, OUTCOME_BYTES as u32)
        && intents.max(outcomes) <= SLOTS_MAX
        && bytes.len() == len
}

fn header(tree: &Tree, outcomes: u32) -> layout::Header {
    let empty =
        layout::Handle { kind: 0.into(), len: 0.into(), zero: 0.into(), bytes: [0; layout::HANDLE_MAX_LEN] };
    let mut header = layout::Header {
        magic: layout::MAGIC,
        version: layout::VERSION.into(),
        checksum: 0.into(),
        intents: INTENTS.into(),
        intent_bytes: (INTENT_BYTES as u32).into(),
        outcomes: outcomes.into(),
        outcome_bytes: (OUTCOME_BYTES as u32).into(),
        boot: boot_id().unwrap_or_default(),
        volume: tree.volume.0,
        root: handle_of(&tree.root).unwrap_or(empty),
    };
    header.checksum = crc32c::crc32c(header.as_bytes().get(HEADER_CHECKED_FROM..).unwrap_or_default()).into();
    header
}

/// Writes every byte of the file, so that its blocks are allocated and no access to the mapping can fail on a
/// full disk.
fn write_empty(file: &mut File, header: &layout::Header, len: usize) -> io::Result<()> {
    let zeros = [0; 1 << 16];
    file.write_all(header.as_bytes())?;
    let mut left = len.saturating_sub(size_of_val(header));
    while left > 0 {
        let piece = zeros.get(..left.min(zeros.len())).unwrap_or(&zeros);
        file.write_all(piece)?;
        left -= piece.len();
    }
    Ok(())
}

/// Returns the id of the kernel's boot; `None` if it cannot be read. Records from an earlier boot are not
/// used: a power failure may have undone changes of the tree, and other programs may have changed it since.
fn boot_id() -> Option<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

fn open(path: &Path, anew: bool) -> Result<File, OpenError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(anew).mode(0o600);
    options.open(path).map_err(at(path))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn at(path: &Path) -> impl Fn(io::Error) -> OpenError {
    move |source| OpenError::Io { path: path.to_owned(), source }
}
