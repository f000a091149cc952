//! What a server knows of further domains, on one link.

use std::os::fd::OwnedFd;
use std::sync::Mutex;

use tombolo_mem::Source;
use tombolo_shm::address::{AddressError, BaseTable, Domain, GlobalAddress};
use tombolo_shm::link::{Extent, FORWARDED_REGIONS_MAX, ForwardRegion, RegionForwarded};
use tombolo_shm::region::sealed;

use super::passable::{Passable, Sever};
use crate::end::Lie;
use tombolo_host_runtime::lock;

/// The domains that a client has introduced. Any thread may use it; the lock is held for no longer than a look.
#[derive(Debug)]
pub(crate) struct Introductions {
    /// Most bytes that all of them have together.
    bytes_max: u64,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    bases: BaseTable,
    /// Those that are known, with the size of each.
    known: Vec<(Domain, u64)>,
    /// The number that was introduced last. They only grow: a late message never means another domain than it was sent for.
    last: Option<Domain>,
}

impl Introductions {
    /// None yet; all together may have so many bytes.
    pub(crate) fn new(bytes_max: u64) -> Introductions {
        let table = Table { bases: BaseTable::empty(), known: Vec::new(), last: None };
        Introductions { bytes_max, table: Mutex::new(table) }
    }

    /// A client introduces a domain. Memory that is not as it must be, or more of it than there is room for, is not taken; a number that has
    /// been used is a lie.
    pub(crate) fn introduce(
        &self,
        introduce: &ForwardRegion,
        memory: OwnedFd,
        sever: Sever,
    ) -> Result<RegionForwarded, Lie> {
        let domain = introduce.domain;
        let not_taken = RegionForwarded { domain, is_known: false };
        {
            let mut table = lock(&self.table);
            if table.last.is_some_and(|last| domain <= last) {
                return Err(Lie::Senseless(format!("domain {domain} is introduced a second time").into()));
            }
            table.last = Some(domain);
            let bytes =
                table.known.iter().fold(introduce.bytes, |sum, (_, bytes)| sum.saturating_add(*bytes));
            if table.known.len() >= FORWARDED_REGIONS_MAX || bytes > self.bytes_max {
                return Ok(not_taken);
            }
        }
        let region = match sealed::map_peer(&memory, introduce.bytes) {
            Ok(region) => region,
            Err(error) => {
                tracing::debug!(%domain, %error, "memory that is not taken");
                return Ok(not_taken);
            }
        };
        let (bytes, nameable) = (introduce.bytes, introduce.nameable.clone());
        // Further domains may be told of it in their turn.
        let passable = Passable::mark(&region, memory, bytes, nameable.clone(), introduce.user);
        passable.belongs_to(sever);
        let mut table = lock(&self.table);
        let outcome = table.bases.add(domain, Extent::whole(region), nameable);
        outcome.map_err(|error| Lie::Senseless(error.to_string().into()))?;
        table.known.push((domain, bytes));
        Ok(RegionForwarded { domain, is_known: true })
    }

    /// A client names that domain no more. One that was not taken is nothing to forget.
    pub(crate) fn withdraw(&self, domain: Domain) -> Result<(), Lie> {
        let mut table = lock(&self.table);
        if table.last.is_none_or(|last| domain > last) {
            return Err(Lie::Senseless(
                format!("domain {domain} is withdrawn and was never introduced").into(),
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
