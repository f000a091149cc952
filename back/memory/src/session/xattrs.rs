//! Extended attributes with the rules of their namespaces (xattr(7)), and access control lists.

use tombolo_core::fs::{AccessMask, FileType, Mode, NodeId, XattrName, XattrSet, Xattrs};
use tombolo_core::{Answer, Ctx, Error, Result};

use super::{Session, View};
use crate::acl::Acl;
use crate::directory::Ino;
use crate::node::Node;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Maximum size of a value, in bytes (xattr(7)).
const VALUE_MAX: usize = 65_536;
/// Maximum size of all attributes of a node, names and values, in bytes.
const TOTAL_MAX: usize = 4 * VALUE_MAX;

impl Xattrs for Session {
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.view().xattr(cx, node, name.as_bytes(), limit_bytes).into()
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
        self.view().set_xattr(cx, node, name.as_bytes(), value, how, kill_set_gid).into()
    }

    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.view().list_xattrs(cx, node, limit_bytes).into()
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        self.view().remove_xattr(cx, node, name.as_bytes()).into()
    }
}

impl View<'_> {
    fn xattr(&self, cx: &Ctx, node: NodeId, name: &[u8], limit_bytes: usize) -> Result<Vec<u8>> {
        let node = self.node(node)?;
        self.check_namespace(cx, node, name, AccessMask::READ)?;
        let value = match name {
            ACCESS_ACL => node.access_acl.as_ref().map(Acl::to_bytes),
            DEFAULT_ACL => node.default_acl.as_ref().map(Acl::to_bytes),
            _ => node.xattrs.get(name).map(|value| value.to_vec()),
        };
        let value = value.ok_or(Error::NoAttribute)?;
        if value.len() > limit_bytes { Err(Error::OutOfRange) } else { Ok(value) }
    }

    fn list_xattrs(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Result<Vec<u8>> {
        let node = self.node(node)?;
        let sees_trusted = !self.checks() || cx.identity.is_root();
        let acls = [(ACCESS_ACL, node.access_acl.is_some()), (DEFAULT_ACL, node.default_acl.is_some())];
        let acls = acls.iter().filter(|(_, present)| *present).map(|(name, _)| *name);
        let plain = node.xattrs.keys().map(|name| &**name);
        let mut names = Vec::new();
        for name in acls.chain(plain.filter(|name| sees_trusted || !name.starts_with(b"trusted."))) {
            names.extend_from_slice(name);
            names.push(0);
        }
        if names.len() > limit_bytes { Err(Error::OutOfRange) } else { Ok(names) }
    }

    fn set_xattr(
        &mut self,
        cx: &Ctx,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
        kill_set_gid: bool,
    ) -> Result<()> {
        let ino = self.ino(node)?;
        let node = self.tree.node(ino)?;
        self.check_namespace(cx, node, name, AccessMask::WRITE)?;
        if value.len() > VALUE_MAX {
            return Err(Error::TooBig);
        }
        if name == ACCESS_ACL || name == DEFAULT_ACL {
            return self.set_acl(cx, ino, name, value, kill_set_gid);
        }
        match (node.xattrs.contains_key(name), how) {
            (true, XattrSet::Create) => return Err(Error::Exists),
            (false, XattrSet::Replace) => return Err(Error::NoAttribute),
            _ => {}
        }
        let others = node.xattrs.iter().filter(|(other, _)| &***other != name);
        let taken: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        if taken + name.len() + value.len() > TOTAL_MAX {
            return Err(Error::NoSpace);
        }
        let node = self.tree.node_mut(ino)?;
        node.xattrs.insert(name.into(), value.into());
        node.update_ctime();
        Ok(())
    }

    fn remove_xattr(&mut self, cx: &Ctx, node: NodeId, name: &[u8]) -> Result<()> {
        let ino = self.ino(node)?;
        self.check_namespace(cx, self.tree.node(ino)?, name, AccessMask::WRITE)?;
        let node = self.tree.node_mut(ino)?;
        let present = match name {
            ACCESS_ACL => node.access_acl.take().is_some(),
            DEFAULT_ACL => node.default_acl.take().is_some(),
            _ => node.xattrs.remove(name).is_some(),
        };
        if !present {
            return Err(Error::NoAttribute);
        }
        node.update_ctime();
        Ok(())
    }

    /// Sets an ACL. `XattrSet` is ignored, as by the kernel.
    fn set_acl(&mut self, cx: &Ctx, ino: Ino, name: &[u8], value: &[u8], kill_set_gid: bool) -> Result<()> {
        let acl = if value.is_empty() { None } else { Some(Acl::parse(value)?) };
        let checks = self.checks();
        let node = self.tree.node_mut(ino)?;
        if name == DEFAULT_ACL {
            if !node.is_directory() {
                return if acl.is_some() { Err(Error::AccessDenied) } else { Ok(()) };
            }
            node.default_acl = acl;
        } else {
            if let Some(acl) = &acl {
                node.mode = acl.mode(node.mode);
            }
            node.access_acl = acl.filter(|acl| !acl.is_minimal());
            if kill_set_gid || (checks && cx.identity.loses_set_gid(node.gid)) {
                node.mode = Mode::new(node.mode.bits() & !Mode::SET_GID);
            }
        }
        node.update_ctime();
        Ok(())
    }

    /// Checks the namespace's rules: file types and permitted users (xattr(7)).
    fn check_namespace(&self, cx: &Ctx, node: &Node, name: &[u8], mask: AccessMask) -> Result<()> {
        let writes = mask.contains(AccessMask::WRITE);
        if name == ACCESS_ACL || name == DEFAULT_ACL {
            return match node.file_type() {
                FileType::Symlink => Err(Error::NotSupported),
                _ if writes => self.check_owner(cx, node),
                _ => Ok(()),
            };
        }
        let trusted = !self.checks() || cx.identity.is_root();
        let (namespace, bare) = match name.iter().position(|&byte| byte == b'.') {
            Some(dot) => name.split_at(dot + 1),
            None => return Err(Error::NotSupported),
        };
        match namespace {
            _ if bare.is_empty() => Err(Error::InvalidArgument),
            b"user." => match node.file_type() {
                FileType::Regular => self.check_access(cx, node, mask),
                FileType::Directory => {
                    if writes && node.mode.bits() & Mode::STICKY != 0 {
                        self.check_owner(cx, node)?;
                    }
                    self.check_access(cx, node, mask)
                }
                _ if writes => Err(Error::NotPermitted),
                _ => Err(Error::NoAttribute),
            },
            b"trusted." if trusted => Ok(()),
            b"trusted." if writes => Err(Error::NotPermitted),
            b"trusted." => Err(Error::NoAttribute),
            b"security." if trusted || !writes => Ok(()),
            b"security." => Err(Error::NotPermitted),
            _ => Err(Error::NotSupported),
        }
    }
}
