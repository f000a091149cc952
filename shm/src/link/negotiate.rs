//! Negotiation of a link. No I/O: a server checks a hello against its limits, and a client the reply against
//! its hello.

use thiserror::Error;

use crate::link::ends::{DoorbellKind, Ends, Epoch, Extent, Role};
use crate::link::header::Header;
use crate::link::layout::{BACK_SLOTS_MAX, Layout, LayoutError, SLOTS_MAX};
use crate::link::message::{Hello, RefusalCode, Refused, Welcome};
use crate::link::terms::{Agreement, Doorbells, Features, Incarnation, Protocol, VERSION};

/// A server's limits for its links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Extensions that the server supports.
    pub features: Features,
    /// Protocols that the server supports.
    pub protocols: Vec<Protocol>,
    /// Maximum number of slots of a link's rings.
    pub slots: u32,
    /// Maximum number of slots of a link's back rings.
    pub back_slots: u32,
    /// Maximum size of a region, in bytes. The server's own region takes as much memory once the client has
    /// used all of it.
    pub bytes: u64,
    /// Doorbells that the server supports.
    pub doorbells: Doorbells,
}

impl Default for Limits {
    /// Returns limits for links between processes: vrpc, the maximum number of slots, 64 MiB. No call-backs,
    /// which are reserved (docs/decisions/shm-regions.md).
    fn default() -> Self {
        Limits {
            features: Features::SUPPORTED,
            protocols: vec![Protocol::Vrpc],
            slots: SLOTS_MAX,
            back_slots: BACK_SLOTS_MAX,
            bytes: 64 << 20,
            doorbells: Doorbells::FUTEX | Doorbells::SILENT,
        }
    }
}

/// The reason why a server's reply is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WelcomeError {
    /// The server chose a value that the client did not offer.
    #[error("the server's {what} was not offered")]
    NotOffered {
        /// Description of the chosen value, for the log.
        what: &'static str,
    },
    /// The server's sizes violate the rules of a layout.
    #[error("the server's sizes are inconsistent")]
    Layout(#[from] LayoutError),
}

impl Limits {
    /// Returns the parameters of a link for this client, or a refusal. The caller chooses epoch and
    /// incarnation.
    pub fn agree(&self, hello: &Hello, epoch: Epoch, server: Incarnation) -> Result<Agreement, Refused> {
        if hello.version_min > VERSION || hello.version_max < VERSION {
            return Err(Refused::new(
                RefusalCode::Version,
                format_args!(
                    "version {VERSION} is supported, not {} to {}",
                    hello.version_min, hello.version_max
                ),
            ));
        }
        if !(self.features & hello.offered).contains(hello.required) {
            let missing = hello.required.bits() & !self.features.bits();
            return Err(Refused::new(RefusalCode::Features, format_args!("{missing:#x}")));
        }
        let protocol = hello.protocol.filter(|protocol| self.protocols.contains(protocol));
        let protocol = protocol
            .ok_or_else(|| Refused::new(RefusalCode::Protocol, "it may be that of another server"))?;
        let doorbells = self.doorbells & hello.doorbells;
        let doorbell = DoorbellKind::ALL.into_iter().find(|doorbell| doorbells.contains((*doorbell).into()));
        let doorbell = doorbell
            .ok_or_else(|| Refused::new(RefusalCode::Doorbell, "none of the client's is supported"))?;
        let sizes = |error: LayoutError| Refused::new(RefusalCode::Sizes, error);
        // The client's request is validated before it is reduced to the limits, because reducing an invalid
        // request may yield valid sizes.
        let wanted = Layout::new(hello.slots, hello.back_slots, hello.bytes).map_err(sizes)?;
        let layout = Layout::new(
            wanted.slots().min(self.slots),
            wanted.back_slots().min(self.back_slots),
            wanted.bytes().min(self.bytes),
        )
        .map_err(sizes)?;
        Ok(Agreement {
            version: VERSION,
            features: self.features & hello.offered,
            protocol,
            layout,
            epoch,
            doorbell,
            server,
        })
    }
}

impl Agreement {
    /// Returns the header of a side's region; `owner` is that side's incarnation.
    pub fn header(&self, role: Role, owner: Incarnation) -> Header {
        Header {
            role,
            features: self.features,
            layout: self.layout,
            epoch: self.epoch,
            doorbell: self.doorbell,
            incarnation: owner,
        }
    }

    /// Returns the link from one side's view, without a bell. The memory of both sides must be at least as
    /// long as the layout.
    pub fn ends(&self, role: Role, own: Extent, peer: Extent) -> Ends {
        let Agreement { features, layout, epoch, doorbell, .. } = *self;
        Ends { role, own, peer, layout, epoch, features, doorbell, bell: None }
    }

    /// Returns the message by which a server accepts the link with these parameters.
    pub fn welcome(&self) -> Welcome {
        Welcome {
            version: self.version,
            features: self.features,
            slots: self.layout.slots(),
            back_slots: self.layout.back_slots(),
            bytes: self.layout.bytes(),
            epoch: self.epoch.number(),
            doorbell: self.doorbell,
            protocol: self.protocol,
            server: self.server,
        }
    }
}

impl Hello {
    /// Returns the hello of a client that requests at most these slots, slots of the back ring and bytes, the
    /// protocol vrpc, and the server's only export. It offers and requires no extension.
    pub fn new(client: Incarnation, slots: u32, back_slots: u32, bytes: u64) -> Hello {
        Hello {
            version_min: VERSION,
            version_max: VERSION,
            offered: Features::empty(),
            required: Features::empty(),
            slots,
            back_slots,
            bytes,
            client,
            protocol: Some(Protocol::Vrpc),
            doorbells: Doorbells::FUTEX,
            export: String::new(),
            label: String::new(),
        }
    }

    /// Checks the server's reply against this hello. Fails if the server chose a value that was not offered.
    pub fn check(&self, welcome: &Welcome) -> Result<Agreement, WelcomeError> {
        let offered = |what, holds: bool| if holds { Ok(()) } else { Err(WelcomeError::NotOffered { what }) };
        offered("version", (self.version_min..=self.version_max).contains(&welcome.version))?;
        offered(
            "set of extensions",
            self.offered.contains(welcome.features) && welcome.features.contains(self.required),
        )?;
        offered("protocol", self.protocol == Some(welcome.protocol))?;
        offered("doorbell", self.doorbells.contains(welcome.doorbell.into()))?;
        offered("number of slots", welcome.slots <= self.slots && welcome.back_slots <= self.back_slots)?;
        offered("size", welcome.bytes <= self.bytes)?;
        let epoch = Epoch::new(welcome.epoch).ok_or(WelcomeError::NotOffered { what: "epoch" })?;
        Ok(Agreement {
            version: welcome.version,
            features: welcome.features,
            protocol: welcome.protocol,
            layout: Layout::new(welcome.slots, welcome.back_slots, welcome.bytes)?,
            epoch,
            doorbell: welcome.doorbell,
            server: welcome.server,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let offered = Features::CALL_BACKS | Features::from_bits_retain(1 << 40);
        Hello { version_max: 3, offered, ..Hello::new(Incarnation([1; 16]), 256, 16, 128 << 20) }
    }

    fn agree(limits: &Limits, hello: &Hello) -> Result<Agreement, Refused> {
        limits.agree(hello, Epoch::new(5).expect("not zero"), Incarnation([2; 16]))
    }

    #[test]
    fn both_sides_negotiate_equal_terms_within_limits() {
        let limits = Limits { slots: 64, features: Features::CALL_BACKS, ..Limits::default() };
        let agreement = agree(&limits, &hello()).expect("an agreement");
        assert_eq!((agreement.layout.slots(), agreement.layout.back_slots()), (64, 16));
        assert_eq!(agreement.layout.bytes(), 64 << 20);
        assert_eq!((agreement.features, agreement.doorbell), (Features::CALL_BACKS, DoorbellKind::Futex));
        assert_eq!(hello().check(&agreement.welcome()), Ok(agreement));
    }

    /// Refuses a client that requires call-backs, which do not exist.
    #[test]
    fn callback_requirement_is_refused() {
        let agreement = agree(&Limits::default(), &hello()).expect("an agreement");
        assert!(!agreement.features.contains(Features::CALL_BACKS));
        let needy = Hello { required: Features::CALL_BACKS, ..hello() };
        let refused = agree(&Limits::default(), &needy).expect_err("it cannot be had");
        assert_eq!(refused.code, RefusalCode::Features);
    }

    #[test]
    fn unsatisfiable_offers_are_refused_with_their_own_code() {
        let refusal = |change: fn(&mut Hello)| {
            let mut hello = hello();
            change(&mut hello);
            agree(&Limits::default(), &hello).map_err(|refused| refused.code)
        };
        assert_eq!(refusal(|hello| hello.version_min = 2), Err(RefusalCode::Version));
        assert_eq!(refusal(|hello| hello.version_max = 0), Err(RefusalCode::Version));
        assert_eq!(
            refusal(|hello| hello.required = Features::from_bits_retain(1 << 40)),
            Err(RefusalCode::Features)
        );
        // Required, but not even offered.
        assert_eq!(
            refusal(|hello| (hello.offered, hello.required) = (Features::empty(), Features::CALL_BACKS)),
            Err(RefusalCode::Features)
        );
        assert_eq!(refusal(|hello| hello.protocol = None), Err(RefusalCode::Protocol));
        assert_eq!(refusal(|hello| hello.protocol = Some(Protocol::OncRpc)), Err(RefusalCode::Protocol));
        assert_eq!(
            refusal(|hello| hello.doorbells = Doorbells::from_bits_retain(0x80)),
            Err(RefusalCode::Doorbell)
        );
        for change in [
            (|hello| hello.slots = 0) as fn(&mut Hello),
            |hello| hello.slots = u32::MAX,
            |hello| hello.back_slots = 9,
            |hello| hello.bytes = 0,
            |hello| hello.bytes = u64::MAX,
            |hello| hello.bytes = (1 << 20) + 1,
        ] {
            assert_eq!(refusal(change), Err(RefusalCode::Sizes));
        }
        let tight = Limits { bytes: 8192, ..Limits::default() };
        assert_eq!(agree(&tight, &hello()).map_err(|refused| refused.code), Err(RefusalCode::Sizes));
    }

    #[test]
    fn a_server_that_decides_beyond_the_offer_is_refused() {
        let sound = agree(&Limits::default(), &hello()).expect("an agreement").welcome();
        let spoilt = |change: fn(&mut Welcome)| {
            let mut welcome = sound.clone();
            change(&mut welcome);
            hello().check(&welcome)
        };
        assert!(spoilt(|_| ()).is_ok());
        for change in [
            (|welcome| welcome.version = 4) as fn(&mut Welcome),
            |welcome| welcome.features = Features::from_bits_retain(1 << 41),
            |welcome| welcome.slots = 512,
            |welcome| welcome.slots = 0,
            |welcome| welcome.back_slots = 32,
            |welcome| welcome.bytes = 256 << 20,
            |welcome| welcome.bytes = 4096,
            |welcome| welcome.epoch = 0,
            |welcome| welcome.doorbell = DoorbellKind::Silent,
            |welcome| welcome.protocol = Protocol::OncRpc,
        ] {
            assert!(spoilt(change).is_err());
        }
        let needy = Hello { required: Features::CALL_BACKS, ..hello() };
        let without = Welcome { features: Features::empty(), ..sound.clone() };
        assert_eq!(needy.check(&without), Err(WelcomeError::NotOffered { what: "set of extensions" }));
    }
}
