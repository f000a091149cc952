//! The client's side of region forwarding: announces memory of other domains, and returns addresses in it.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Weak};

use smallvec::SmallVec;
use tombolo_core::lock;
use tombolo_mem::{Region, Source};
use tombolo_shm::address::{Domain, GlobalAddress};
use tombolo_shm::link::{FORWARDED_REGIONS_MAX, Message, RegionForwarded, Withdraw};

use super::forwardable_region::ForwardableRegion;
use crate::control_socket::ControlSender;
use crate::end::{EndReason, ProtocolError};

/// Regions that a client has forwarded to its server, on one link. Usable from any thread.
pub(crate) struct RegionForwarder {
    sender: ControlSender,
    /// User of the server's process.
    user: u32,
    table: Mutex<ForwardTable>,
}

#[derive(Default)]
struct ForwardTable {
    /// `true` once the link has ended: there are no further loans.
    is_over: bool,
    /// Last domain number assigned; numbers are never reused.
    last: Option<Domain>,
    /// Number of loans so far.
    count: u64,
    entries: SmallVec<[Forwarded; 1]>,
}

struct Forwarded {
    /// Number of the forwardable region in this process; `domain` is its number on this link.
    number: u64,
    forwardable: Weak<ForwardableRegion>,
    domain: Domain,
    state: RegionState,
    /// Token cloned for each loan: its reference count shows whether a loan of the region exists.
    loans: Arc<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RegionState {
    /// Forwarded, and not answered yet.
    Pending,
    Registered,
    Rejected,
}

/// References to a buffer in a region that the server has mapped.
#[derive(Debug)]
pub struct RemoteBuffer {
    /// Addresses and lengths of the buffer's parts.
    pub parts: SmallVec<[(GlobalAddress, u64); 1]>,
    /// Loan to be retained until the server has answered the request that contains the addresses.
    pub loan: Loan,
}

/// Use of another domain's memory by a request. The memory stays forwarded, and counts as in use, until this
/// is dropped.
#[derive(Debug)]
pub struct Loan {
    _use: Arc<()>,
    _region: Region,
}

impl RegionForwarder {
    /// Returns a forwarder for a link whose server is a process of `user`.
    pub(crate) fn new(sender: ControlSender, user: u32) -> RegionForwarder {
        RegionForwarder { sender, user, table: Mutex::default() }
    }

    /// Returns addresses of the bytes of `source`, or `None` unless the server has mapped all their memory.
    /// A forwardable region not yet forwarded is forwarded now, and available once the server has accepted
    /// it.
    pub(crate) fn lend(self: &Arc<Self>, source: &Source) -> Option<RemoteBuffer> {
        let (region, places) = source.within()?;
        let forwardable = ForwardableRegion::of(region)?;
        let may_be_named =
            |(offset, len): (usize, usize)| forwardable.permits_range(offset as u64, len as u64);
        if !forwardable.permits_user(self.user) || !places.clone().all(may_be_named) {
            return None;
        }
        let (domain, loan) = self.domain_of(forwardable)?;
        let parts =
            places.map(|(offset, len)| Some((GlobalAddress::new(domain, offset as u64)?, len as u64)));
        let loan = Loan { _use: loan, _region: region.clone() };
        Some(RemoteBuffer { parts: parts.collect::<Option<_>>()?, loan })
    }

    fn domain_of(self: &Arc<Self>, forwardable: &Arc<ForwardableRegion>) -> Option<(Domain, Arc<()>)> {
        let mut table = lock(&self.table);
        if table.is_over {
            return None;
        }
        match table.entries.iter().find(|entry| entry.number == forwardable.number()) {
            Some(entry) if entry.state == RegionState::Registered => {
                let found = (entry.domain, Arc::clone(&entry.loans));
                table.count += 1;
                Some(found)
            }
            Some(_) => None,
            None => {
                self.forward(&mut table, forwardable);
                None
            }
        }
    }

    #[cold]
    fn forward(self: &Arc<Self>, table: &mut ForwardTable, forwardable: &Arc<ForwardableRegion>) {
        let next = table.last.map_or(Some(Domain::FIRST_OTHER.0), |last| last.0.checked_add(1)).map(Domain);
        let Some(domain) = next.filter(|_| table.entries.len() < FORWARDED_REGIONS_MAX) else { return };
        let message = Message::ForwardRegion(forwardable.announce(domain));
        // If sending fails because the server does not read, a later call tries again; until then the back
        // end copies the data.
        if self.sender.send(&message, Some(forwardable.as_fd())).is_ok() {
            table.last = Some(domain);
            forwardable.add_forwarder(self);
            table.entries.push(Forwarded {
                number: forwardable.number(),
                forwardable: Arc::downgrade(forwardable),
                domain,
                state: RegionState::Pending,
                loans: Arc::default(),
            });
        }
    }

    /// Returns the number of loans so far.
    pub(crate) fn count(&self) -> u64 {
        lock(&self.table).count
    }

    /// Handles the server's answer to a forwarded region.
    pub(crate) fn answered(&self, answer: RegionForwarded) -> Result<(), ProtocolError> {
        let mut table = lock(&self.table);
        if table.last.is_none_or(|last| answer.domain > last) {
            return Err(ProtocolError::Malformed("answer for a region that was never forwarded".into()));
        }
        // A region without an entry was withdrawn meanwhile.
        if let Some(entry) = table.entries.iter_mut().find(|entry| entry.domain == answer.domain) {
            if entry.state != RegionState::Pending {
                return Err(ProtocolError::Malformed("second answer for a forwarded region".into()));
            }
            entry.state = if answer.is_known { RegionState::Registered } else { RegionState::Rejected };
        }
        Ok(())
    }

    /// Withdraws memory that was dropped, and is no longer referenced.
    pub(super) fn withdraw(&self, number: u64) {
        let mut table = lock(&self.table);
        let Some(at) = table.entries.iter().position(|entry| entry.number == number) else { return };
        let domain = table.entries[at].domain;
        // If sending fails, the server retains the region until the link ends, and the entry continues to
        // count.
        if table.is_over || self.sender.send(&Message::Withdraw(Withdraw { domain }), None).is_ok() {
            table.entries.swap_remove(at);
        }
    }

    /// Handles the end of the link; repeated calls do nothing. Unless the server died, it may still be
    /// reading memory of which a loan exists, so the links to which that memory belongs are ended.
    pub(crate) fn ended(&self, why: &EndReason) {
        let in_use: SmallVec<[_; 1]> = {
            let mut table = lock(&self.table);
            if std::mem::replace(&mut table.is_over, true) {
                return;
            }
            let lent = table.entries.iter().filter(|entry| Arc::strong_count(&entry.loans) > 1);
            lent.filter_map(|entry| entry.forwardable.upgrade()).collect()
        };
        if *why != EndReason::Died {
            in_use.iter().for_each(|forwardable| forwardable.cut_link());
        }
    }
}
