//! Parser for the output of `strace -f -xx -y`. All strings and paths in it are hexadecimal, so that
//! punctuation outside of them is strace's own.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, PathBuf};

/// Traced calls: all that change files, all that return their descriptors, and those that the recorder
/// refuses.
pub(crate) const CALLS: &str = "trace=open,openat,openat2,creat,dup,dup2,dup3,fcntl,lseek,chdir,fchdir,\
    close,clone,clone3,execve,statx,utimensat,write,writev,pwrite64,pwritev,pwritev2,ftruncate,truncate,fallocate,fsync,fdatasync,syncfs,sync,sync_file_range,\
    mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,link,linkat,symlink,symlinkat,mknod,mknodat,\
    mmap,msync,ioctl,copy_file_range,sendfile,splice,io_uring_setup";

/// A successful call.
pub(crate) struct Call<'a> {
    /// Calling thread.
    pub thread: &'a str,
    pub name: &'a str,
    pub arguments: Vec<&'a str>,
    pub result: u64,
}

/// Calls `begin` when each call begins, and `end` with its result when it ends.
pub(crate) fn calls<T: Default>(
    text: &str,
    mut begin: impl FnMut() -> T,
    mut end: impl FnMut(T, &Call<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let mut begun: HashMap<&str, (T, &str)> = HashMap::new();
    for line in text.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if let Some(start) = call.strip_suffix("<unfinished ...>") {
            begun.insert(thread, (begin(), start));
            continue;
        }
        let (noted, call) = match call.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>")) {
            Some((_, rest)) => {
                let (noted, start) = begun.remove(thread).unwrap_or_default();
                (noted, format!("{start}{rest}"))
            }
            None => (begin(), call.to_owned()),
        };
        if let Some(call) = parsed(thread, &call) {
            end(noted, &call).map_err(|error| {
                let shown: String = line.chars().take(300).collect();
                format!("{error}: {shown}")
            })?;
        }
    }
    Ok(())
}

/// Returns the creator of each additional thread. Processes have none.
pub(crate) fn threads(text: &str) -> HashMap<&str, &str> {
    let mut begun = HashMap::new();
    let mut threads = HashMap::new();
    for line in text.lines() {
        let Some((maker, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        let is_threads = |call: &str| call.contains("CLONE_THREAD");
        if call.starts_with("clone") {
            begun.insert(maker, is_threads(call));
        } else if !call.starts_with("<... clone") {
            continue;
        }
        let result = call.rsplit_once(" = ").map(|(_, result)| result.split(' ').next().unwrap_or(result));
        if let Some(thread) = result.filter(|_| begun.get(maker) == Some(&true)) {
            threads.insert(thread, maker);
        }
    }
    threads
}

/// Parses a call; `None` if it failed, or is no call.
fn parsed<'a>(thread: &'a str, call: &'a str) -> Option<Call<'a>> {
    let (call, result) = call.rsplit_once(" = ")?;
    let digits = result.split([' ', '<']).next()?;
    let result = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => digits.parse().ok()?,
    };
    let (name, arguments) = call.split_once('(')?;
    let arguments = split(arguments.trim_end().strip_suffix(')')?);
    Some(Call { thread, name, arguments, result })
}

/// Splits at commas outside of brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_u32, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

impl Call<'_> {
    pub(crate) fn argument(&self, index: usize) -> Result<&str, String> {
        self.arguments.get(index).copied().ok_or_else(|| format!("{} without argument {index}", self.name))
    }

    pub(crate) fn number(&self, index: usize) -> Result<u64, String> {
        let argument = self.argument(index)?;
        argument.parse().map_err(|_| format!("{argument} is no number"))
    }

    pub(crate) fn has_flag(&self, index: usize, flag: &str) -> bool {
        self.arguments
            .get(index)
            .is_some_and(|flags| flags.split(|c| "|,={} ".contains(c)).any(|each| each == flag))
    }

    /// Returns a descriptor's number and path.
    pub(crate) fn descriptor(&self, index: usize) -> Option<(&str, PathBuf)> {
        let (number, rest) = self.arguments.get(index)?.split_once('<')?;
        Some((number, path(&rest[..rest.rfind('>')?])?))
    }

    /// Returns `true` if the name by which that descriptor's file was opened is deleted.
    pub(crate) fn is_nameless(&self, index: usize) -> bool {
        self.arguments.get(index).is_some_and(|argument| argument.ends_with("(deleted)"))
    }

    /// Returns the time after this word.
    pub(crate) fn time(&self, word: &str) -> Option<(u64, u32)> {
        let (_, time) = self.arguments.iter().find_map(|argument| argument.split_once(word))?;
        let field = |name: &str| {
            let rest = time.split_once(name)?.1;
            rest.split(|c: char| !c.is_ascii_digit()).next()
        };
        Some((field("tv_sec=")?.parse().ok()?, field("tv_nsec=")?.parse().ok()?))
    }

    /// Returns a path argument; relative ones start at the directory of argument `from`.
    pub(crate) fn path(&self, index: usize, from: Option<usize>) -> Result<PathBuf, String> {
        let quoted = self.argument(index)?.trim_matches('"');
        let path = path(quoted).ok_or_else(|| format!("{quoted} is no path"))?;
        let base = from.and_then(|from| self.descriptor(from)).map(|(_, base)| base);
        let mut named = PathBuf::new();
        for component in base.map_or(path.clone(), |base| base.join(path)).components() {
            // There are no symbolic links.
            match component {
                Component::ParentDir => drop(named.pop()),
                other => named.push(other),
            }
        }
        Ok(named)
    }

    /// Returns the bytes of a buffer or an array of buffers, as far as the call transferred them.
    pub(crate) fn bytes(&self, index: usize) -> Result<Vec<u8>, String> {
        let argument = self.argument(index)?;
        let mut bytes = Vec::new();
        for quoted in argument.split('"').skip(1).step_by(2) {
            bytes.extend(unescaped(quoted).ok_or("bytes that are not hexadecimal")?);
        }
        let count = usize::try_from(self.result).map_err(|error| error.to_string())?;
        if bytes.len() < count {
            return Err(format!("{} of {count} bytes were recorded", bytes.len()));
        }
        bytes.truncate(count);
        Ok(bytes)
    }
}

fn path(text: &str) -> Option<PathBuf> {
    Some(PathBuf::from(OsString::from_vec(unescaped(text)?)))
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let digits = |text: &[u8]| u8::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok();
    let (bytes, rest) = text.as_bytes().as_chunks::<4>();
    if !rest.is_empty() {
        return None;
    }
    bytes.iter().map(|byte| digits(byte.strip_prefix(b"\\x")?)).collect()
}
