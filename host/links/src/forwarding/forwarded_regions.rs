//! The server's table of the regions forwarded to it over one link.

use std::os::fd::OwnedFd;
use std::sync::Mutex;

use tombolo_core::lock;
use tombolo_mem::Source;
use tombolo_shm::address::{AddressError, BaseTable, Domain, GlobalAddress};
use tombolo_shm::link::{Extent, FORWARDED_REGIONS_MAX, ForwardRegion, RegionForwarded};
use tombolo_shm::region::sealed;

use super::forwardable_region::{CutFn, ForwardableRegion};
use crate::end::ProtocolError;

/// Regions forwarded by a client. Usable from any thread; no region is mapped under the lock.
#[derive(Debug)]
pub(crate) struct ForwardedRegions {
    /// Maximum number of bytes of all regions together.
    bytes_max: u64,
    table: Mutex<RegionTable>,
}

#[derive(Debug)]
struct RegionTable {
    bases: BaseTable,
    /// Registered domains, with their sizes.
    registered: Vec<(Domain, u64)>,
    /// Last domain number used. Numbers only increase, so that a late message never refers to another region
    /// than its sender intended.
    last: Option<Domain>,
}

impl ForwardedRegions {
    /// Returns an empty table for regions of at most `bytes_max` together.
    pub(crate) fn new(bytes_max: u64) -> ForwardedRegions {
        let table = RegionTable { bases: BaseTable::empty(), registered: Vec::new(), last: None };
        ForwardedRegions { bytes_max, table: Mutex::new(table) }
    }

    /// Adds a forwarded region, and returns the answer to the client. Memory that is not properly sealed, or
    /// exceeds the limit of regions or bytes, is rejected. A domain number not greater than the last one, or
    /// an invalid range, is a protocol error.
    pub(crate) fn add(
        &self,
        forwarded: &ForwardRegion,
        memory: OwnedFd,
        cut: CutFn,
    ) -> Result<RegionForwarded, ProtocolError> {
        let domain = forwarded.domain;
        let rejected = RegionForwarded { domain, is_known: false };
        {
            let mut table = lock(&self.table);
            if table.last.is_some_and(|last| domain <= last) {
                return Err(ProtocolError::Malformed(
                    format!("domain {domain} is forwarded a second time").into(),
                ));
            }
            table.last = Some(domain);
            let bytes =
                table.registered.iter().fold(forwarded.bytes, |sum, (_, bytes)| sum.saturating_add(*bytes));
            if table.registered.len() >= FORWARDED_REGIONS_MAX || bytes > self.bytes_max {
                return Ok(rejected);
            }
        }
        let region = match sealed::map_peer(&memory, forwarded.bytes) {
            Ok(region) => region,
            Err(error) => {
                tracing::debug!(%domain, %error, "forwarded memory rejected");
                return Ok(rejected);
            }
        };
        let (bytes, nameable) = (forwarded.bytes, forwarded.nameable.clone());
        // The region may be forwarded to a further server.
        let forwardable = ForwardableRegion::mark(&region, memory, bytes, nameable.clone(), forwarded.user);
        forwardable.set_cut_fn(cut);
        let mut table = lock(&self.table);
        let outcome = table.bases.add(domain, Extent::whole(region), nameable);
        outcome.map_err(|error| ProtocolError::Malformed(error.to_string().into()))?;
        table.registered.push((domain, bytes));
        Ok(RegionForwarded { domain, is_known: true })
    }

    /// Removes a domain that the client no longer references. A domain that was rejected is ignored.
    pub(crate) fn withdraw(&self, domain: Domain) -> Result<(), ProtocolError> {
        let mut table = lock(&self.table);
        if table.last.is_none_or(|last| domain > last) {
            return Err(ProtocolError::Malformed(
                format!("domain {domain} is withdrawn and was never forwarded").into(),
            ));
        }
        table.registered.retain(|(known, _)| *known != domain);
        let removed = table.bases.forget(domain);
        drop(table);
        // Dropped without the lock, as this may unmap the region.
        drop(removed);
        Ok(())
    }

    /// Returns bytes of a region for reading. The bytes stay mapped as long as the source lives.
    pub(crate) fn source(&self, address: GlobalAddress, len_bytes: u64) -> Result<Source, AddressError> {
        lock(&self.table).bases.source(address, len_bytes)
    }
}
