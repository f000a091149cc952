//! Extended attributes: the origin's, where supported, with local changes. One attribute of the root is this
//! layer's own.
//!
//! Access control lists are neither shown nor accepted: permissions of changed files follow from their mode.

use tombolo_core::fs::{
    AccessMask, Attr, FileType, Mode, NodeId, Ownership, Watermarks, XattrName, XattrNameBuf, XattrSet,
    Xattrs, within,
};
use tombolo_core::{Answer, Ctx, Error, Identity, Result};

use super::file_system::WriteBackFileSystem;
use super::{View, below_cx};
use crate::tree::now;

/// Limit of a value, of a list of names (xattr(7)), and of the unsent changes of one file, in bytes.
const BYTES_MAX: usize = 64 << 10;

const ACCESS_LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

impl Xattrs for WriteBackFileSystem {
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        let shared = &self.session().shared;
        match (name.as_bytes() == Watermarks::XATTR, node) {
            (true, NodeId::ROOT) => fitting(shared.watermarks().to_string().into_bytes(), limit_bytes).into(),
            (true, _) => Answer::err(Error::NoAttribute),
            _ if shared.below.xattrs().is_none() => Answer::err(Error::NotSupported),
            _ => Answer::later(self.view(cx).get_xattr(node, name.to_owned(), limit_bytes)),
        }
    }

    fn set(
        &self,
        cx: &Ctx,
        node: NodeId,
        name: XattrName<'_>,
        value: &[u8],
        how: XattrSet,
        _: bool,
    ) -> Answer<()> {
        let value = Some(value.to_vec());
        self.if_origin_has_any(self.view(cx).change_xattr(node, name.to_owned(), value, how))
    }

    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.if_origin_has_any(self.view(cx).list_xattrs(node, limit_bytes))
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        self.if_origin_has_any(self.view(cx).change_xattr(node, name.to_owned(), None, XattrSet::Replace))
    }
}

impl WriteBackFileSystem {
    /// Runs `work`, or fails with `NotImplemented` if the origin has no extended attributes: a kernel then
    /// never sends such a call again. `get` is answered nevertheless, for the root's own attribute.
    fn if_origin_has_any<T>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Answer<T> {
        match self.session().shared.below.xattrs() {
            Some(_) => Answer::later(work),
            None => Answer::err(Error::NotImplemented),
        }
    }
}

impl View {
    async fn get_xattr(self, id: NodeId, name: XattrNameBuf, limit_bytes: usize) -> Result<Vec<u8>> {
        let attr = self.attr(id).await?;
        self.check_xattr(id, &attr, name.as_name().as_bytes(), AccessMask::READ).await?;
        let value = self.xattr(id, name.as_name()).await?;
        fitting(value.ok_or(Error::NoAttribute)?, limit_bytes)
    }

    /// Sets an extended attribute, or with `None` removes it.
    async fn change_xattr(
        self,
        id: NodeId,
        name: XattrNameBuf,
        value: Option<Vec<u8>>,
        how: XattrSet,
    ) -> Result<()> {
        let (name, bytes) = (name.as_name(), name.as_name().as_bytes());
        if bytes == Watermarks::XATTR {
            return Err(Error::NotPermitted);
        }
        loop {
            let (epoch, seen, is_new) = {
                let tree = self.shared().tree();
                let seen = tree.nodes.get(&id).and_then(|node| node.xattrs.get(bytes)).cloned();
                (tree.epoch, seen, tree.below(id).is_none())
            };
            let attr = self.attr(id).await?;
            self.check_xattr(id, &attr, bytes, AccessMask::WRITE).await?;
            if value.as_ref().is_some_and(|value| value.len() > BYTES_MAX) {
                return Err(Error::TooBig);
            }
            if is_new {
                // The origin lacks the file: the root shows if it supports such a name.
                self.xattr_below(NodeId::ROOT, name, Identity::ROOT).await?;
            }
            match (how, self.xattr(id, name).await?) {
                (XattrSet::Create, Some(_)) => return Err(Error::Exists),
                (XattrSet::Replace, None) => return Err(Error::NoAttribute),
                _ => {}
            }
            let (is_done, ticket) = self.shared().change(|tree| {
                let here = tree.nodes.get(&id).and_then(|node| node.xattrs.get(bytes));
                if tree.epoch != epoch || here != seen.as_ref() {
                    return Ok(false);
                }
                let kept = tree.nodes.get(&id).map_or(0, |node| node.xattr_bytes(bytes));
                if kept + bytes.len() + value.as_ref().map_or(0, Vec::len) > BYTES_MAX {
                    return Err(Error::NoSpace);
                }
                let node = tree.touch(id, &attr);
                node.set_xattr(bytes, value.as_deref());
                node.attr.ctime = now();
                node.user = self.cx.identity.clone();
                Ok(true)
            })?;
            if is_done {
                return self.stable_if_keyed(((), ticket)).await;
            }
        }
    }

    async fn list_xattrs(self, id: NodeId, limit_bytes: usize) -> Result<Vec<u8>> {
        self.attr(id).await?;
        let fs = &self.shared().below;
        let below = self.shared().tree().below(id);
        let mut listed = match (below, fs.xattrs()) {
            (Some(below), Some(xattrs)) => xattrs.list(&self.below_cx(), below, BYTES_MAX).resolve().await?,
            _ => Vec::new(),
        };
        let tree = self.shared().tree();
        let Some(node) = tree.nodes.get(&id) else {
            return fitting(without(&listed, |_| false), limit_bytes);
        };
        listed = without(&listed, |name| node.xattr(name).is_some());
        let sees = |name: &[u8]| self.cx.identity.is_root() || !name.starts_with(b"trusted.");
        for (name, _) in node.xattrs.iter().filter(|(name, value)| value.is_some() && sees(name)) {
            listed.extend_from_slice(name);
            listed.push(0);
        }
        fitting(listed, limit_bytes)
    }

    async fn xattr(&self, id: NodeId, name: XattrName<'_>) -> Result<Option<Vec<u8>>> {
        let (here, below, is_ours) = {
            let tree = self.shared().tree();
            let node = tree.nodes.get(&id);
            let here = node.and_then(|node| node.xattr(name.as_bytes())).map(|here| here.map(<[u8]>::to_vec));
            (here, tree.below(id), node.is_some())
        };
        // Of a changed node the superuser reads: the origin may lack the attributes just checked.
        let user = if is_ours { Identity::ROOT } else { self.cx.identity.clone() };
        match (here, below) {
            (Some(here), _) => Ok(here),
            (None, None) => Ok(None),
            (None, Some(below)) => self.xattr_below(below, name, user).await,
        }
    }

    async fn xattr_below(
        &self,
        node: NodeId,
        name: XattrName<'_>,
        user: Identity,
    ) -> Result<Option<Vec<u8>>> {
        let (fs, cx) = (&self.shared().below, below_cx(&self.cx, user));
        match within(fs.xattrs(), |xattrs| xattrs.get(&cx, node, name, BYTES_MAX)).resolve().await {
            Ok(value) => Ok(Some(value)),
            Err(Error::NoAttribute) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks an access by the rules of the name's namespace (xattr(7)).
    async fn check_xattr(&self, id: NodeId, attr: &Attr, name: &[u8], mask: AccessMask) -> Result<()> {
        let (user, writes) = (&self.cx.identity, mask.contains(AccessMask::WRITE));
        let dot = name.iter().position(|byte| *byte == b'.').ok_or(Error::NotSupported)?;
        match name.split_at(dot) {
            (_, b".") => Err(Error::InvalidArgument),
            (b"user", _) => match attr.file_type {
                FileType::Regular | FileType::Directory => {
                    let is_sticky = attr.mode.bits() & Mode::STICKY != 0;
                    if writes && is_sticky && attr.file_type == FileType::Directory {
                        Ownership::from(attr).check_owner(user)?;
                    }
                    self.check(id, mask).await
                }
                _ if writes => Err(Error::NotPermitted),
                _ => Err(Error::NoAttribute),
            },
            (b"trusted", _) if user.is_root() => Ok(()),
            (b"trusted", _) if !writes => Err(Error::NoAttribute),
            (b"security", _) if user.is_root() || !writes => Ok(()),
            (b"trusted" | b"security", _) => Err(Error::NotPermitted),
            _ if ACCESS_LISTS.contains(&name) && !writes => Err(Error::NoAttribute),
            _ => Err(Error::NotSupported),
        }
    }
}

/// Returns a list of names without access lists and the names that `is_left_out` selects.
fn without(names: &[u8], is_left_out: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let each = names.split_inclusive(|byte| *byte == 0);
    let kept = each.filter(|ended| {
        let name = ended.strip_suffix(b"\0").unwrap_or(ended);
        !ACCESS_LISTS.contains(&name) && !is_left_out(name)
    });
    kept.flatten().copied().collect()
}

fn fitting(bytes: Vec<u8>, limit_bytes: usize) -> Result<Vec<u8>> {
    if bytes.len() > limit_bytes { Err(Error::OutOfRange) } else { Ok(bytes) }
}
