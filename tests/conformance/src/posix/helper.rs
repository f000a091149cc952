//! Child processes of the suite: `tombolo-conformance --helper NAME ARGUMENT…`. Locks, appends and identities
//! belong to processes, so their cases need more than one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::thread::{Gid, Uid};
use tombolo_mem::Region;
use tombolo_sys::lock::{LockKind, LockRange, try_lock};

/// Runs a helper.
pub fn run(arguments: &[String]) -> io::Result<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = match *arguments {
        ["noop"] => String::new(),
        ["append", path, byte, records, record_bytes] => {
            append(path, byte, number(records)?, number(record_bytes)?)?;
            String::new()
        }
        ["lock-try", kind, path] => match lock(kind, &open(path)?, false) {
            Ok(()) => "taken".into(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => "refused".into(),
            Err(error) => return Err(error),
        },
        ["lock-hold", kind, path] => {
            let file = open(path)?;
            lock(kind, &file, false)?;
            say("held")?;
            wait_for_end_of_input()?;
            String::new()
        }
        ["lock-wait", kind, path] => {
            let file = open(path)?;
            say("waiting")?;
            lock(kind, &file, true)?;
            "taken".into()
        }
        ["lock-both", first, second] => {
            let (first, second) = (open(first)?, open(second)?);
            lock("fcntl", &first, false)?;
            say("held")?;
            io::stdin().read_exact(&mut [0])?;
            say("waiting")?;
            // A failed case must not leave the helper waiting for ever.
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_secs(10));
                std::process::exit(1);
            });
            match rustix::fs::fcntl_lock(&second, FlockOperation::LockExclusive) {
                Ok(()) => "taken".into(),
                Err(rustix::io::Errno::DEADLK) => "deadlock".into(),
                Err(error) => return Err(error.into()),
            }
        }
        ["as", ids, action, path] => {
            become_user(ids)?;
            match act(action, Path::new(path)) {
                Ok(()) => "0".into(),
                Err(error) => error.raw_os_error().unwrap_or(-1).to_string(),
            }
        }
        ["map-write", path, offset, text] => {
            let file = open(path)?;
            let region = Region::map(&file, number(offset)? as u64, text.len()).map_err(io::Error::other)?;
            region.write_at(0, text.as_bytes()).map_err(io::Error::other)?;
            String::new()
        }
        ["map-read", path, offset, len] => {
            let file = open(path)?;
            let mut bytes = vec![0; number(len)?];
            let region = Region::map(&file, number(offset)? as u64, bytes.len()).map_err(io::Error::other)?;
            region.read_at(0, &mut bytes).map_err(io::Error::other)?;
            String::from_utf8_lossy(&bytes).into_owned()
        }
        _ => return Err(io::Error::other("no such helper")),
    };
    if said.is_empty() { Ok(()) } else { say(&said) }
}

fn open(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn number(text: &str) -> io::Result<usize> {
    text.parse().map_err(io::Error::other)
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

fn wait_for_end_of_input() -> io::Result<()> {
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn append(path: &str, byte: &str, records: usize, record_bytes: usize) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(path)?;
    let record = vec![byte.as_bytes()[0]; record_bytes];
    for _ in 0..records {
        let count = file.write(&record)?;
        if count != record_bytes {
            return Err(io::Error::other(format!("a record of {record_bytes} bytes went in as {count}")));
        }
    }
    Ok(())
}

fn lock(kind: &str, file: &File, wait: bool) -> io::Result<()> {
    let operation = match wait {
        true => FlockOperation::LockExclusive,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    match kind {
        "fcntl" => Ok(rustix::fs::fcntl_lock(file, operation).map_err(as_would_block)?),
        "flock" => Ok(rustix::fs::flock(file, operation)?),
        "ofd" => Ok(try_lock(file.as_fd(), LockKind::Exclusive, LockRange { start: 0, len: 0 })?),
        _ => Err(io::Error::other("no such kind of lock")),
    }
}

/// Maps the two errors of a refused record lock (fcntl(2)) to one.
fn as_would_block(error: rustix::io::Errno) -> rustix::io::Errno {
    if error == rustix::io::Errno::ACCESS { rustix::io::Errno::AGAIN } else { error }
}

/// Parses `uid:gid` or `uid:gid:group,group…` and switches to that user.
fn become_user(ids: &str) -> io::Result<()> {
    let mut parts = ids.split(':');
    let mut id = || -> io::Result<u32> { Ok(number(parts.next().unwrap_or_default())? as u32) };
    let (uid, gid) = (id()?, id()?);
    let groups: Result<Vec<_>, _> =
        parts.next().unwrap_or_default().split(',').filter(|group| !group.is_empty()).map(number).collect();
    let groups: Vec<_> = groups?.into_iter().map(|group| Gid::from_raw(group as u32)).collect();
    // A helper has one thread, so its identity is the process's.
    rustix::thread::set_thread_groups(&groups)?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    rustix::process::umask(rustix::fs::Mode::from_bits_retain(0o022));
    Ok(())
}

fn act(action: &str, path: &Path) -> io::Result<()> {
    match action {
        "stat" => fs::symlink_metadata(path).map(drop),
        "read" => File::open(path)?.read(&mut [0; 1]).map(drop),
        "write" => OpenOptions::new().write(true).open(path)?.write_all_at(b"w", 0),
        "truncate" => OpenOptions::new().write(true).truncate(true).open(path).map(drop),
        "create" => OpenOptions::new().write(true).create_new(true).mode(0o666).open(path).map(drop),
        "create-set-gid" => OpenOptions::new().write(true).create_new(true).mode(0o2775).open(path).map(drop),
        "mkdir" => fs::create_dir(path),
        "list" => fs::read_dir(path).map(drop),
        "unlink" => fs::remove_file(path),
        "rename" => fs::rename(path, path.with_extension("renamed")),
        "symlink" => symlink("target", path),
        "chmod-set-gid" => fs::set_permissions(path, fs::Permissions::from_mode(0o2755)),
        "access-w" => Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?),
        "exec" => std::process::Command::new(path).args(["--helper", "noop"]).output().map(drop),
        _ => Err(io::Error::other("no such action")),
    }
}
