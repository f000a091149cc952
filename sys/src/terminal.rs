//! Modes of terminals, and single-key input.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::errno::{Errno, Result, retry};

#[derive(Clone, Copy)]
/// A terminal's former mode. Keys are delivered one by one, without echo, until [`restore`](Self::restore).
pub struct KeyMode(libc::termios);

impl KeyMode {
    /// Changes the mode of a terminal; ENOTTY for any other file. Keys that send signals, such as ^C, still
    /// do.
    pub fn enter(terminal: BorrowedFd<'_>) -> Result<Self> {
        let before = read(terminal)?;
        let mut keys = before;
        keys.c_lflag &= !(libc::ICANON | libc::ECHO);
        (keys.c_cc[libc::VMIN], keys.c_cc[libc::VTIME]) = (1, 0);
        set(terminal, &keys).map(|()| Self(before))
    }

    /// Restores the terminal's former mode.
    pub fn restore(&self, terminal: BorrowedFd<'_>) -> Result<()> {
        set(terminal, &self.0)
    }
}

/// Makes a terminal pass bytes unchanged in both directions, without echo, flow control and signals. ENOTTY
/// for any other file.
pub fn make_raw(terminal: BorrowedFd<'_>) -> Result<()> {
    let mut modes = read(terminal)?;
    // SAFETY: the library changes a structure that is ours.
    unsafe { libc::cfmakeraw(&raw mut modes) };
    set(terminal, &modes)
}

fn read(terminal: BorrowedFd<'_>) -> Result<libc::termios> {
    let mut modes = MaybeUninit::<libc::termios>::uninit();
    // SAFETY: the descriptor is open while borrowed, and the library writes a structure to `modes`, which is
    // ours.
    if unsafe { libc::tcgetattr(terminal.as_raw_fd(), modes.as_mut_ptr()) } != 0 {
        return Err(last_errno());
    }
    // SAFETY: the call succeeded, so it has filled the structure.
    Ok(unsafe { modes.assume_init() })
}

fn set(terminal: BorrowedFd<'_>, mode: &libc::termios) -> Result<()> {
    // SAFETY: the descriptor is open while borrowed, and the library only reads the structure.
    match unsafe { libc::tcsetattr(terminal.as_raw_fd(), libc::TCSANOW, mode) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Returns the bytes of a key press within `time`, and of others that followed at once; `None` if there is
/// none, empty after a hang-up.
pub fn key_within(terminal: BorrowedFd<'_>, time: Duration) -> Result<Option<Vec<u8>>> {
    let mut polled = [PollFd::from_borrowed_fd(terminal.as_fd(), PollFlags::IN)];
    let time = Timespec::try_from(time).map_err(|_| Errno::INVAL)?;
    match poll(&mut polled, Some(&time)) {
        Ok(0) | Err(Errno::INTR) => return Ok(None),
        Ok(_) => {}
        Err(errno) => return Err(errno),
    }
    let mut bytes = [0; KEY_BYTES_MAX];
    let count = retry(|| rustix::io::read(terminal, &mut bytes))?;
    Ok(Some(bytes[..count].to_vec()))
}

/// Maximum length of a key's sequence; those of function keys are shorter.
const KEY_BYTES_MAX: usize = 16;
