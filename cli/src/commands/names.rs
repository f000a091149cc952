//! Name look-ups for a sandboxed server, which cannot start programs: a second process of this program
//! answers them, outside the sandbox and, unless they cannot be dropped, without capabilities. Requests are a
//! user's number or a host's name.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use clap::Args;
use serde::{Deserialize, Serialize};
use tombolo_host_runtime::names::{self, LookUp, LookUpError, UserGroups};
use tombolo_host_runtime::signals;
use tombolo_host_service::sandbox::give_up_capabilities;
use tombolo_host_service::sandbox::helper::{Helper, answer_all, sockets};

use super::beside;
use crate::failure::{Failure, OrCannot, Outcome, Reason};

/// Look up names for the server that started this process.
#[derive(Args)]
pub struct NamesArgs {}

const NAME: &str = "names";

/// Maximum number of concurrent look-ups: an unresponsive directory service blocks no more threads.
const LOOK_UPS_MAX: usize = 8;

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    GroupsOf(u32),
    AddressesOf(String),
}

/// Answer to a [`Request`]. `Groups` has the fields of [`UserGroups`].
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Groups { groups: Vec<u32>, lacking: Option<String> },
    NoUser,
    Addresses(Vec<IpAddr>),
    NoHost,
    Failed(String),
}

/// Starts the helper and delegates all later look-ups of this process to it.
pub fn start(log: Option<&File>) -> Result<(), Failure> {
    let helper = beside(NAME, log)
        .and_then(|mut command| Helper::start(&mut command, LOOK_UPS_MAX))
        .or_cannot("start name look-ups for the sandboxed server")?;
    names::delegate(Arc::new(RemoteLookUp(helper)));
    Ok(())
}

impl NamesArgs {
    /// Serves the socket at standard input.
    pub fn run(self) -> Outcome {
        const LOOKING_UP: &str = "look up names for a server";
        let socket = io::stdin().as_fd().try_clone_to_owned().or_cannot(LOOKING_UP)?;
        let sockets = sockets(socket).or_cannot(LOOKING_UP)?;
        if let Err(error) = give_up_capabilities() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot drop capabilities for name look-ups"
            );
        }
        // A terminal's signals reach this process too. It ignores them, because it must end after the server.
        signals::on_stop(|_| {}).or_cannot(LOOKING_UP)?;
        thread::scope(|scope| {
            let start = |socket: OwnedFd| {
                let thread = thread::Builder::new().name(NAME.into());
                thread.spawn_scoped(scope, move || answer_all(&socket, answer))
            };
            let threads = sockets.into_iter().map(start).collect::<io::Result<Vec<_>>>()?;
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
        })
        .or_cannot(LOOKING_UP)
    }
}

fn answer(request: &[u8], _: &[OwnedFd]) -> (Vec<u8>, Option<OwnedFd>) {
    let answer = match serde_json::from_slice(request) {
        Ok(Request::GroupsOf(uid)) => names::groups_of(uid).map(|found| match found {
            Some(UserGroups { groups, lacking }) => Answer::Groups { groups, lacking },
            None => Answer::NoUser,
        }),
        Ok(Request::AddressesOf(host)) => names::addresses_of(&host).map(Answer::Addresses),
        Err(error) => Ok(Answer::Failed(error.to_string())),
    };
    let answer = answer.unwrap_or_else(|error| match error {
        LookUpError::NoHost => Answer::NoHost,
        error => Answer::Failed(Reason::from(&error).into()),
    });
    (serde_json::to_vec(&answer).unwrap_or_default(), None)
}

/// Look-ups through the helper.
struct RemoteLookUp(Helper);

impl RemoteLookUp {
    fn ask(&self, request: &Request) -> Result<Answer, LookUpError> {
        let failed = |error: io::Error| LookUpError::Delegate(Reason::from(&error).into());
        let request = serde_json::to_vec(request).map_err(|error| failed(error.into()))?;
        let (answer, _) = self.0.ask(&request, &[]).map_err(|errno| failed(errno.into()))?;
        serde_json::from_slice(&answer).map_err(|error| failed(error.into()))
    }
}

impl LookUp for RemoteLookUp {
    fn groups_of(&self, uid: u32) -> Result<Option<UserGroups>, LookUpError> {
        match self.ask(&Request::GroupsOf(uid))? {
            Answer::Groups { groups, lacking } => Ok(Some(UserGroups { groups, lacking })),
            Answer::NoUser => Ok(None),
            answer => Err(answer.into_error()),
        }
    }

    fn addresses_of(&self, host: &str) -> Result<Vec<IpAddr>, LookUpError> {
        match self.ask(&Request::AddressesOf(host.to_owned()))? {
            Answer::Addresses(addresses) => Ok(addresses),
            answer => Err(answer.into_error()),
        }
    }
}

impl Answer {
    fn into_error(self) -> LookUpError {
        match self {
            Self::NoHost => LookUpError::NoHost,
            Self::Failed(why) => LookUpError::Delegate(why),
            other => LookUpError::Delegate(format!("unexpected reply {other:?}")),
        }
    }
}
