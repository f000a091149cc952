//! Making directories, links and special files, and giving files further names.

use tombolo_core::fs::{Device, FileType, Made, Mode, Name, NewMode, NodeId};
use tombolo_core::{Ctx, Error, Result};
use tombolo_sys::stat::Device as SysDevice;
use tombolo_sys::{Errno, namespace};

use crate::attr::kind_bits;
use crate::location::Location;
use crate::session::Session;

impl Session {
    pub(crate) fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Result<Made> {
        let make = |dir: &Location| namespace::make_directory(dir.fd(), name.as_bytes(), mode.mode.bits());
        self.make(cx, parent, name, mode, make)
    }

    pub(crate) fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Result<Made> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::InvalidArgument);
        }
        let make = |dir: &Location| namespace::make_symlink(target, dir.fd(), name.as_bytes());
        self.make(cx, parent, name, NewMode::settled(Mode::new(0o777)), make)
    }

    pub(crate) fn mknod(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        file_type: FileType,
        mode: NewMode,
        rdev: Device,
    ) -> Result<Made> {
        if matches!(file_type, FileType::Directory | FileType::Symlink) {
            return Err(Error::BadType);
        }
        // Device nodes take a privilege that nobody has while acting as somebody else, the superuser apart.
        let bits = kind_bits(file_type) | mode.mode.bits();
        let device = SysDevice { major: rdev.major, minor: rdev.minor };
        let make = |dir: &Location| namespace::make_node(dir.fd(), name.as_bytes(), bits, device);
        self.make(cx, parent, name, mode, make)
    }

    pub(crate) fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Result<Made> {
        self.writable()?;
        let file = self.location(node)?;
        let dir = self.location(parent)?;
        let before = self.before(cx, &dir);
        {
            let _acting = self.checked(cx)?;
            namespace::link(file.fd(), dir.fd(), name.as_bytes())?;
        }
        let entry = self.lookup(cx, parent, name)?;
        Ok(Made { entry, dir: self.change(cx, before, &dir) })
    }

    fn make(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        mode: NewMode,
        make: impl FnOnce(&Location) -> std::result::Result<(), Errno>,
    ) -> Result<Made> {
        self.writable()?;
        let dir = self.location(parent)?;
        // Before it exists: if there is no room for its node, none is made.
        let permit = self.node_permit()?;
        let before = self.before(cx, &dir);
        {
            let _acting = self.making(cx, mode)?;
            make(&dir)?;
        }
        let entry = self.meet(cx, permit, parent, &dir, name)?;
        Ok(Made { entry, dir: self.change(cx, before, &dir) })
    }
}
