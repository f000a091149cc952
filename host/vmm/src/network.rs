//! Network card, which can be plugged and unplugged while the machine runs.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::identity;
use crate::machine::NETWORK_SLOT;
use crate::monitor::{Monitor, MonitorError};
use crate::shares;

/// Back end of a network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// QEMU's user-mode network, with access to what the host can reach.
    User {
        /// Forwarded ports of the host in QEMU's format: `tcp:ADDRESS:PORT-ADDRESS:PORT`, or `udp:…`.
        forwards: Vec<String>,
    },
    /// An existing TAP device.
    Tap {
        /// Name of the interface.
        interface: String,
    },
}

const WRITE: &str = "write user[,hostfwd=tcp:127.0.0.1:PORT-:PORT]… or tap=INTERFACE";

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        match words.next().and_then(|word| word.split_once('=').map_or(Some((word, "")), Some)) {
            Some(("user", "")) => {
                let forwards = words.map(|word| word.strip_prefix("hostfwd=").map(str::to_owned));
                let forwards = forwards.collect::<Option<Vec<_>>>().ok_or(WRITE)?;
                Ok(Self::User { forwards })
            }
            Some(("tap", interface)) if !interface.is_empty() && words.next().is_none() => {
                Ok(Self::Tap { interface: interface.into() })
            }
            _ => Err(WRITE.into()),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User { forwards } => {
                f.write_str("user")?;
                forwards.iter().try_for_each(|forward| write!(f, ",hostfwd={forward}"))
            }
            Self::Tap { interface } => write!(f, "tap={interface}"),
        }
    }
}

impl Network {
    fn arguments(&self) -> Value {
        match self {
            Self::User { forwards } => {
                let forwards: Vec<_> = forwards.iter().map(|forward| json!({ "str": forward })).collect();
                json!({ "type": "user", "id": NETWORK, "hostfwd": forwards })
            }
            Self::Tap { interface } => {
                json!({ "type": "tap", "id": NETWORK, "ifname": interface, "script": "no", "downscript": "no" })
            }
        }
    }
}

const NETWORK: &str = "network";
const CARD: &str = "card";

impl Monitor {
    /// Creates the back end of a network card. Not visible to the guest.
    pub fn connect_network(&mut self, network: &Network) -> Result<(), MonitorError> {
        self.execute("netdev_add", &network.arguments()).map(drop)
    }

    /// Plugs a network card with the back end of [`connect_network`](Self::connect_network), as a new device
    /// of the guest.
    pub fn plug(&mut self, mac: &str) -> Result<(), MonitorError> {
        let card = json!({
            "driver": "virtio-net-pci", "id": CARD, "netdev": NETWORK, "bus": NETWORK_SLOT, "mac": mac,
            // An empty option ROM disables network boot.
            "romfile": "",
        });
        self.execute("device_add", &card).map(drop)
    }

    /// Unplugs the network card, the identity disk and this number of shares, if present. The guest must
    /// cooperate.
    pub fn unplug(&mut self, shares: usize, within: Duration) -> Result<(), MonitorError> {
        let shares: Vec<_> = (0..shares).map(shares::id_of).collect();
        let mut present = Vec::new();
        for device in [CARD, identity::DISK].into_iter().chain(shares.iter().map(|share| &**share)) {
            // Shares are unplugged with the identity. A second request for the slot's devices would cancel
            // the first (PCI Express 5.0 §6.7.1.5).
            let goes_along = ![CARD, identity::DISK].contains(&device) && present.contains(&identity::DISK);
            let reply = if goes_along {
                let device = format!("/machine/peripheral/{device}");
                self.execute("qom-get", &json!({ "path": device, "property": "type" }))
            } else {
                self.execute("device_del", &json!({ "id": device }))
            };
            match reply {
                Ok(_) => present.push(device),
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        for device in present {
            self.event("DEVICE_DELETED", within, |data| data["device"] == device)?;
        }
        for share in &shares {
            self.remove_if_present("chardev-remove", &json!({ "id": share }))?;
        }
        self.remove_if_present("netdev_del", &json!({ "id": NETWORK }))?;
        self.remove_if_present("blockdev-del", &json!({ "node-name": identity::NODE }))
    }

    /// Removes a device's back end, if present.
    fn remove_if_present(&mut self, command: &str, which: &Value) -> Result<(), MonitorError> {
        match self.execute(command, which) {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

fn is_not_found(error: &MonitorError) -> bool {
    matches!(error, MonitorError::Refused { reason, .. } if reason.contains("not found") || reason.contains("Failed to find"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_written_as_it_is_read() {
        for text in ["user", "user,hostfwd=tcp:127.0.0.1:8080-:80,hostfwd=udp::53-:53", "tap=vm1"] {
            assert_eq!(text.parse::<Network>().expect("good").to_string(), text);
        }
        for bad in ["", "user,guestfwd=x", "user=1", "tap", "tap=", "tap=a,script=/bin/sh", "bridge"] {
            assert!(bad.parse::<Network>().is_err(), "{bad:?}");
        }
    }
}
