//! A well-tuned transfer by bare TCP, as the paper's: from the program's memory to the socket.

use std::time::{Duration, Instant};

use super::{Client, DriveArgs, Job, Way, address, content};
use crate::error::{Doing, Result};
use crate::nfs::{Pour, Pourer};

/// The client of `tombolo-bench limit pour`.
pub struct Poured {
    pourer: Pourer,
    content: Vec<u8>,
}

impl Poured {
    pub fn new(args: &DriveArgs) -> Result<Self> {
        let pourer = Pourer::connect(args.nfs).doing(|| format!("connect to {}", args.nfs))?;
        Ok(Self { pourer, content: Vec::new() })
    }
}

impl Client for Poured {
    fn transfer(&mut self, job: &Job) -> Result<Duration> {
        self.memory(job.file_bytes);
        let pour = match job.way {
            Way::Read => Pour::FromMemory,
            Way::Write => Pour::Away,
        };
        let begun = Instant::now();
        let done = self.pourer.transfer(pour, &self.content, job.file_bytes as u64);
        done.doing(|| "pour".to_owned())?;
        Ok(begun.elapsed())
    }

    fn memory(&mut self, file_bytes: usize) -> u64 {
        if self.content.len() < file_bytes {
            self.content = content(file_bytes);
        }
        address(&self.content)
    }
}
