//! Ways of waiting for the peer of a shared-memory link.

use clap::ValueEnum;
use serde::Deserialize;
use tombolo_shm::doorbell::Mode;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doorbell {
    /// Poll continuously: lowest latency, occupies a core
    Poll,
    /// Sleep until the peer rings
    Event,
    /// Poll for as long as it has paid off recently, then sleep
    #[default]
    Adaptive,
    /// Like poll, with the core idle until memory changes (x86 with WAITPKG)
    Umwait,
}

impl Doorbell {
    /// Returns the link's mode; fails if this processor does not support it.
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
            Err(format!("doorbell {mode} requires a processor with WAITPKG: use adaptive, event or poll"))
        }
    }
}
