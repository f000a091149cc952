//! Back end's side of one vhost-user connection: [`Connection`] handles the messages of a front end. A thread
//! of `server` passes the messages to it; each running queue has a thread of its own (`worker`).

use super::device::{Device, QueueIndex};
use super::dirty_log::{DirtyLog, QueueLog};
use super::fd_store::FdStore;
use super::inflight::{self, InFlight};
use super::memory::{GuestMemory, MEMORY_SLOTS_MAX, MemorySlot};
use super::notifier::{Notifier, Waiter};
use super::queue::AvailableSide;
use super::queue_control::{Kick, QueueControl};
use super::ring::{RingAddresses, Rings};
use super::server::{GuestId, Settings};
use super::sharing;
use super::turns::Turn;
use super::worker::{Job, Worker};
use std::fs::File;
use std::sync::Arc;
use tombolo_mem::Region;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

/// Transport feature bits (virtio 1.2, chapter 6; vhost-user for LOG_ALL and PROTOCOL_FEATURES).
pub(crate) const FEATURE_LOG_ALL: u64 = 1 << 26;
const FEATURE_INDIRECT: u64 = 1 << 28;
const FEATURE_EVENT_INDEX: u64 = 1 << 29;
const FEATURE_PROTOCOL_FEATURES: u64 = 1 << 30;
const FEATURE_VERSION_1: u64 = 1 << 32;

const TRANSPORT_FEATURES: u64 =
    FEATURE_INDIRECT | FEATURE_EVENT_INDEX | FEATURE_PROTOCOL_FEATURES | FEATURE_VERSION_1;

/// Maximum size of a split virtqueue, as in QEMU.
const QUEUE_SIZE_MAX: u32 = 1024;

/// A front end's connection: handles its messages and manages its queues.
pub(crate) struct Connection {
    guest: GuestId,
    device: Arc<dyn Device>,
    settings: Settings,
    /// Process id of the front end; 0 if the front end is in another pid namespace, or behind a keeper.
    pid: u32,
    /// `true` once SET_OWNER has arrived.
    has_owner: bool,
    features: u64,
    memory: Arc<GuestMemory>,
    queues: Vec<QueueControl>,
    /// Part of the in-flight area for each queue; empty if the front end has provided no area.
    in_flight: Vec<Arc<InFlight>>,
    /// Descriptor store, until it is passed to the device.
    store: Option<FdStore>,
    /// Dirty log for writes to guest memory; used while FEATURE_LOG_ALL is negotiated.
    log: Option<Arc<DirtyLog>>,
    /// The guest's turn among guests that may not run concurrently.
    turn: Turn,
    /// Back-end request channel, kept open: UML supports interrupts only on devices with one. Messages on it
    /// are sent through [`ConfigChange`](super::ConfigChange).
    requests: Option<Backend>,
    /// `true` once the memory has been checked for private mappings.
    sharing_checked: bool,
}

impl Connection {
    pub(crate) fn new(
        guest: GuestId,
        pid: u32,
        device: Arc<dyn Device>,
        settings: Settings,
        turn: Turn,
        store: Option<FdStore>,
    ) -> Connection {
        let queues = (0..device.queue_count()).map(|_| QueueControl::default()).collect();
        Connection {
            guest,
            device,
            settings,
            pid,
            has_owner: false,
            features: 0,
            memory: Arc::default(),
            queues,
            in_flight: Vec::new(),
            store,
            log: None,
            turn,
            requests: None,
            sharing_checked: false,
        }
    }

    /// Stops every queue after the front end has disconnected. Pending chains keep their memory and are not
    /// returned.
    pub(crate) fn close(&mut self) {
        let ran = self.queues.iter().any(|control| control.started);
        for control in &mut self.queues {
            control.pause();
            control.queue.end();
            control.started = false;
        }
        if ran {
            self.device.stopped();
        }
        self.turn.pass();
    }

    /// Starts the queues that wait for this guest's turn; passes the turn on if none runs.
    pub(crate) fn take_turn(&mut self) -> Result<()> {
        for index in 0..self.queues.len() as u32 {
            self.resume(index)?;
        }
        if !self.queues.iter().any(|control| control.started) {
            self.turn.pass();
        }
        Ok(())
    }

    fn queue(&mut self, index: u32) -> Result<&mut QueueControl> {
        usize::try_from(index).ok().and_then(|index| self.queues.get_mut(index)).ok_or(Error::InvalidParam)
    }

    /// Returns a queue whose parameters may be set, that is, one that is not running.
    fn stopped_queue(&mut self, index: u32) -> Result<&mut QueueControl> {
        let control = self.queue(index)?;
        if control.started {
            return Err(Error::InvalidOperation("the queue is running"));
        }
        Ok(control)
    }

    /// Starts the queue if it is enabled, all its parameters are set, and the guest has its turn.
    fn resume(&mut self, index: u32) -> Result<()> {
        // The front end has announced a dirty log but not sent it yet. The queue starts with the log, because
        // earlier writes would not be logged.
        if self.is_logging() && self.log.is_none() {
            return Ok(());
        }
        if self.queue(index)?.is_about_to_start() {
            self.check_sharing();
            if !self.turn.take() {
                tracing::info!(device = self.device.name(), guest = %self.guest, queue = index, "queue waits for another guest to leave");
                return Ok(());
            }
        }
        let log = self.queue_log(index)?;
        let (features, memory) = (self.features, self.memory.clone());
        let (guest, device, settings) = (self.guest, self.device.clone(), self.settings);
        let in_flight = self.in_flight.get(index as usize).cloned();
        let control = self.queue(index)?;
        let Some(addresses) = control.addresses.filter(|_| control.is_ready()) else { return Ok(()) };
        if control.worker.is_some() {
            return Ok(());
        }
        let kick = match &control.kick {
            Kick::Unset => return Ok(()),
            Kick::Never => None,
            Kick::Descriptor(kick) => Some(kick.try_clone().map_err(Error::ReqHandlerError)?),
        };
        let is_first_start = !std::mem::replace(&mut control.started, true);
        let indirect = features & FEATURE_INDIRECT != 0;
        let event_index = features & FEATURE_EVENT_INDEX != 0;
        let rings = Rings::new(&memory, control.size, addresses, indirect).map(Arc::new);
        // The log is set before attaching, which puts deferred chains on the used ring and must log those
        // writes.
        control.queue.set_log(log.clone());
        let Some((rings, run)) =
            rings.and_then(|rings| control.attach(rings, in_flight.clone(), is_first_start, event_index))
        else {
            tracing::warn!(device = device.name(), %guest, queue = index, "queue stopped: its rings are outside of the guest's memory");
            control.faulty = true;
            return Ok(());
        };
        let side = AvailableSide {
            queue: control.queue.clone(),
            rings,
            memory,
            limits: device.limits(),
            event_index,
            run,
            next: control.next,
            in_flight,
            log,
            leftover: std::mem::take(&mut control.leftover),
        };
        let (waiter, waker) = Waiter::new(kick).map_err(Error::ReqHandlerError)?;
        let error_notifier = control.error_notifier.clone();
        let index = QueueIndex(u16::try_from(index).map_err(|_| Error::InvalidParam)?);
        let job = Job { guest, index, device, side, waiter, error_notifier, spin_max: settings.spin_max };
        control.worker = Some(Worker::start(job, waker).map_err(Error::ReqHandlerError)?);
        Ok(())
    }

    /// Logs once if guest memory is not shared with this process, of which the only other symptom is a guest
    /// that hangs.
    fn check_sharing(&mut self) {
        if std::mem::replace(&mut self.sharing_checked, true) {
            return;
        }
        let (device, guest, remedy) = (self.device.name(), self.guest, sharing::REMEDY);
        let slots = self.memory.slots();
        if slots.is_empty() {
            tracing::error!(device, %guest, remedy, "the guest will hang: its VMM shares none of its memory");
        }
        let addresses: Vec<u64> = slots.iter().map(|slot| slot.user_address).collect();
        let private = sharing::private_address(self.pid, &addresses);
        if let Some(slot) = slots.iter().find(|slot| Some(slot.user_address) == private) {
            let (address, bytes) = (slot.guest_address, slot.region.len());
            tracing::error!(device, %guest, address, bytes, remedy, "{}", sharing::MAPPED_PRIVATELY);
        }
    }

    /// Replaces the memory of all queues. Chains under way keep the memory that they hold.
    fn replace_memory(&mut self, slots: Vec<MemorySlot>) -> Result<()> {
        let bytes: u64 = slots.iter().map(|slot| slot.region.len() as u64).sum();
        if bytes > self.settings.memory_bytes_max {
            return Err(Error::InvalidOperation("the guest has more memory than allowed"));
        }
        let memory = GuestMemory::new(slots).map_err(invalid)?;
        self.queues.iter_mut().for_each(QueueControl::pause);
        self.memory = Arc::new(memory);
        self.apply_log()
    }

    fn is_logging(&self) -> bool {
        self.features & FEATURE_LOG_ALL != 0
    }

    /// Pauses all queues, gives each its current dirty log or none, and resumes those that are ready. The
    /// module `dirty_log` explains the order.
    fn apply_log(&mut self) -> Result<()> {
        if let Some(log) = self.log.as_ref().filter(|_| self.is_logging()) {
            log.check(self.memory.end()).map_err(invalid)?;
        }
        (0..self.queues.len() as u32).try_for_each(|index| self.apply_queue_log(index))
    }

    fn apply_queue_log(&mut self, index: u32) -> Result<()> {
        self.queue(index)?.pause();
        let log = self.queue_log(index)?;
        self.queue(index)?.queue.set_log(log);
        self.resume(index)
    }

    /// Returns the queue's log, if its writes are logged.
    fn queue_log(&mut self, index: u32) -> Result<Option<Arc<QueueLog>>> {
        let log = self.log.clone().filter(|_| self.is_logging());
        let (memory, limits) = (self.memory.clone(), self.device.limits());
        let control = self.queue(index)?;
        let (Some(log), Some(addresses)) = (log, control.addresses) else { return Ok(None) };
        // Cloud Hypervisor gives no log address for used rings; the bits are then those of the ring's pages.
        let used = control.log_address.or_else(|| memory.guest_address(addresses.used));
        let Some(used) = used else { return Ok(None) };
        let queue_log = QueueLog::new(log, memory, limits, used, Rings::used_len(control.size));
        Ok(Some(Arc::new(queue_log.map_err(invalid)?)))
    }

    /// Validates the shape of an in-flight area. Returns its number of queues, and their size.
    fn in_flight_shape(&self, wanted: &VhostUserInflight) -> Result<(u16, u16)> {
        let (queues, size) = (wanted.num_queues, wanted.queue_size);
        if !self.device.repeats_requests() {
            return Err(UNSUPPORTED);
        }
        let is_good = (1..=self.queues.len()).contains(&usize::from(queues))
            && size.is_power_of_two()
            && u32::from(size) <= QUEUE_SIZE_MAX;
        is_good.then_some((queues, size)).ok_or(Error::InvalidParam)
    }

    fn map(&self, region: &VhostUserMemoryRegion, file: &File) -> Result<MemorySlot> {
        if region.memory_size > self.settings.memory_bytes_max {
            return Err(Error::InvalidOperation("the guest has more memory than allowed"));
        }
        let len = usize::try_from(region.memory_size).map_err(|_| Error::InvalidParam)?;
        Ok(MemorySlot {
            guest_address: region.guest_phys_addr,
            user_address: region.user_addr,
            region: Region::map(file, region.mmap_offset, len).map_err(invalid)?,
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

/// Converts an error about invalid parameters, whose message has the reason.
fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(std::io::Error::new(std::io::ErrorKind::InvalidInput, error))
}

const UNSUPPORTED: Error = Error::InvalidOperation("not supported");

impl VhostUserBackendReqHandlerMut for Connection {
    fn set_owner(&mut self) -> Result<()> {
        self.has_owner = true;
        Ok(())
    }

    /// Disables all rings, as the specification recommends for this deprecated message.
    fn reset_owner(&mut self) -> Result<()> {
        for control in &mut self.queues {
            control.pause();
            control.enabled = false;
        }
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn get_features(&mut self) -> Result<u64> {
        let log = if self.device.can_migrate() { FEATURE_LOG_ALL } else { 0 };
        Ok(self.device.features() | TRANSPORT_FEATURES | log)
    }

    /// Sets the features. Front ends also send SET_FEATURES to switch logging of running queues, without
    /// changing other features.
    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_features()? != 0 {
            return Err(Error::InvalidOperation("unknown feature bits"));
        }
        let changed = std::mem::replace(&mut self.features, features) ^ features;
        if changed & !FEATURE_LOG_ALL != 0 || !self.queues.iter().any(|control| control.started) {
            self.device.negotiated(features & !FEATURE_LOG_ALL);
        }
        // Without protocol features no message enables a ring, so rings are enabled initially.
        if features & FEATURE_PROTOCOL_FEATURES == 0 {
            self.queues.iter_mut().for_each(|control| control.enabled = true);
        }
        if changed & FEATURE_LOG_ALL != 0 {
            // If logging is enabled again, the log arrives in a separate message, possibly later.
            if !self.is_logging() {
                self.log = None;
            }
            self.apply_log()?;
        }
        Ok(())
    }

    /// Offers CONFIG only where needed, because QEMU warns at each start about an unused configuration space:
    /// QEMU sends this request before SET_OWNER; front ends that need CONFIG for every device (UML, crosvm)
    /// send SET_OWNER first.
    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        let features = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        let has_config = self.has_owner || self.device.offers_config();
        let optional = [
            (has_config, VhostUserProtocolFeatures::CONFIG),
            (self.device.repeats_requests(), VhostUserProtocolFeatures::INFLIGHT_SHMFD),
            (self.device.can_migrate(), VhostUserProtocolFeatures::LOG_SHMFD),
        ];
        let offered = optional.into_iter().filter(|(is_offered, _)| *is_offered);
        Ok(offered.fold(features, |all, (_, feature)| all | feature))
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.len() as u64)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MEMORY_SLOTS_MAX as u64)
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let slots: Result<Vec<MemorySlot>> =
            regions.iter().zip(&files).map(|(region, file)| self.map(region, file)).collect();
        self.replace_memory(slots?)?;
        Ok(None)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<u64>> {
        let mut slots = self.memory.slots().to_vec();
        slots.push(self.map(region, &file)?);
        self.replace_memory(slots)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let mut slots = self.memory.slots().to_vec();
        let before = slots.len();
        slots.retain(|slot| {
            let at = (slot.guest_address, slot.user_address, slot.region.len() as u64);
            at != (region.guest_phys_addr, region.user_addr, region.memory_size)
        });
        if slots.len() == before {
            return Err(Error::InvalidParam);
        }
        self.replace_memory(slots)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let control = self.stopped_queue(index)?;
        if !num.is_power_of_two() || num > QUEUE_SIZE_MAX {
            return Err(Error::InvalidOperation("the queue size is not a power of two up to 1024"));
        }
        control.size = u16::try_from(num).map_err(|_| Error::InvalidParam)?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let addresses = RingAddresses { descriptors, available, used };
        let log_address = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        let control = self.queue(index)?;
        // A message with unchanged ring addresses sets the log address of the used ring. A running queue
        // keeps its rings.
        if control.started && control.addresses == Some(addresses) {
            control.log_address = log_address;
            return self.apply_queue_log(index);
        }
        let control = self.stopped_queue(index)?;
        (control.addresses, control.log_address) = (Some(addresses), log_address);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let next = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.stopped_queue(index)?.next = next;
        Ok(())
    }

    /// Stops the queue. The next back end continues at the reported index, so chains taken must be returned
    /// first. Chains still pending after the time-out are returned when the same queue continues in this
    /// process, and dropped when it starts anew.
    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let (guest, device, timeout) = (self.guest, self.device.clone(), self.settings.drain_timeout);
        let control = self.queue(index)?;
        control.pause();
        let was_started = control.started;
        if was_started {
            device.queue_stopping();
            if !control.queue.drain(timeout) {
                tracing::warn!(device = device.name(), %guest, queue = index, "queue stopped with requests under way");
            }
            control.stop();
        }
        control.faulty = false;
        control.kick = Kick::Unset;
        let state = VhostUserVringState::new(index, u32::from(control.next));
        if was_started && !self.queues.iter().any(|control| control.started) {
            device.stopped();
            // A guest with a dirty log is migrating: another front end continues it. A guest that only stops,
            // for example to reboot, keeps its turn.
            if self.is_logging() {
                self.turn.pass();
            }
        }
        Ok(state)
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let index = u32::from(index);
        let control = self.queue(index)?;
        control.pause();
        control.kick = file.map_or(Kick::Never, |file| Kick::Descriptor(file.into()));
        self.resume(index)
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let notifier = file.map(Notifier::new).transpose().map_err(Error::ReqHandlerError)?;
        self.queue(u32::from(index))?.queue.set_call(notifier);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let notifier = file.map(Notifier::new).transpose().map_err(Error::ReqHandlerError)?;
        self.queue(u32::from(index))?.error_notifier = notifier.map(Arc::new);
        Ok(())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let control = self.queue(index)?;
        control.enabled = enable;
        if !enable {
            control.pause();
        }
        self.resume(index)
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        // The vhost crate has checked offset and size against the 4 KiB limit of a message.
        let config = self.device.config();
        let wanted = config.iter().copied().chain(std::iter::repeat(0));
        Ok(wanted.skip(offset as usize).take(size as usize).collect())
    }

    fn set_config(&mut self, offset: u32, bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        self.device.write_config(offset, bytes);
        Ok(())
    }

    fn set_backend_req_fd(&mut self, requests: Backend) {
        self.requests = Some(requests);
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(UNSUPPORTED)
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = self.in_flight_shape(wanted)?;
        let state_bytes = self.device.state_bytes();
        let area = inflight::create(queues, size, state_bytes).map_err(invalid)?;
        let len = inflight::whole_len(queues, size, state_bytes);
        Ok((VhostUserInflight::new(len, 0, queues, size), area))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, area: File) -> Result<()> {
        let (queues, size) = self.in_flight_shape(given)?;
        if self.queues.iter().any(|control| control.started) {
            return Err(Error::InvalidOperation("a queue is running"));
        }
        let parts =
            inflight::open(&area, given.mmap_offset, given.mmap_size, queues, size).map_err(invalid)?;
        let state_bytes = self.device.state_bytes();
        if state_bytes > 0 {
            let span = (given.mmap_offset, given.mmap_size);
            let state =
                inflight::open_device_part(&area, span, queues, size, state_bytes).map_err(invalid)?;
            self.device
                .set_state_memory(state, self.store.take())
                .map_err(|error| Error::ReqHandlerError(std::io::Error::other(error)))?;
        }
        self.in_flight = parts.into_iter().map(Arc::new).collect();
        Ok(())
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(UNSUPPORTED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(UNSUPPORTED)
    }

    /// Replaces the log. After the reply the previous log is no longer written, and the front end collects
    /// its last bits.
    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let log = DirtyLog::map(&file, log.mmap_offset, log.mmap_size).map_err(invalid)?;
        self.log = Some(Arc::new(log));
        self.apply_log()
    }
}
