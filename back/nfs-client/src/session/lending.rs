//! Extensions of this product's servers, by the side program: digests, compressed reads, leases, and data
//! from a cache.

use std::ops::Range;
use std::time::Duration;

use tombolo_core::fs::{
    Attr, COMPRESSED_BYTES_MAX, COMPRESSED_RANGES_MAX, CompressedReads, DIGESTED_BYTES, Digests, LeaseAnswer,
    LeaseRequest, Leases, Lending, NodeId, Packed, PersistentHandle, WeakAttr,
};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_mem::Sink;
use tombolo_wire_nfs3::FileHandle;
use tombolo_wire_nfs3::attr::wcc_attr;
use tombolo_wire_nfs3::side::{self, CHUNK_BYTES, LeaseArgs, LeaseOperation, LeaseState, LendArgs};

use super::file_system::NfsFileSystem;
use super::view::View;
use crate::calls::answered;

const _: () = assert!(CHUNK_BYTES == DIGESTED_BYTES);
const _: () = assert!(side::COMPRESSED_BYTES_MAX as u64 == COMPRESSED_BYTES_MAX);
const _: () = assert!(side::COMPRESSED_RANGES_MAX == COMPRESSED_RANGES_MAX);

impl Digests for NfsFileSystem {
    fn digests(&self, cx: &Ctx, node: NodeId, range: Range<u64>) -> Answer<(Attr, Vec<u8>)> {
        Answer::later(View::new(self.session(), cx).digests(node, range))
    }
}

impl CompressedReads for NfsFileSystem {
    fn read_compressed(&self, cx: &Ctx, node: NodeId, parts: &[Range<u64>], into: Sink) -> Answer<Packed> {
        Answer::later(View::new(self.session(), cx).packed(node, parts.to_vec(), into))
    }
}

impl Leases for NfsFileSystem {
    fn lease(&self, cx: &Ctx, ask: LeaseRequest) -> Answer<LeaseAnswer> {
        Answer::later(View::new(self.session(), cx).lease(ask))
    }
}

impl Lending for NfsFileSystem {
    fn lend(
        &self,
        cx: &Ctx,
        handle: &PersistentHandle,
        version: &WeakAttr,
        offset: u64,
        into: Sink,
    ) -> Answer<()> {
        Answer::later(View::new(self.session(), cx).lend(handle.clone(), *version, offset, into))
    }
}

impl View {
    async fn digests(self, node: NodeId, range: Range<u64>) -> Result<(Attr, Vec<u8>)> {
        let (node, asked) = (self.session.nodes.node(node)?, self.now());
        let count = u32::try_from(range.end.saturating_sub(range.start)).unwrap_or(u32::MAX);
        let call = |handle| self.session.nfs.digests(&self.caller, handle, range.start, count);
        let (fattr, digests) = answered(self.on(&node, call).await?)?;
        Ok((self.told(&node, &fattr, asked)?, digests))
    }

    async fn packed(self, node: NodeId, parts: Vec<Range<u64>>, into: Sink) -> Result<Packed> {
        let (node, asked) = (self.session.nodes.node(node)?, self.now());
        let call = |handle| self.session.nfs.packed(&self.caller, handle, &parts, into.clone());
        let (fattr, compressed_bytes) = answered(self.on(&node, call).await?)?;
        Ok(Packed { attr: self.told(&node, &fattr, asked)?, compressed_bytes })
    }

    async fn lease(self, ask: LeaseRequest) -> Result<LeaseAnswer> {
        let (act, epoch) = match ask {
            LeaseRequest::Grant => (LeaseOperation::Grant, 0),
            LeaseRequest::Keep(epoch) => (LeaseOperation::Keep, epoch),
            LeaseRequest::GiveBack(epoch) => (LeaseOperation::GiveBack, epoch),
        };
        let root = self.session.nodes.root().handle();
        let args = LeaseArgs { file: root.as_handle(), act, epoch };
        let told = answered(self.session.nfs.lease(&self.caller, args).await?)?;
        let time = Duration::from_millis(told.time_ms.into());
        Ok(match told.state {
            LeaseState::Held => LeaseAnswer::Held { epoch: told.epoch, term: time },
            LeaseState::Recalled => LeaseAnswer::Recalled,
            LeaseState::NotHeld => LeaseAnswer::NotHeld { after: time },
        })
    }

    async fn lend(self, handle: PersistentHandle, version: WeakAttr, offset: u64, into: Sink) -> Result<()> {
        let (kind, export) = (handle.kind.cast_unsigned(), self.session.nodes.root().handle());
        let file = FileHandle::new(&handle.bytes).ok_or(Error::NotSupported)?;
        let count = u32::try_from(into.len()).map_err(|_| Error::InvalidArgument)?;
        let version = wcc_attr(&version);
        let args = LendArgs { export: export.as_handle(), kind, file, version, offset, count };
        answered(self.session.nfs.lend(&self.caller, args, into).await?)
    }
}
