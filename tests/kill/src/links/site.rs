//! Both sides of a link: the command lines of server and mount, and the client's address.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::args::{Args, Way};
use crate::failure::{Result, wrong};
use crate::process::{Home, PATIENCE, Process};

/// Directory of both sides.
#[derive(Debug)]
pub struct Site {
    /// Directory of tree, state and log.
    pub home: Home,
    way: Way,
}

impl Site {
    /// Creates a directory.
    pub fn new(args: &Args) -> Result<Self> {
        Ok(Self { home: Home::new(&args.program, &args.place)?, way: args.way })
    }

    /// Returns the client's address: the socket, or the mount point.
    pub fn at(&self) -> PathBuf {
        self.home.path(if self.is_mount() { "mnt" } else { "links" })
    }

    /// Returns `true` if the client uses a mount.
    pub fn is_mount(&self) -> bool {
        self.way != Way::Library
    }

    /// Starts a server.
    pub fn serve(&self) -> Result<Process> {
        self.home.serve(
            &[],
            match self.way {
                Way::File => &["--shm-file", "memory,size=32M"],
                Way::Library | Way::Socket => &["--shm", "links"],
            },
        )
    }

    /// Mounts, if the client uses a mount.
    pub fn mount(&self) -> Result<()> {
        let source = match self.way {
            Way::Library => return Ok(()),
            Way::Socket => "shm:links/tree",
            Way::File => "shm+file:memory/tree",
        };
        self.home.run(&["mount", source, "mnt"])
    }

    /// Unmounts.
    pub fn unmount(&self) -> Result<()> {
        if self.is_mount() { self.home.run(&["umount", "mnt"]) } else { Ok(()) }
    }
}

/// Waits until a server has released all memory of its clients.
pub fn wait_until_free(server: &Process) -> Result<()> {
    let maps = format!("/proc/{}/maps", server.child.id());
    let until = Instant::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(&maps)?;
        let regions = text.lines().filter(|line| is_of_a_link(line)).count();
        if regions == 0 {
            return Ok(());
        }
        if Instant::now() > until {
            return wrong(format!("left over: {regions} regions of links in the server"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns `true` if a line of the mappings names memory of a link; the server's own window stays.
fn is_of_a_link(line: &str) -> bool {
    line.contains("memfd:tombolo") && !line.contains("memfd:tombolo-window")
}
