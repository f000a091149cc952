//! What a server knows of further domains, on one link.

use std::os::fd::OwnedFd;
use std::sync::Mutex;

use tombolo_mem::Source;
use tombolo_shm::address::{AddressError, BaseTable, Domain, GlobalAddress};
use tombolo_shm::link::{Extent, FORWARDED_REGIONS_MAX, ForwardRegion, RegionForwarded};
use tombolo_shm::region::sealed;

use super::forwardable_region::{CutFn, ForwardableRegion};
use crate::end::ProtocolError;
use tombolo_host_runtime::lock;

/// The regions that a client has forwarded. Any thread may use it; the lock is held for no longer than a
/// look.
#[derive(Debug)]
pub(crate) struct ForwardedRegions {
    /// Most bytes that all of them have together.
    bytes_max: u64,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    bases: BaseTable,
    /// Those that are known, with the size of each.
    known: Vec<(Domain, u64)>,
    /// The number that was used last. They only grow: a late message never means another region than it was
    /// sent for.
    last: Option<Domain>,
}

impl ForwardedRegions {
    /// None yet; all together may have so many bytes.
    pub(crate) fn new(bytes_max: u64) -> ForwardedRegions {
        let table = Table { bases: BaseTable::empty(), known: Vec::new(), last: None };
        ForwardedRegions { bytes_max, table: Mutex::new(table) }
    }

    /// Adds a forwarded region. Memory that is not sealed as it must be, or exceeds the limit, is not taken;
    /// a number that was used before is a protocol error.
    pub(crate) fn add(
        &self,
        forwarded: &ForwardRegion,
        memory: OwnedFd,
        cut: CutFn,
    ) -> Result<RegionForwarded, ProtocolError> {
        let domain = forwarded.domain;
        let not_taken = RegionForwarded { domain, is_known: false };
        {
            let mut table = lock(&self.table);
            if table.last.is_some_and(|last| domain <= last) {
                return Err(ProtocolError::Malformed(
                    format!("domain {domain} is forwarded a second time").into(),
                ));
            }
            table.last = Some(domain);
            let bytes =
                table.known.iter().fold(forwarded.bytes, |sum, (_, bytes)| sum.saturating_add(*bytes));
            if table.known.len() >= FORWARDED_REGIONS_MAX || bytes > self.bytes_max {
                return Ok(not_taken);
            }
        }
        let region = match sealed::map_peer(&memory, forwarded.bytes) {
            Ok(region) => region,
            Err(error) => {
                tracing::debug!(%domain, %error, "memory that is not taken");
                return Ok(not_taken);
            }
        };
        let (bytes, nameable) = (forwarded.bytes, forwarded.nameable.clone());
        // It may be forwarded further.
        let forwardable = ForwardableRegion::mark(&region, memory, bytes, nameable.clone(), forwarded.user);
        forwardable.belongs_to(cut);
        let mut table = lock(&self.table);
        let outcome = table.bases.add(domain, Extent::whole(region), nameable);
        outcome.map_err(|error| ProtocolError::Malformed(error.to_string().into()))?;
        table.known.push((domain, bytes));
        Ok(RegionForwarded { domain, is_known: true })
    }

    /// A client names that domain no more. One that was not taken is nothing to forget.
    pub(crate) fn withdraw(&self, domain: Domain) -> Result<(), ProtocolError> {
        let mut table = lock(&self.table);
        if table.last.is_none_or(|last| domain > last) {
            return Err(ProtocolError::Malformed(
                format!("domain {domain} is withdrawn and was never forwarded").into(),
            ));
        }
        table.known.retain(|(known, _)| *known != domain);
        let forgotten = table.bases.forget(domain);
        drop(table);
        // Not under the lock: it may be unmapped here.
        drop(forgotten);
        Ok(())
    }

    /// Bytes of one of them, to be read. They stay mapped as long as the source lives.
    pub(crate) fn source(&self, address: GlobalAddress, len_bytes: u64) -> Result<Source, AddressError> {
        lock(&self.table).bases.source(address, len_bytes)
    }
}
