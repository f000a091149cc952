//! How to wait for the other side of a link over shared memory, by name.

use clap::ValueEnum;
use serde::Deserialize;
use tombolo_shm::doorbell::Mode;

/// How to wait for the other side of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doorbell {
    /// Look all the time: the fastest, and it takes a processor
    Poll,
    /// Sleep until the other side rings
    Event,
    /// Look for as long as that has paid lately, then sleep
    #[default]
    Adaptive,
    /// As poll, with the processor resting until memory changes (x86 with WAITPKG)
    Umwait,
}

impl Doorbell {
    /// The same for a link; fails where this processor has no such thing.
    pub fn mode(self) -> Result<Mode, String> {
        let mode = match self {
            Self::Poll => Mode::Poll,
            Self::Event => Mode::Event,
            Self::Adaptive => Mode::Adaptive,
            Self::Umwait => Mode::Umwait,
        };
        if mode.is_available() {
            Ok(mode)
        } else {
            Err(format!("doorbell {mode} wants a processor with WAITPKG: take adaptive, event or poll"))
        }
    }
}
