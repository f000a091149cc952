//! State that a front end has set up, recorded as the messages with which the keeper sets up the next server.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use super::message::{Channel, ChannelError, Message, request, word};
use super::servers::Servers;
use crate::backend::FEATURE_LOG_ALL;
use crate::memory::MEMORY_SLOTS_MAX;

/// Protocol features used by the keeper ("Protocol features").
pub(super) const PROTOCOL_MQ: u64 = 1 << 0;
pub(super) const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
pub(super) const PROTOCOL_IN_FLIGHT: u64 = 1 << 12;

/// Maximum number of a device's queues.
const QUEUES_MAX: u32 = 256;
/// Maximum number of recorded writes to the configuration space.
const CONFIGS_MAX: usize = 64;
/// Maximum number of memory regions in one table, each with a descriptor.
const TABLE_MAX: usize = 8;

/// Offset of the memory regions in their messages.
const REGIONS_OFFSET: usize = 8;
const REGION_LEN: usize = 32;
/// Length of a region's guest address, size and user address, which identify it.
const REGION_IDENTITY_LEN: usize = 24;

/// Offset of the user address in a memory region.
const USER_ADDRESS_OFFSET: usize = 16;

/// Mask of the queue index in messages that bring a queue's descriptor.
const INDEX_MASK: u32 = 0xff;

/// Connection-wide messages to repeat first: the last of each kind, in the order that a server expects.
const CONNECTION_MESSAGES: [u32; 4] =
    [request::SET_OWNER, request::SET_PROTOCOL_FEATURES, request::SET_FEATURES, request::SET_BACKEND_REQ_FD];

/// Messages to repeat for each queue, in this order. The call descriptor is sent again at the end, because
/// the dead server may have omitted an interrupt: a running queue that receives it interrupts the guest.
const QUEUE_MESSAGES: [u32; 8] = [
    request::SET_VRING_NUM,
    request::SET_VRING_ADDR,
    request::SET_VRING_BASE,
    request::SET_VRING_ERR,
    request::SET_VRING_CALL,
    request::SET_VRING_KICK,
    request::SET_VRING_ENABLE,
    request::SET_VRING_CALL,
];

#[derive(Debug, Default)]
pub(super) struct FrontEndState {
    connection_wide: BTreeMap<u32, Message>,
    memory: Vec<MemoryRegion>,
    /// Writes to the configuration space, by offset.
    configs: BTreeMap<u32, Message>,
    queues: BTreeMap<u32, BTreeMap<u32, Message>>,
}

#[derive(Debug)]
struct MemoryRegion {
    bytes: [u8; REGION_LEN],
    file: OwnedFd,
}

impl FrontEndState {
    /// Records a message sent to the server, with its reply, if there is one.
    pub(super) fn record(&mut self, message: Message, answer: Option<&Message>) {
        // A repeated message needs no acknowledgement.
        let message = Message::new(message.request, message.body, message.files);
        if message.request == request::SET_FEATURES && self.is_logging() && !logs(&message) {
            self.connection_wide.remove(&request::SET_LOG_BASE);
        }
        match message.request {
            request::SET_OWNER
            | request::SET_PROTOCOL_FEATURES
            | request::SET_FEATURES
            | request::SET_BACKEND_REQ_FD
            | request::SET_INFLIGHT_FD
            | request::SET_LOG_BASE => {
                self.connection_wide.insert(message.request, message);
            }
            request::SET_MEM_TABLE => self.memory = regions(message),
            request::ADD_MEM_REG => self.add_memory(message),
            request::REM_MEM_REG => {
                let gone = message
                    .body
                    .get(REGIONS_OFFSET..REGIONS_OFFSET + REGION_IDENTITY_LEN)
                    .unwrap_or_default();
                self.memory.retain(|region| !region.bytes.starts_with(gone) || gone.is_empty());
            }
            request::SET_CONFIG => {
                let offset = message.first_word().unwrap_or_default();
                if self.configs.len() < CONFIGS_MAX || self.configs.contains_key(&offset) {
                    self.configs.insert(offset, message);
                }
            }
            // Disables all rings.
            request::RESET_OWNER => self.queues.values_mut().for_each(|queue| {
                queue.remove(&request::SET_VRING_ENABLE);
            }),
            // The queue stops, and later continues at the reported index.
            request::GET_VRING_BASE => self.stop_queue(&message, answer),
            request if QUEUE_MESSAGES.contains(&request) => self.record_queue(message),
            _ => {}
        }
    }

    /// Returns the addresses of the guest's memory in the front end.
    pub(super) fn user_addresses(&self) -> Vec<u64> {
        let address = |region: &MemoryRegion| {
            let bytes = region.bytes.get(USER_ADDRESS_OFFSET..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        self.memory.iter().filter_map(address).collect()
    }

    fn add_memory(&mut self, message: Message) {
        let bytes = message
            .body
            .get(REGIONS_OFFSET..REGIONS_OFFSET + REGION_LEN)
            .and_then(|bytes| bytes.try_into().ok());
        if let (Some(bytes), Some(file)) = (bytes, message.files.into_iter().next())
            && self.memory.len() < MEMORY_SLOTS_MAX
        {
            self.memory.push(MemoryRegion { bytes, file });
        }
    }

    fn record_queue(&mut self, message: Message) {
        let brings_descriptor = [request::SET_VRING_KICK, request::SET_VRING_CALL, request::SET_VRING_ERR]
            .contains(&message.request);
        let mask = if brings_descriptor { INDEX_MASK } else { u32::MAX };
        if let Some(index) = message.first_word().map(|word| word & mask).filter(|index| *index < QUEUES_MAX)
        {
            self.queues.entry(index).or_default().insert(message.request, message);
        }
    }

    fn stop_queue(&mut self, message: &Message, answer: Option<&Message>) {
        let queue = message.first_word().and_then(|index| self.queues.get_mut(&index));
        let (Some(queue), Some(answer)) = (queue, answer) else { return };
        queue.remove(&request::SET_VRING_KICK);
        let base = Message::new(request::SET_VRING_BASE, answer.body.clone(), Vec::new());
        queue.insert(request::SET_VRING_BASE, base);
    }

    fn is_logging(&self) -> bool {
        self.connection_wide.get(&request::SET_FEATURES).is_some_and(logs)
    }

    pub(super) fn protocol_features(&self) -> u64 {
        self.connection_wide
            .get(&request::SET_PROTOCOL_FEATURES)
            .and_then(Message::number)
            .unwrap_or_default()
    }

    pub(super) fn has_in_flight(&self) -> bool {
        self.connection_wide.contains_key(&request::SET_INFLIGHT_FD)
    }

    /// Returns `true` if another server can take over, because it finds the requests under way in the
    /// in-flight area, or because no queue has started.
    pub(super) fn can_take_over(&self) -> bool {
        let is_started = |queue: &BTreeMap<u32, Message>| queue.contains_key(&request::SET_VRING_KICK);
        self.has_in_flight() || !self.queues.values().any(is_started)
    }

    /// Replays the recorded state to the server behind a connection, which has handled all of it when this
    /// function returns. Returns the number of that server: if a server dies before it has accepted the
    /// connection, its successor accepts it.
    pub(super) fn replay(&self, server: &mut Channel, servers: &Servers) -> Result<u64, ChannelError> {
        // The vhost crate acknowledges messages (REPLY_ACK) only after a GET_FEATURES on the connection.
        let features = Message::new(request::GET_FEATURES, Vec::new(), Vec::new());
        server.call(&features)?;
        // The server has replied, so the last server started is this one. If it has died since, the last call
        // below fails.
        let server_number = servers.number();
        for message in CONNECTION_MESSAGES.iter().filter_map(|request| self.connection_wide.get(request)) {
            server.send(message)?;
        }
        for message in self.configs.values() {
            server.send(message)?;
        }
        self.replay_memory(server)?;
        if let Some(message) = self.connection_wide.get(&request::SET_INFLIGHT_FD) {
            server.send(message)?;
        }
        if let Some(message) = self.connection_wide.get(&request::SET_LOG_BASE) {
            server.call(message)?;
        }
        for queue in self.queues.values() {
            for message in QUEUE_MESSAGES.iter().filter_map(|request| queue.get(request)) {
                server.send(message)?;
            }
        }
        // The server replies in order, and disconnects if it refuses a message.
        server.call(&features).map(|_| server_number)
    }

    fn replay_memory(&self, server: &mut Channel) -> Result<(), ChannelError> {
        let (table, more) = self.memory.split_at(self.memory.len().min(TABLE_MAX));
        if table.is_empty() {
            return Ok(());
        }
        let mut body = (table.len() as u64).to_le_bytes().to_vec();
        table.iter().for_each(|region| body.extend(region.bytes));
        let files = table.iter().map(|region| region.file.try_clone()).collect::<Result<_, _>>()?;
        server.send(&Message::new(request::SET_MEM_TABLE, body, files))?;
        for region in more {
            let body = [&[0; REGIONS_OFFSET], &region.bytes[..]].concat();
            server.send(&Message::new(request::ADD_MEM_REG, body, vec![region.file.try_clone()?]))?;
        }
        Ok(())
    }
}

/// Returns `true` if these features include dirty logging.
fn logs(features: &Message) -> bool {
    features.number().is_some_and(|features| features & FEATURE_LOG_ALL != 0)
}

fn regions(message: Message) -> Vec<MemoryRegion> {
    let count = message.first_word().unwrap_or_default() as usize;
    let regions = message.body.get(REGIONS_OFFSET..).unwrap_or_default().chunks_exact(REGION_LEN);
    let regions = regions.take(count).filter_map(|bytes| bytes.try_into().ok());
    regions.zip(message.files).map(|(bytes, file)| MemoryRegion { bytes, file }).collect()
}

/// Builds a request for an in-flight area from the reply to `GET_QUEUE_NUM`. Returns `None` for more than
/// [`QUEUES_MAX`] queues.
pub(super) fn in_flight_wanted(queues: u64, size: u16) -> Option<Message> {
    let queues = u16::try_from(queues).ok().filter(|queues| u32::from(*queues) <= QUEUES_MAX)?;
    let mut body = vec![0; 16];
    body.extend(queues.to_le_bytes());
    body.extend(size.to_le_bytes());
    body.resize(24, 0);
    debug_assert_eq!(word(&body, 16), Some(u32::from(queues) | u32::from(size) << 16));
    Some(Message::new(request::GET_INFLIGHT_FD, body, Vec::new()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn descriptors(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| std::fs::File::open("/dev/null").expect("open").into()).collect()
    }

    proptest! {
        #[test]
        fn recorded_state_stays_bounded(
            said in prop::collection::vec((0u32..50, prop::collection::vec(any::<u8>(), 0..100), 0usize..4), 0..60),
        ) {
            let mut state = FrontEndState::default();
            for _ in 0..5 {
                for (request, body, files) in &said {
                    let answer = Message::new(*request, body.clone(), Vec::new());
                    state.record(Message::new(*request, body.clone(), descriptors(*files)), Some(&answer));
                }
            }
            prop_assert!(state.memory.len() <= MEMORY_SLOTS_MAX);
            prop_assert!(state.configs.len() <= CONFIGS_MAX);
            prop_assert!(state.queues.len() <= QUEUES_MAX as usize);
            prop_assert!(state.connection_wide.len() <= CONNECTION_MESSAGES.len() + 2);
        }
    }

    #[test]
    fn last_write_of_recorded_config_is_replayed() {
        let mut state = FrontEndState::default();
        let write = |offset: u32, value: u8| {
            Message::new(request::SET_CONFIG, [&offset.to_le_bytes()[..], &[value]].concat(), Vec::new())
        };
        (0..CONFIGS_MAX as u32).for_each(|offset| state.record(write(offset, 1), None));
        state.record(write(3, 2), None);
        let last: Vec<_> = state.configs.values().filter_map(|message| message.body.last()).collect();
        assert_eq!((last.len(), last.iter().filter(|value| ***value == 2).count()), (CONFIGS_MAX, 1));
    }

    #[test]
    fn disabled_log_is_not_replayed() {
        let mut state = FrontEndState::default();
        let log = || Message::new(request::SET_LOG_BASE, vec![0; 16], descriptors(1));
        let features = |bits: u64| Message::new(request::SET_FEATURES, bits.to_le_bytes().into(), Vec::new());
        // As in QEMU: the log is set before logging is enabled.
        for message in [features(0), log(), features(FEATURE_LOG_ALL)] {
            state.record(message, None);
        }
        assert!(state.connection_wide.contains_key(&request::SET_LOG_BASE));
        state.record(features(0), None);
        assert!(!state.connection_wide.contains_key(&request::SET_LOG_BASE));
    }

    #[test]
    fn stopped_queue_is_not_restarted_by_replay() {
        let mut state = FrontEndState::default();
        let state_of = |index: u32, value: u32| [index.to_le_bytes(), value.to_le_bytes()].concat();
        state.record(Message::new(request::SET_VRING_KICK, 2u64.to_le_bytes().into(), descriptors(1)), None);
        assert!(!state.can_take_over());
        let answer = Message::new(request::GET_VRING_BASE, state_of(2, 77), Vec::new());
        state.record(Message::new(request::GET_VRING_BASE, state_of(2, 0), Vec::new()), Some(&answer));
        assert!(state.can_take_over());
        let base =
            state.queues.get(&2).and_then(|queue| queue.get(&request::SET_VRING_BASE)).expect("a base");
        assert_eq!(base.body, state_of(2, 77));
    }
}
