//! A front end's session with successive servers. The front end does not notice that one replaces another.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use thiserror::Error as ThisError;

use crate::fd_store::DescriptorStore;
use crate::sharing;

use super::message::{Channel, ChannelError, Message, request};
use super::servers::{ServerSocket, Servers, Successor};
use super::state::{FrontEndState, PROTOCOL_IN_FLIGHT, PROTOCOL_MQ, PROTOCOL_REPLY_ACK, in_flight_wanted};

/// Queue size for in-flight areas, requested before the sizes are known: the maximum queue size of our
/// servers.
const QUEUE_SIZE_MAX: u16 = 1024;

/// Reason for the end of a session.
#[derive(Debug, ThisError)]
pub(super) enum SessionEnd {
    /// The front end has closed its connection.
    #[error("it has left")]
    Left,
    /// The front end violates the protocol, or its socket fails.
    #[error("it violates the protocol")]
    FrontEnd(#[source] ChannelError),
    /// The front end uses an in-flight area of its own, although the feature was not offered.
    #[error("it uses an in-flight area of its own, but the keeper's is required")]
    OwnArea,
    /// The running server has closed the connection, or sent an unsolicited message.
    #[error("the server has cut it off")]
    Disconnected,
    /// A new server could not know the requests under way.
    #[error("the server died, and this device's requests cannot be repeated")]
    NotRepeatable,
    /// There will be no further server.
    #[error("there is no server any more")]
    NoServers,
    /// The socket to the server, or a wait on it, fails.
    #[error("the server cannot be reached")]
    Io(#[from] io::Error),
}

pub(super) struct Session {
    front_end: Channel,
    server: Channel,
    server_number: u64,
    servers: Arc<Servers>,
    server_socket: Arc<ServerSocket>,
    state: FrontEndState,
    /// Protocol features offered by the server.
    offered: u64,
    /// Descriptors stored by servers; present if the front end must not have an in-flight area of its own.
    store: Option<DescriptorStore>,
    /// `true` once the sharing of the front end's memory has been checked.
    sharing_checked: bool,
}

impl Session {
    pub(super) fn new(
        front_end: Channel,
        servers: Arc<Servers>,
        server_socket: Arc<ServerSocket>,
        mut store: Option<DescriptorStore>,
    ) -> Result<Session, SessionEnd> {
        let Successor::Server(server_number) = servers.successor(0) else {
            return Err(SessionEnd::NoServers);
        };
        let server = connect(&server_socket, store.as_mut())?;
        let (state, offered) = (FrontEndState::default(), 0);
        let mut session = Session {
            front_end,
            server,
            server_number,
            servers,
            server_socket,
            state,
            offered,
            store,
            sharing_checked: false,
        };
        match session.state.replay(&mut session.server, &session.servers) {
            Ok(server_number) => session.server_number = server_number,
            Err(_) => session.continue_with_next()?,
        }
        Ok(session)
    }

    pub(super) fn run(&mut self) -> SessionEnd {
        loop {
            if let Err(end) = self.relay_next() {
                return end;
            }
        }
    }

    fn relay_next(&mut self) -> Result<(), SessionEnd> {
        let mut sockets =
            [PollFd::new(&self.front_end, PollFlags::IN), PollFd::new(&self.server, PollFlags::IN)];
        match poll(&mut sockets, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(SessionEnd::Io(error.into())),
        }
        let [from_front_end, from_server] = sockets.map(|socket| !socket.revents().is_empty());
        if from_server {
            // Replies are received in `exchange`, so this is the server's end, or an unsolicited message.
            return match self.server.receive() {
                Ok(_) => Err(SessionEnd::Disconnected),
                Err(_) => self.continue_with_next(),
            };
        }
        if from_front_end {
            let message = self.front_end.receive().map_err(of_front_end)?;
            self.relay(message)?;
        }
        Ok(())
    }

    /// Relays a message of the front end to a server, and the reply, if there is one, to the front end;
    /// records the message.
    fn relay(&mut self, mut message: Message) -> Result<(), SessionEnd> {
        match message.request {
            request::SET_PROTOCOL_FEATURES => self.add_features(&mut message),
            request::GET_INFLIGHT_FD | request::SET_INFLIGHT_FD if self.store.is_some() => {
                return Err(SessionEnd::OwnArea);
            }
            request::SET_VRING_KICK => {
                self.check_sharing();
                if !self.state.has_in_flight() {
                    self.set_up_in_flight()?;
                }
            }
            _ => {}
        }
        let mut answer = self.exchange(&message)?;
        if message.request == request::GET_PROTOCOL_FEATURES {
            self.offered = answer.as_ref().and_then(Message::number).unwrap_or_default();
            if let Some(answer) = answer.as_mut().filter(|_| self.store.is_some()) {
                answer.body = (self.offered & !PROTOCOL_IN_FLIGHT).to_le_bytes().into();
            }
        }
        if let Some(answer) = &answer {
            self.front_end.send(answer).map_err(of_front_end)?;
        }
        self.state.record(message, answer.as_ref());
        Ok(())
    }

    /// Logs once if the front end's memory is not shared, which the server behind the keeper cannot detect.
    fn check_sharing(&mut self) {
        if std::mem::replace(&mut self.sharing_checked, true) {
            return;
        }
        let peer = tombolo_sys::socket::peer(self.front_end.as_fd());
        let pid = peer.map_or(0, |peer| peer.pid.unsigned_abs());
        if let Some(address) = sharing::private_address(pid, &self.state.user_addresses()) {
            tracing::error!(address, remedy = sharing::REMEDY, "{}", sharing::MAPPED_PRIVATELY);
        }
    }

    /// Adds to a SET_PROTOCOL_FEATURES the features that the keeper itself needs and the server offers.
    fn add_features(&self, message: &mut Message) {
        if let Some(features) = message.number() {
            let more = self.offered & (PROTOCOL_MQ | PROTOCOL_IN_FLIGHT);
            message.body = (features | more).to_le_bytes().into();
        }
    }

    /// Sets up an in-flight area for the server, held by the keeper, if the server supports one.
    fn set_up_in_flight(&mut self) -> Result<(), SessionEnd> {
        let needed = PROTOCOL_MQ | PROTOCOL_IN_FLIGHT;
        if self.state.protocol_features() & needed != needed {
            return Ok(());
        }
        let queues = self.exchange(&Message::new(request::GET_QUEUE_NUM, Vec::new(), Vec::new()))?;
        let queues = queues.as_ref().and_then(Message::number).unwrap_or_default();
        let Some(wanted) = in_flight_wanted(queues, QUEUE_SIZE_MAX) else { return Ok(()) };
        let Some(area) = self.exchange(&wanted)?.filter(|area| area.files.len() == 1) else { return Ok(()) };
        let area = Message::new(request::SET_INFLIGHT_FD, area.body, area.files);
        self.exchange(&area)?;
        self.state.record(area, None);
        Ok(())
    }

    /// Sends a message to the current server or its successors, and returns the reply if there is one. If a
    /// server dies before it replies, the message is sent to the next server, for which it is new.
    fn exchange(&mut self, message: &Message) -> Result<Option<Message>, SessionEnd> {
        loop {
            let outcome = match self.is_answered(message) {
                true => self.server.call(message).map(Some),
                false => self.server.send(message).map(|()| None),
            };
            match outcome {
                Ok(answer) => return Ok(answer),
                Err(_) => self.continue_with_next()?,
            }
        }
    }

    fn is_answered(&self, message: &Message) -> bool {
        let features = match message.request {
            request::SET_PROTOCOL_FEATURES => message.number().unwrap_or_default(),
            _ => self.state.protocol_features(),
        };
        match message.request {
            request::GET_FEATURES
            | request::GET_PROTOCOL_FEATURES
            | request::GET_QUEUE_NUM
            | request::GET_VRING_BASE
            | request::GET_CONFIG
            | request::GET_INFLIGHT_FD
            | request::GET_MAX_MEM_SLOTS
            | request::SET_LOG_BASE => true,
            _ => message.wants_acknowledgement() && features & PROTOCOL_REPLY_ACK != 0,
        }
    }

    /// Waits for the next server and replays the recorded state to it. Fails if no server can take over.
    fn continue_with_next(&mut self) -> Result<(), SessionEnd> {
        let since = Instant::now();
        loop {
            if !self.state.can_take_over() {
                return Err(SessionEnd::NotRepeatable);
            }
            self.server_number = match self.servers.successor(self.server_number) {
                Successor::Server(server_number) => server_number,
                Successor::Disconnected => return Err(SessionEnd::Disconnected),
                Successor::None => return Err(SessionEnd::NoServers),
            };
            self.server = connect(&self.server_socket, self.store.as_mut())?;
            if let Ok(server_number) = self.state.replay(&mut self.server, &self.servers) {
                self.server_number = server_number;
                let took_ms = since.elapsed().as_millis();
                tracing::warn!(server = self.server_number, took_ms, "guest continues with another server");
                return Ok(());
            }
        }
    }
}

/// Connects to the current server, or to the next one if the current one dies before it accepts.
fn connect(server_socket: &ServerSocket, store: Option<&mut DescriptorStore>) -> io::Result<Channel> {
    let stream = server_socket.connect()?;
    if let Some(store) = store {
        store.greet(&stream)?;
    }
    Channel::new(stream)
}

fn of_front_end(error: ChannelError) -> SessionEnd {
    match error {
        ChannelError::Left => SessionEnd::Left,
        error => SessionEnd::FrontEnd(error),
    }
}
