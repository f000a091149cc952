//! Extended attributes, POSIX ACLs among them.

use tombolo_core::fs::{NodeId, XattrName, XattrSet, Xattrs};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_sys::xattr::{self, SetMode};
use tombolo_sys::{Errno, change, stat};

use crate::state::{LocalSession, Session};
use crate::window::ChangedFile;

/// Maximum length of a value and of the list of names (xattr(7)).
const VALUE_MAX_LEN: usize = 64 << 10;

/// Length of the buffer on the stack, in bytes; enough for most values.
const SHORT_LEN: usize = 256;

const SET_GID: u32 = 0o2000;

impl Xattrs for LocalSession {
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        if self.is_quick(node) {
            return self.now(|session| session.value(cx, node, name.as_bytes(), limit_bytes));
        }
        let name = name.as_bytes().to_vec();
        self.later(cx, move |session, cx| session.value(cx, node, &name, limit_bytes))
    }

    fn set(
        &self,
        cx: &Ctx,
        node: NodeId,
        name: XattrName<'_>,
        value: &[u8],
        how: XattrSet,
        kill_set_gid: bool,
    ) -> Answer<()> {
        if self.is_quick(node) {
            return self
                .now(|session| session.set_value(cx, node, name.as_bytes(), value, how, kill_set_gid));
        }
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        self.later(cx, move |session, cx| session.set_value(cx, node, &name, &value, how, kill_set_gid))
    }

    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.dispatch(cx, node, move |session, _| session.value_names(node, limit_bytes))
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        if self.is_quick(node) {
            return self.now(|session| session.remove_value(cx, node, name.as_bytes()));
        }
        let name = name.as_bytes().to_vec();
        self.later(cx, move |session, cx| session.remove_value(cx, node, &name))
    }
}

impl Session {
    fn value(&self, cx: &Ctx, node: NodeId, name: &[u8], limit: usize) -> Result<Vec<u8>> {
        let location = self.location(node)?;
        let _acting = self.checked(cx)?;
        sized(limit, |buffer| xattr::value(location.fd(), name, buffer))
    }

    fn set_value(
        &self,
        cx: &Ctx,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
        kill_set_gid: bool,
    ) -> Result<()> {
        self.writable()?;
        let location = self.location(node)?;
        let mode = match how {
            XattrSet::Any => SetMode::Any,
            XattrSet::Create => SetMode::Create,
            XattrSet::Replace => SetMode::Replace,
        };
        let _acting = self.checked(cx)?;
        let _changing = self.changing([ChangedFile::Key(location.identity.key)]);
        let set = || -> Result<()> {
            xattr::set(location.fd(), name, value, mode)?;
            let bits = if kill_set_gid { stat::stat(location.fd())?.mode } else { 0 };
            if bits & SET_GID != 0 {
                change::permissions(location.fd(), bits & !SET_GID)?;
            }
            Ok(())
        };
        let set = set();
        self.notify(|notifier| notifier.attributes(node));
        set
    }

    fn value_names(&self, node: NodeId, limit: usize) -> Result<Vec<u8>> {
        let location = self.location(node)?;
        sized(limit, |buffer| xattr::list(location.fd(), buffer))
    }

    fn remove_value(&self, cx: &Ctx, node: NodeId, name: &[u8]) -> Result<()> {
        self.writable()?;
        let location = self.location(node)?;
        let _acting = self.checked(cx)?;
        let _changing = self.changing([ChangedFile::Key(location.identity.key)]);
        let removed = xattr::remove(location.fd(), name);
        self.notify(|notifier| notifier.attributes(node));
        Ok(removed?)
    }
}

/// Reads a value or the list of names: into a short buffer first, into the longest one if that is too small.
fn sized(limit: usize, read: impl Fn(&mut [u8]) -> tombolo_sys::Result<usize>) -> Result<Vec<u8>> {
    let mut short = [0; SHORT_LEN];
    let bytes = match read(&mut short) {
        Ok(len) => short.get(..len).unwrap_or_default().to_vec(),
        Err(Errno::RANGE) if limit > SHORT_LEN => {
            let mut long = vec![0; VALUE_MAX_LEN];
            let len = read(&mut long)?;
            long.truncate(len);
            long.shrink_to_fit();
            long
        }
        Err(errno) => return Err(errno.into()),
    };
    if bytes.len() > limit { Err(Error::OutOfRange) } else { Ok(bytes) }
}
