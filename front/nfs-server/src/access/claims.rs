//! Identities that the clients of NFS over TLS may use, by their certificates.

use std::ffi::CString;
use std::ops::RangeInclusive;

use tombolo_core::Identity;
use tombolo_host_tls::PeerCertificate;
use tombolo_sys::pattern::Pattern;

/// Identities that clients may use: the first rule that matches the subject of the client's certificate
/// applies. A caller without a certificate, or without a matching rule, is the anonymous user.
#[derive(Clone, Debug, Default)]
pub struct Claims(pub Vec<ClaimRule>);

/// A rule: the claim allowed to clients whose certificate has a matching subject.
#[derive(Clone, Debug)]
pub struct ClaimRule {
    /// Pattern of the subject's common name.
    pub subject: Pattern,
    /// Identities that these clients may claim.
    pub claim: Claim,
}

/// Identities that a caller may claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Any identity: the AUTH_SYS credential is trusted.
    Any,
    /// An identity among these users and groups. A caller with another user or primary group becomes the
    /// anonymous user; other supplementary groups are dropped.
    Within {
        /// The users.
        users: Vec<RangeInclusive<u32>>,
        /// The groups.
        groups: Vec<RangeInclusive<u32>>,
    },
    /// This user, whatever the AUTH_SYS credential contains.
    Fixed {
        /// The user.
        uid: u32,
        /// The user's only group.
        gid: u32,
    },
}

impl Claims {
    /// Returns the identity of a caller with this certificate and the identity `claimed` in its credential;
    /// `None` for the anonymous user.
    pub(crate) fn identity(
        &self,
        certificate: Option<&PeerCertificate>,
        claimed: Option<Identity>,
    ) -> Option<Identity> {
        let subject = CString::new(certificate?.subject.as_str()).ok()?;
        let rule = self.0.iter().find(|rule| rule.subject.matches(&subject))?;
        match &rule.claim {
            Claim::Any => claimed,
            Claim::Fixed { uid, gid } => Some(Identity { uid: *uid, gid: *gid, groups: None }),
            Claim::Within { users, groups } => {
                let claimed = claimed?;
                let has =
                    |ranges: &[RangeInclusive<u32>], id: u32| ranges.iter().any(|range| range.contains(&id));
                let may = has(users, claimed.uid) && has(groups, claimed.gid);
                may.then(|| Identity {
                    groups: Some(
                        claimed.groups().iter().copied().filter(|group| has(groups, *group)).collect(),
                    ),
                    ..claimed
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_rules_limit_identities() {
        let rule = |subject: &str, claim| ClaimRule { subject: subject.parse().expect("a pattern"), claim };
        let of = Claim::Within { users: vec![1000..=1009, 7..=7], groups: vec![100..=100, 105..=106] };
        let claims = Claims(vec![
            rule("lab-1", Claim::Fixed { uid: 5000, gid: 600 }),
            rule("lab-*", of),
            rule("gateway", Claim::Any),
        ]);
        let certificate = |subject: &str| PeerCertificate { subject: subject.into(), serial: "1".into() };
        let seen = |subject: &str, uid, gid, groups: &[u32]| {
            let named = Identity { uid, gid, groups: Some(groups.into()) };
            let identity = claims.identity(Some(&certificate(subject)), Some(named))?;
            Some((identity.uid, identity.gid, identity.groups().to_vec()))
        };
        assert_eq!(seen("lab-1", 0, 0, &[0]), Some((5000, 600, vec![])), "the first rule counts");
        assert_eq!(seen("lab-2", 1009, 100, &[105, 0, 27]), Some((1009, 100, vec![105])));
        assert_eq!(seen("lab-2", 7, 106, &[]), Some((7, 106, vec![])));
        for (uid, gid) in [(0, 0), (1010, 100), (999, 100), (1000, 0)] {
            assert_eq!(seen("lab-2", uid, gid, &[]), None, "{uid}:{gid}");
        }
        assert_eq!(seen("gateway", 0, 0, &[5]), Some((0, 0, vec![5])));
        assert_eq!(seen("other", 1000, 100, &[]), None);
        assert_eq!(claims.identity(None, Some(Identity::ROOT)), None, "no certificate");
        assert_eq!(claims.identity(Some(&certificate("lab-2")), None), None, "AUTH_NONE");
        assert_eq!(Claims::default().identity(Some(&certificate("gateway")), Some(Identity::ROOT)), None);
    }
}
