//! Reconnection: one thread for each session, which replaces a lost link and restores openings, locks and
//! unanswered writes on the new one.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_core::fs::{Client, PermissionCheck};
use tombolo_core::{Error, unpark_waker};
use tombolo_host_links::client::{Call, LineError, Reply};
use tombolo_host_links::{EndReason, ProtocolError};
use tombolo_host_runtime::task;
use tombolo_shm::link::{Incarnation, RefusalCode, Refused};

use crate::connect::{Connect, LinkLossPolicy};
use crate::link::Link;
use crate::links::Links;
use crate::recovery;
use crate::request::NoAnswer;

/// Interval at which requests waiting for a link check their deadlines.
const CLOCK_INTERVAL: Duration = Duration::from_millis(100);
/// Pause after the first failed attempt; doubled after each further one.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum pause between two attempts to reconnect.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Lifetime from which a link's loss is always logged, and the next attempt always made without a pause.
const USEFUL_LIFETIME: Duration = Duration::from_secs(1);
/// Time limit for the server's description of the session, for reopening each file, and for repeating each
/// write.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The supervisor of a session, which establishes all links but the first.
pub(crate) struct Supervisor {
    pub(crate) connect: Arc<dyn Connect>,
    pub(crate) client: Client,
    pub(crate) incarnation: Incarnation,
    pub(crate) link_loss_policy: LinkLossPolicy,
}

/// Start of the latest link, and its use so far at that time.
struct Latest {
    since: Instant,
    /// Number of replies before the session used the link.
    answers: u64,
    is_first: bool,
}

impl Latest {
    /// Returns `true` if the link was useless: the next attempt is then delayed, so that a server that fails
    /// at once is not contacted in a tight loop.
    fn was_useless(&self, link: &Link, end: &EndReason) -> bool {
        let was_useful = link.line.counts().answers > self.answers;
        self.since.elapsed() < USEFUL_LIFETIME && (matches!(end, EndReason::ProtocolError(_)) || !was_useful)
    }
}

/// Reasons why an attempt failed.
enum Failed {
    Connect(crate::connect::ConnectError),
    Session(Error),
    /// The new session does not check permissions, but the first one does.
    Unchecked,
    /// The new link was lost during recovery, or the session was dropped.
    Lost,
}

impl Supervisor {
    /// Keeps the session connected until it ends or is dropped. Each message of `pokes` requests a check of
    /// the link.
    pub(crate) fn run(self, links: &Weak<Links>, pokes: &Receiver<()>) {
        let mut pause = Duration::ZERO;
        let mut latest = Latest { since: Instant::now(), answers: 0, is_first: true };
        loop {
            // The end of a link sends a message to this channel (`Links::watch`), and so do waiting requests.
            if pokes.recv().is_err() {
                return;
            }
            let Some(current) = links.upgrade() else { return };
            let link = current.current();
            let Some(end) = link.line.end() else { continue };
            current.link_lost(&end);
            if matches!(self.link_loss_policy, LinkLossPolicy::None) {
                current.end();
                return;
            }
            let label = link.line.label().clone();
            // Short-lived links must not flood the log.
            let is_logged = latest.is_first || latest.since.elapsed() >= USEFUL_LIFETIME;
            if is_logged {
                tracing::warn!(link = &*label, why = %end, "link to the server lost, reconnecting");
            }
            pause = if latest.was_useless(&link, &end) { longer(pause) } else { Duration::ZERO };
            let number = link.number.saturating_add(1);
            drop((current, link));
            let Some(answers) = self.reconnect(links, pokes, number, &mut pause) else { return };
            latest = Latest { since: Instant::now(), answers, is_first: false };
            if is_logged {
                tracing::warn!(link = &*label, "reconnected to the server");
            }
        }
    }

    /// Retries until there is a link, while a second thread checks the deadlines of waiting requests, because
    /// an attempt may take long. Returns the link's number of replies so far; `None` once the session has
    /// ended.
    fn reconnect(
        &self,
        links: &Weak<Links>,
        pokes: &Receiver<()>,
        mut number: u32,
        pause: &mut Duration,
    ) -> Option<u64> {
        let _clock = clock(links.clone());
        let mut was_refused = false;
        loop {
            if !wait_pause(links, pokes, *pause) {
                return None;
            }
            let failed = match self.attempt(links, number) {
                Ok(answers) => return Some(answers),
                Err(failed) => failed,
            };
            let links = links.upgrade()?;
            number = number.saturating_add(1);
            if failed.is_for_good() {
                if matches!(self.link_loss_policy, LinkLossPolicy::Soft(_)) {
                    tracing::error!(why = %failed, "the server refuses the connection: ending the session");
                    links.end();
                    return None;
                }
                if !was_refused {
                    tracing::error!(why = %failed, "the server refuses the connection: retrying");
                }
                was_refused = true;
            } else {
                tracing::debug!(why = %failed, "cannot connect");
            }
            *pause = longer(*pause);
            links.wake_all();
        }
    }

    fn attempt(&self, links: &Weak<Links>, number: u32) -> Result<u64, Failed> {
        let connected = self.connect.connect(&self.client, self.incarnation).map_err(Failed::Connect)?;
        let Some(links) = links.upgrade() else { return Err(Failed::Lost) };
        let until = Instant::now() + ANSWER_TIMEOUT;
        let wait = |call: Call| answer_until(call, until);
        let link = Link::begin(connected, number, links.objects.clone(), wait).map_err(Failed::Session)?;
        let (then, now) = (links.terms.profile.permission_check, link.terms.profile.permission_check);
        if then == PermissionCheck::BackEnd && now == PermissionCheck::Caller {
            return Err(Failed::Unchecked);
        }
        links.objects.nodes.begin(number);
        restore_openings(&link)?;
        repeat_writes(&links, &link)?;
        let answers = link.line.counts().answers;
        links.install(link);
        Ok(answers)
    }
}

impl Failed {
    /// Returns `true` if the server's refusal is permanent.
    fn is_for_good(&self) -> bool {
        let error = match self {
            Self::Connect(error) => error,
            Self::Unchecked => return true,
            Self::Session(_) | Self::Lost => return false,
        };
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
        while let Some(error) = cause {
            if let Some(Refused { code, .. }) = error.downcast_ref() {
                return matches!(
                    code,
                    RefusalCode::Version
                        | RefusalCode::Features
                        | RefusalCode::Protocol
                        | RefusalCode::NotAllowed
                        | RefusalCode::NoExport
                );
            }
            cause = error.source();
        }
        false
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => error.fmt(f),
            Self::Session(error) => error.fmt(f),
            Self::Unchecked => f.write_str("the server no longer checks permissions"),
            Self::Lost => f.write_str("the link was lost during recovery"),
        }
    }
}

/// Reopens all files and takes their locks before other requests use the link. Failures surface when a file
/// is used. An error if the link is lost, or the server does not reply at all.
fn restore_openings(link: &Arc<Link>) -> Result<(), Failed> {
    for open in link.objects.openings.all() {
        let again = link.clone();
        let mut again = Box::pin(async move { recovery::opening(&again, open).await });
        match finished_until(&mut again, Instant::now() + ANSWER_TIMEOUT) {
            Some(Ok(())) => {}
            Some(Err(NoAnswer::Failed(error))) => {
                tracing::warn!(link = &**link.line.label(), %error, "cannot reopen a file");
            }
            Some(Err(NoAnswer::Lost)) => return Err(Failed::Lost),
            None => {
                // One hanging file must not block the others.
                match finished_until(recovery::null(link), Instant::now() + ANSWER_TIMEOUT) {
                    Some(Ok(())) => {}
                    Some(Err(NoAnswer::Failed(error))) => return Err(Failed::Session(error)),
                    Some(Err(NoAnswer::Lost)) => return Err(Failed::Lost),
                    None => {
                        link.line
                            .cut(EndReason::Failed("the server did not reopen the files in time".into()));
                        return Err(Failed::Session(Error::TimedOut));
                    }
                }
                tracing::warn!(link = &**link.line.label(), "reopening a file takes long");
                // The reopening may still succeed.
                task::spawn(async move { drop(again.await) });
            }
        }
    }
    Ok(())
}

/// Sends the unanswered writes behind again, before other requests use the link. An error if the link is
/// lost, or the server does not reply.
fn repeat_writes(links: &Links, link: &Arc<Link>) -> Result<(), Failed> {
    let Some(behind) = links.settled() else { return Ok(()) };
    while let Some(write) = behind.first_to_repeat() {
        let mut again = Box::pin(link.clone().repeat_write(write.clone()));
        match finished_until(&mut again, Instant::now() + ANSWER_TIMEOUT) {
            Some(Ok(())) => behind.repeated(&link.objects, &write, Ok(())),
            Some(Err(NoAnswer::Failed(error))) => behind.repeated(&link.objects, &write, Err(error)),
            Some(Err(NoAnswer::Lost)) => return Err(Failed::Lost),
            None => {
                link.line.cut(EndReason::Failed("the server did not repeat a write in time".into()));
                return Err(Failed::Session(Error::TimedOut));
            }
        }
    }
    Ok(())
}

/// Wakes requests that wait for a link at intervals, to check their deadlines, until the result is dropped.
fn clock(links: Weak<Links>) -> Option<SyncSender<()>> {
    let (running, stop) = mpsc::sync_channel::<()>(1);
    let tick = move || {
        while stop.recv_timeout(CLOCK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let Some(links) = links.upgrade() else { return };
            links.wake_all();
        }
    };
    match thread::Builder::new().name("link-clock".into()).spawn(tick) {
        Ok(_) => Some(running),
        Err(error) => {
            tracing::warn!(%error, "cannot start the deadline thread: timeouts of waiting requests may be late");
            None
        }
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).clamp(PAUSE, PAUSE_MAX)
}

/// Pauses before the next attempt; returns `false` if the session has ended.
fn wait_pause(links: &Weak<Links>, pokes: &Receiver<()>, pause: Duration) -> bool {
    let until = Instant::now() + pause;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return links.strong_count() > 0;
        }
        match pokes.recv_timeout(left) {
            Err(RecvTimeoutError::Disconnected) => return false,
            // A waiting request does not shorten the pause.
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Waits for a reply on this thread. If it does not arrive in time, fails as if the link were lost.
pub(crate) fn answer_until(call: Call, until: Instant) -> Result<Reply, LineError> {
    let mut call = pin!(call);
    match finished_until(&mut call, until) {
        Some(outcome) => outcome,
        None => {
            let why = EndReason::ProtocolError(ProtocolError::Malformed("no reply in time".into()));
            Err(LineError::Lost { label: "link".into(), why })
        }
    }
}

/// Returns the output of the future if it completes in time.
fn finished_until<F: Future>(future: F, until: Instant) -> Option<F::Output> {
    let waker = unpark_waker();
    let mut context = Context::from_waker(&waker);
    let mut future: Pin<&mut F> = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}
