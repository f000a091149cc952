//! What this machine knows about its users.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;

use crate::errno::{Errno, Result};

/// Longer entries of the user database than this are not read, in bytes.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// No user is in more groups (NGROUPS_MAX).
const GROUPS_MAX: usize = 65_536;

/// The groups of a user, by the user and group databases of this machine: the primary one too, in no order. `None` for a
/// user that is not known.
///
/// It reads files, and asks whatever servers the machine is set up to ask (nsswitch.conf): it may wait for long.
pub fn groups_of(uid: u32) -> Result<Option<Vec<u32>>> {
    let mut entry = vec![0_u8; 1024];
    loop {
        match find_user(uid, &mut entry) {
            Err(Errno::RANGE) if entry.len() < ENTRY_BYTES_MAX => entry.resize(entry.len() * 4, 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(None) => return Ok(None),
            Ok(Some((name, group))) => return groups_by_name(&name, group).map(Some),
        }
    }
}

/// The group of that name. It reads files and asks servers, as [`groups_of`] does.
pub fn group_id(name: &str) -> Result<Option<u32>> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let mut entry = vec![0_u8; 1024];
    loop {
        match find_group(&name, &mut entry) {
            Err(Errno::RANGE) if entry.len() < ENTRY_BYTES_MAX => entry.resize(entry.len() * 4, 0),
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

fn find_group(name: &CStr, entry: &mut [u8]) -> Result<Option<u32>> {
    let mut group = MaybeUninit::<libc::group>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: the name ends with a zero byte; the library writes a structure to `group`, at most `len` bytes to `entry`, and a pointer to
    // `found`; all are ours.
    let outcome = unsafe {
        libc::getgrnam_r(
            name.as_ptr(),
            group.as_mut_ptr(),
            entry.as_mut_ptr().cast(),
            entry.len(),
            &raw mut found,
        )
    };
    match outcome {
        0 if found.is_null() => Ok(None),
        libc::ENOENT | libc::ESRCH => Ok(None),
        // SAFETY: the call succeeded and found one, so it has filled the structure.
        0 => Ok(Some(unsafe { group.assume_init() }.gr_gid)),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// A user's name and primary group. `entry` is where the database's entry goes.
fn find_user(uid: u32, entry: &mut [u8]) -> Result<Option<(CString, u32)>> {
    let mut user = MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: the library writes a structure to `user`, at most `len` bytes to `entry`, and a pointer to `found`; all are ours.
    let outcome = unsafe {
        libc::getpwuid_r(uid, user.as_mut_ptr(), entry.as_mut_ptr().cast(), entry.len(), &raw mut found)
    };
    match outcome {
        // POSIX wants 0 for a user that is not there; some modules say it so (getpwuid(3)).
        0 if found.is_null() => return Ok(None),
        libc::ENOENT | libc::ESRCH => return Ok(None),
        0 => {}
        errno => return Err(Errno::from_raw_os_error(errno)),
    }
    // SAFETY: the call succeeded and found a user, so it has filled the structure.
    let user = unsafe { user.assume_init() };
    if user.pw_name.is_null() {
        return Ok(None);
    }
    // SAFETY: it points to a string in `entry`, which ends with a zero byte; it is copied at once.
    let name = unsafe { CStr::from_ptr(user.pw_name) }.to_owned();
    Ok(Some((name, user.pw_gid)))
}

fn groups_by_name(name: &CStr, primary: u32) -> Result<Vec<u32>> {
    let mut groups = vec![0; 64];
    loop {
        let mut count = libc::c_int::try_from(groups.len()).map_err(|_| Errno::INVAL)?;
        // SAFETY: the name ends with a zero byte, and the library writes at most `count` groups into the buffer of that many.
        let outcome =
            unsafe { libc::getgrouplist(name.as_ptr(), primary, groups.as_mut_ptr(), &raw mut count) };
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        if outcome >= 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        if groups.len() >= GROUPS_MAX {
            return Err(Errno::RANGE);
        }
        // It says how many there are, but not on every system.
        groups.resize(count.max(groups.len() * 2).min(GROUPS_MAX), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_in_its_group_and_the_last_id_is_no_user() {
        let groups = groups_of(0).expect("the user database").expect("root");
        assert!(groups.contains(&0), "{groups:?}");
        assert_eq!(groups_of(u32::MAX - 7).expect("the user database"), None);
    }

    #[test]
    fn groups_have_numbers() {
        assert_eq!(group_id("root"), Ok(Some(0)));
        assert_eq!(group_id("no such group"), Ok(None));
        assert_eq!(find_group(c"root", &mut [0; 4]), Err(Errno::RANGE));
    }

    #[test]
    fn a_small_buffer_is_not_the_end() {
        assert_eq!(find_user(0, &mut [0; 4]).map(|found| found.is_some()), Err(Errno::RANGE));
    }
}
