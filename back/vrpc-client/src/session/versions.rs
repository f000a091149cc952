//! Versions of nodes, checked in the server's window.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tombolo_core::fs::{Attr, NodeId, Version, Versions, WindowMirror};
use tombolo_core::{Answer, Ctx};
use tombolo_mem::Region;
use tombolo_wire_vrpc::{Reply, Request};

use super::{VrpcFileSystem, pick};
use crate::link::Link;

impl Versions for VrpcFileSystem {
    fn look(&self, cx: &Ctx, node: NodeId) -> Answer<(Attr, Option<Version>)> {
        self.links.call(cx, Request::Look { node }, |link, answered| {
            let (version, attr) = answered.extract(link, pick!(Looked(version, attr)))?;
            let usable = version.filter(|_| link.line.window().is_some());
            Ok((attr, usable.map(|version| Version { epoch: epoch_on(link, version.epoch), ..version })))
        })
    }

    #[inline]
    fn hold(&self, versions: &[Version]) -> bool {
        let link = self.links.current_now();
        let Some(window) = link.line.window() else { return false };
        let counts = window.counts();
        let apart = epoch_on(&link, 0);
        let holds = |version: &Version| {
            counts.holds(&Version { epoch: version.epoch.wrapping_sub(apart), ..*version })
        };
        // A dead server counts no changes, so its window proves nothing.
        versions.iter().all(holds) && !link.line.is_lost()
    }

    /// Returns `None`: the window would still seem valid after the loss of this link.
    fn window(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Returns `None`, as [`window`](Self::window) does.
    fn mirror(&self, _: &Region, _: usize) -> Option<Box<dyn WindowMirror>> {
        None
    }
}

/// Converts a window's epoch to the session's, which differs for each link: changes between two links may not
/// have been counted.
#[inline]
fn epoch_on(link: &Link, epoch: u64) -> u64 {
    // 2^64 divided by the golden ratio, so that the epochs of successive links do not coincide.
    const FAR_APART: u64 = 0x9E37_79B9_7F4A_7C15;
    epoch.wrapping_add(u64::from(link.number).wrapping_mul(FAR_APART))
}
