//! What both sides of a link are: the server's and the mount's command lines, and where the client asks.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::args::{Args, Way};
use crate::failure::{Result, wrong};
use crate::process::{Home, PATIENCE, Process};

/// The directory of both sides.
#[derive(Debug)]
pub struct Site {
    /// Tree, state and log.
    pub home: Home,
    way: Way,
}

impl Site {
    /// A new one.
    pub fn new(args: &Args) -> Result<Self> {
        Ok(Self { home: Home::new(&args.program, &args.place)?, way: args.way })
    }

    /// What the client asks at: the socket, or the mount point.
    pub fn at(&self) -> PathBuf {
        self.home.path(if self.is_mount() { "mnt" } else { "links" })
    }

    /// Whether the client goes through a mount.
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

    /// Mounts, if the client goes through a mount.
    pub fn mount(&self) -> Result<()> {
        let source = match self.way {
            Way::Library => return Ok(()),
            Way::Socket => "shm:links/tree",
            Way::File => "shm+file:memory/tree",
        };
        self.home.run(&["mount", source, "mnt"])
    }

    /// Takes the mount away.
    pub fn unmount(&self) -> Result<()> {
        if self.is_mount() { self.home.run(&["umount", "mnt"]) } else { Ok(()) }
    }
}

/// Waits until a server has nothing of any client any more.
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

/// Whether a line of the list of mappings names memory of a link; the window is the server's own, and stays.
fn is_of_a_link(line: &str) -> bool {
    line.contains("memfd:tombolo") && !line.contains("memfd:tombolo-window")
}
