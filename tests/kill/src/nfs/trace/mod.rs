//! `trace`: whatever is answered as stable was synced before the answer. A killed process loses nothing that
//! the kernel has, so only its system calls can show this.

mod calls;
mod strace;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_nfs_tests::client::{Nfs, Transport};

use crate::args::Args;
use crate::failure::{Failure, Result};
use crate::nfs::server::Server;
use calls::{Calls, Made};
use strace::{Event, Sync, SyncKind};

/// State that a call must have made stable when it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing, so that a sync would only cost time.
    Nothing,
    /// The data of this file.
    Data(&'static str),
    /// Data and attributes of this node.
    Whole(&'static str),
    /// The same of two nodes.
    Both(&'static str, &'static str),
}

/// Runs the test and returns a summary.
pub fn run(args: &Args) -> Result<String> {
    on_a_disk(args)?;
    let mut server = Server::new(&args.program, &args.place)?;
    let trace = server.home.path("trace");
    let file = trace.to_string_lossy();
    // With -D the tracer is the child: the process started and stopped is the server.
    server.start(&["strace", "-D", "-f", "-yy", "-q", "-s", "0", "-e", strace::CALLS, "-o", &file])?;
    let made = Calls::make_all(Nfs::connect(Transport::Tcp, server.address())?, Server::EXPORT)?;
    server.stop()?;

    let text = finished(&trace)?;
    let events = strace::events(&text, server.address().port());
    let outcome = judge(&made, &events, &server.tree().to_string_lossy());
    if outcome.is_err() {
        server.home.keep();
    }
    outcome
}

/// Refuses a directory in memory, which needs no sync, so that nothing would be traced.
fn on_a_disk(args: &Args) -> Result<()> {
    const TMPFS: i64 = 0x0102_1994;
    let place = rustix::fs::statfs(&args.place).map_err(std::io::Error::from)?;
    if place.f_type as i64 == TMPFS {
        return Err(Failure::Process(format!(
            "{} lies in memory: choose --dir on a disk",
            args.place.display()
        )));
    }
    Ok(())
}

/// Returns the trace, once the tracer has completed it.
fn finished(trace: &std::path::Path) -> Result<String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let text = String::from_utf8_lossy(&fs::read(trace)?).into_owned();
        if text.lines().last().is_some_and(|line| line.contains("+++ exited") || line.contains("+++ killed"))
        {
            return Ok(text);
        }
        if Instant::now() > deadline {
            return Err(Failure::Process("the trace does not end".into()));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Cuts the trace at the replies, and checks the syncs before each.
fn judge(made: &[Made], events: &[Event], tree: &str) -> Result<String> {
    let replies = events.iter().filter(|event| **event == Event::Reply).count();
    if replies != made.len() {
        let what = format!("{} calls were answered, but {replies} replies are in the trace", made.len());
        return Err(Failure::Process(what));
    }
    let mut report = Vec::new();
    let mut unsynced = Vec::new();
    for (made, events) in made.iter().zip(events.split(|event| *event == Event::Reply)) {
        let syncs: Vec<&Sync> =
            events.iter().filter_map(Event::sync).filter(|sync| sync.path.starts_with(tree)).collect();
        let seen: Vec<String> = syncs.iter().map(|sync| sync.told(tree)).collect();
        let line =
            format!("{:<32} {}", made.what, if seen.is_empty() { "-".into() } else { seen.join(", ") });
        if !satisfied(made.wanted, &syncs, tree) {
            unsynced.push(format!("{line}, where {:?} was required", made.wanted));
        }
        report.push(line);
    }
    if unsynced.is_empty() {
        return Ok(format!("{}\neach answer of stable data followed the sync", report.join("\n")));
    }
    Err(Failure::Wrong(format!("missing syncs before the answer:\n{}", unsynced.join("\n"))))
}

fn satisfied(wanted: Wanted, syncs: &[&Sync], tree: &str) -> bool {
    let whole = |node: &str| {
        let path = format!("{tree}{node}");
        syncs.iter().any(|sync| match sync.kind {
            SyncKind::Whole => sync.path == path,
            SyncKind::FileSystem => true,
            SyncKind::Data => false,
        })
    };
    match wanted {
        Wanted::Nothing => syncs.is_empty(),
        Wanted::Data(node) => whole(node) || syncs.iter().any(|sync| sync.path == format!("{tree}{node}")),
        Wanted::Whole(node) => whole(node),
        Wanted::Both(one, other) => whole(one) && whole(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(wanted: Wanted, trace: &str) -> Result<String> {
        judge(&[Made { what: "a call", wanted }], &strace::events(trace, 2049), "/x/tree")
    }

    const REPLY: &str = "7 sendmsg(9<TCP:[127.0.0.1:2049->127.0.0.1:40000]>, {}, 0) = 28\n";

    #[test]
    fn sync_counts_only_if_complete_before_the_reply() {
        let sync = "8 fsync(12</x/tree/a>) = 0\n";
        assert!(outcome(Wanted::Whole("/a"), &format!("{sync}{REPLY}")).is_ok());
        assert!(outcome(Wanted::Whole("/b"), &format!("{sync}{REPLY}")).is_err());
        assert!(outcome(Wanted::Nothing, &format!("{sync}{REPLY}")).is_err());
        assert!(outcome(Wanted::Whole("/a"), &format!("{REPLY}{sync}")).is_err());
        let late = format!("8 fsync(12</x/tree/a> <unfinished ...>\n{REPLY}8 <... fsync resumed>) = 0\n");
        assert!(outcome(Wanted::Whole("/a"), &late).is_err());
        assert!(outcome(Wanted::Whole("/a"), &format!("8 fsync(12</x/tree/a>) = -1 EIO\n{REPLY}")).is_err());
    }

    #[test]
    fn attributes_need_more_than_fdatasync() {
        let data = "8 fdatasync(12</x/tree/a>) = 0\n";
        assert!(outcome(Wanted::Data("/a"), &format!("{data}{REPLY}")).is_ok());
        assert!(outcome(Wanted::Whole("/a"), &format!("{data}{REPLY}")).is_err());
        let write = "8 pwritev2(12</x/tree/a>, [{}], 1, 0, RWF_SYNC) = 5\n";
        assert!(outcome(Wanted::Whole("/a"), &format!("{write}{REPLY}")).is_ok());
        let write = "8 pwritev2(12</x/tree/a>, [{}], 1, 0, RWF_DSYNC) = 5\n";
        assert!(outcome(Wanted::Whole("/a"), &format!("{write}{REPLY}")).is_err());
        let both = "8 fsync(1</x/tree/a>) = 0\n8 fsync(2</x/tree/b>) = 0\n";
        assert!(outcome(Wanted::Both("/a", "/b"), &format!("{both}{REPLY}")).is_ok());
        assert!(outcome(Wanted::Both("/a", "/c"), &format!("{both}{REPLY}")).is_err());
    }
}
