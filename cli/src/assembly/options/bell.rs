//! `bell=PATH|off`: how the sides of a link over memory wake each other.

use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;

use tombolo_host_links::bell::{BellLocation, BellSource, PORTS};
use tombolo_host_links::shared_memory::MemoryLocation;

use crate::setting::Setting;

/// Bell of a link over memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BellArg {
    /// In a guest, the device for a bell, if the guest has one; at a host, no bell.
    #[default]
    Found,
    Off,
    /// At a host, the two FIFOs PATH.in and PATH.out; in a guest, the device at PATH.
    At(PathBuf),
}

impl BellArg {
    /// Parses `off` or a path.
    pub fn parse(setting: &Setting<'_>) -> Result<Self, String> {
        match setting.value.unwrap_or_default() {
            "" => Err(setting.wrong("write bell=PATH or bell=off")),
            "off" => Ok(Self::Off),
            path => Ok(Self::At(path.into())),
        }
    }

    /// Resolves a relative path against the working directory.
    pub fn absolute(self) -> Self {
        match self {
            Self::At(path) => Self::At(absolute(&path).unwrap_or(path)),
            other => other,
        }
    }

    /// Returns the bell for this memory, which is not opened yet; `None` if there is none or it is off.
    pub fn source(&self, memory: &MemoryLocation) -> Option<Arc<BellSource>> {
        let location = match (self, memory) {
            (Self::Off, _) => None,
            (Self::Found, memory) => BellLocation::find(memory, Path::new(PORTS)),
            (Self::At(path), MemoryLocation::File(_)) => Some(BellLocation::Fifos(path.clone())),
            (Self::At(path), _) => Some(BellLocation::Device(path.clone())),
        };
        location.map(BellSource::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bell_path_names_fifos_or_device() {
        let arg = |text: &str| BellArg::parse(&Setting::from(text));
        assert_eq!(arg("bell=off"), Ok(BellArg::Off));
        assert!(arg("bell=").is_err() && arg("bell").is_err());
        let at = arg("bell=/run/vm1").expect("a path");
        let location = |arg: &BellArg, memory| arg.source(&memory).map(|bell| bell.location().clone());
        let file = || MemoryLocation::File("/dev/shm/vm1".into());
        assert_eq!(location(&at, file()), Some(BellLocation::Fifos("/run/vm1".into())));
        assert_eq!(location(&at, MemoryLocation::Pci(None)), Some(BellLocation::Device("/run/vm1".into())));
        assert_eq!(location(&BellArg::Found, file()), None);
        assert_eq!(location(&BellArg::Off, MemoryLocation::Mmapper("/dev/mmapper".into())), None);
    }
}
