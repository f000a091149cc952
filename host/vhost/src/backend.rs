use super::device::{Device, QueueIndex};
use super::inflight::{self, InFlight};
use super::memory::{GuestMemory, MEMORY_SLOTS_MAX, MemorySlot};
use super::notifier::{Notifier, Waiter};
use super::queue::{AvailableSide, Queue};
use super::ring::{RingAddresses, Rings};
use super::server::{GuestId, Settings};
use super::sharing;
use super::worker::{Job, Worker};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tombolo_mem::Region;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

/// Feature bits of the transport (virtio 1.2, chapter 6; vhost-user for the last).
const FEATURE_INDIRECT: u64 = 1 << 28;
const FEATURE_EVENT_INDEX: u64 = 1 << 29;
const FEATURE_PROTOCOL_FEATURES: u64 = 1 << 30;
const FEATURE_VERSION_1: u64 = 1 << 32;

const TRANSPORT_FEATURES: u64 =
    FEATURE_INDIRECT | FEATURE_EVENT_INDEX | FEATURE_PROTOCOL_FEATURES | FEATURE_VERSION_1;

/// The largest split virtqueue that we serve; QEMU's limit too.
const QUEUE_SIZE_MAX: u32 = 1024;

/// One front end's connection: answers its messages and keeps its queues.
pub(crate) struct Connection {
    guest: GuestId,
    device: Arc<dyn Device>,
    settings: Settings,
    /// The front end's process, where it can be seen from here.
    pid: u32,
    /// SET_OWNER has come.
    owned: bool,
    features: u64,
    memory: Arc<GuestMemory>,
    queues: Vec<QueueControl>,
    /// Where requests under way are written down, for each queue; empty unless the front end keeps them.
    in_flight: Vec<Arc<InFlight>>,
    /// The way to ask the front end for something, kept open: UML has interrupts only for devices that could. What we do say goes
    /// through [`ConfigChange`](super::ConfigChange).
    requests: Option<Backend>,
    /// It was looked whether the memory is shared with us.
    sharing_checked: bool,
}

/// What the front end has told us about one queue, and the thread that serves it.
#[derive(Default)]
struct QueueControl {
    queue: Arc<Queue>,
    size: u16,
    addresses: Option<RingAddresses>,
    /// Where to go on in the available ring.
    next: u16,
    /// What an earlier process has left under way and was not taken yet, the first last.
    again: Vec<u16>,
    kick: Kick,
    error_notifier: Option<Arc<Notifier>>,
    enabled: bool,
    /// Between the first start and GET_VRING_BASE.
    started: bool,
    /// The guest broke the rules; nothing runs until it starts anew.
    faulty: bool,
    worker: Option<Worker>,
}

/// How the guest kicks.
#[derive(Default)]
enum Kick {
    /// Not told yet: the queue is stopped.
    #[default]
    Unset,
    /// It does not: the queue is polled.
    Never,
    Descriptor(OwnedFd),
}

impl Connection {
    pub(crate) fn new(guest: GuestId, pid: u32, device: Arc<dyn Device>, settings: Settings) -> Connection {
        let queues = (0..device.queue_count()).map(|_| QueueControl::default()).collect();
        Connection {
            guest,
            device,
            settings,
            pid,
            owned: false,
            features: 0,
            memory: Arc::default(),
            queues,
            in_flight: Vec::new(),
            requests: None,
            sharing_checked: false,
        }
    }

    /// The front end left: stops every queue. Chains still pending keep their memory and are not handed back.
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
    }

    fn queue(&mut self, index: u32) -> Result<&mut QueueControl> {
        usize::try_from(index).ok().and_then(|index| self.queues.get_mut(index)).ok_or(Error::InvalidParam)
    }

    /// A queue whose parameters may be set: one that is not running.
    fn stopped_queue(&mut self, index: u32) -> Result<&mut QueueControl> {
        let control = self.queue(index)?;
        if control.started {
            return Err(Error::InvalidOperation("the queue is running"));
        }
        Ok(control)
    }

    /// Runs the queue if everything that it needs is there.
    fn resume(&mut self, index: u32) -> Result<()> {
        if self.queue(index)?.is_about_to_start() {
            self.check_sharing();
        }
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
        if is_first_start {
            control.queue.start();
        }
        let indirect = features & FEATURE_INDIRECT != 0;
        let event_index = features & FEATURE_EVENT_INDEX != 0;
        let rings = Rings::new(&memory, control.size, addresses, indirect).map(Arc::new);
        let Some((rings, run)) =
            rings.and_then(|rings| control.attached(rings, in_flight.clone(), is_first_start, event_index))
        else {
            tracing::warn!(device = device.name(), %guest, queue = index, "queue stopped: its rings do not lie in the guest's memory");
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
            again: std::mem::take(&mut control.again),
        };
        let (waiter, waker) = Waiter::new(kick).map_err(Error::ReqHandlerError)?;
        let error_notifier = control.error_notifier.clone();
        let index = QueueIndex(u16::try_from(index).map_err(|_| Error::InvalidParam)?);
        let job = Job { guest, index, device, side, waiter, error_notifier, spin_max: settings.spin_max };
        control.worker = Some(Worker::start(job, waker).map_err(Error::ReqHandlerError)?);
        Ok(())
    }

    /// Logs once what is wrong with memory that is not shared: the guest itself just hangs.
    fn check_sharing(&mut self) {
        if std::mem::replace(&mut self.sharing_checked, true) {
            return;
        }
        let (device, guest, remedy) = (self.device.name(), self.guest, sharing::REMEDY);
        if self.memory.slots().is_empty() {
            tracing::error!(device, %guest, remedy, "the guest will hang: its VMM shares none of its memory");
        } else if let Some(slot) = sharing::private_span(self.pid, self.memory.slots()) {
            let (address, bytes) = (slot.guest_address, slot.region.len());
            tracing::error!(
                device, %guest, address, bytes, remedy,
                "the guest will hang: its VMM has mapped its memory privately, so that we do not see what it writes"
            );
        }
    }

    /// Replaces the memory under all queues. Chains under way go on with the memory that they hold.
    fn replace_memory(&mut self, slots: Vec<MemorySlot>) -> Result<()> {
        let bytes: u64 = slots.iter().map(|slot| slot.region.len() as u64).sum();
        if bytes > self.settings.memory_bytes_max {
            return Err(Error::InvalidOperation("the guest has more memory than is allowed"));
        }
        let memory = GuestMemory::new(slots).map_err(refused)?;
        self.queues.iter_mut().for_each(QueueControl::pause);
        self.memory = Arc::new(memory);
        for index in 0..self.queues.len() as u32 {
            self.resume(index)?;
        }
        Ok(())
    }

    /// How many queues an in-flight area is for, and of what size.
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
            return Err(Error::InvalidOperation("the guest has more memory than is allowed"));
        }
        let len = usize::try_from(region.memory_size).map_err(|_| Error::InvalidParam)?;
        Ok(MemorySlot {
            guest_address: region.guest_phys_addr,
            user_address: region.user_addr,
            region: Region::map(file, region.mmap_offset, len).map_err(refused)?,
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

impl QueueControl {
    fn is_ready(&self) -> bool {
        self.enabled && !self.faulty && self.size > 0
    }

    fn is_about_to_start(&self) -> bool {
        self.is_ready() && !self.started && self.addresses.is_some() && !matches!(self.kick, Kick::Unset)
    }

    /// Gives the queue its rings. When it starts, what an earlier process has left under way is found; what that had taken begins behind
    /// what it had handed back.
    fn attached(
        &mut self,
        rings: Arc<Rings>,
        in_flight: Option<Arc<InFlight>>,
        is_first_start: bool,
        event_index: bool,
    ) -> Option<(Arc<Rings>, u64)> {
        if let Some(in_flight) = in_flight.as_ref().filter(|_| is_first_start) {
            let used = rings.used_index().ok()?;
            self.again = in_flight.recover(used).ok()?;
            self.next = used.wrapping_add(u16::try_from(self.again.len()).ok()?);
        }
        let run = self.queue.attach(rings.clone(), in_flight, event_index).ok()?;
        Some((rings, run))
    }

    /// Ends the thread, and remembers where it was.
    fn pause(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        match worker.stop() {
            Some(stopped) => {
                self.next = stopped.next;
                self.again = stopped.again;
                self.faulty |= stopped.faulty;
            }
            None => self.faulty = true,
        }
    }
}

/// The front end asked for what it may not have: the message names the reason.
fn refused(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(std::io::Error::new(std::io::ErrorKind::InvalidInput, error))
}

const UNSUPPORTED: Error = Error::InvalidOperation("not supported");

impl VhostUserBackendReqHandlerMut for Connection {
    fn set_owner(&mut self) -> Result<()> {
        self.owned = true;
        Ok(())
    }

    /// Deprecated by the specification; it recommends to disable all rings.
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
        Ok(self.device.features() | TRANSPORT_FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !(self.device.features() | TRANSPORT_FEATURES) != 0 {
            return Err(Error::InvalidOperation("feature bits that were not offered"));
        }
        self.features = features;
        self.device.negotiated(features);
        // Without protocol features there is no message to enable a ring: it is enabled from the start.
        if features & FEATURE_PROTOCOL_FEATURES == 0 {
            self.queues.iter_mut().for_each(|control| control.enabled = true);
        }
        Ok(())
    }

    /// QEMU warns at each start of a back end that has a configuration space which it does not ask for. It is the front end that asks
    /// before it sends SET_OWNER; those that need CONFIG for every device (UML, crosvm) send that first.
    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        let features = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        let has_config = self.owned || self.device.offers_config();
        let optional = [
            (has_config, VhostUserProtocolFeatures::CONFIG),
            (self.device.repeats_requests(), VhostUserProtocolFeatures::INFLIGHT_SHMFD),
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
            return Err(Error::InvalidOperation("a queue size that is not a power of two up to 1024"));
        }
        control.size = u16::try_from(num).map_err(|_| Error::InvalidParam)?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.stopped_queue(index)?.addresses = Some(RingAddresses { descriptors, available, used });
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let next = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.stopped_queue(index)?.next = next;
        Ok(())
    }

    /// Stops the queue. The back end that takes it over next goes on where we say, so what was taken must be handed back first.
    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let (guest, device, timeout) = (self.guest, self.device.clone(), self.settings.drain_timeout);
        let control = self.queue(index)?;
        control.pause();
        if control.started && !control.queue.drain(timeout) {
            tracing::warn!(device = device.name(), %guest, queue = index, "queue stopped with requests under way");
        }
        control.queue.end();
        let was_started = std::mem::take(&mut control.started);
        control.faulty = false;
        control.kick = Kick::Unset;
        let state = VhostUserVringState::new(index, u32::from(control.next));
        if was_started && !self.queues.iter().any(|control| control.started) {
            device.stopped();
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
        // The crate has checked both against the 4 KiB that a message can have.
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
        let area = inflight::create(queues, size).map_err(refused)?;
        let len = inflight::area_len(queues, size) as u64;
        Ok((VhostUserInflight::new(len, 0, queues, size), area))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, area: File) -> Result<()> {
        let (queues, size) = self.in_flight_shape(given)?;
        if self.queues.iter().any(|control| control.started) {
            return Err(Error::InvalidOperation("a queue is running"));
        }
        let parts =
            inflight::open(&area, given.mmap_offset, given.mmap_size, queues, size).map_err(refused)?;
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

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(UNSUPPORTED)
    }
}
