//! Who the machines with certificates may act as.

use std::ffi::CString;
use std::ops::RangeInclusive;

use tombolo_core::Identity;
use tombolo_host_tls::PeerCertificate;
use tombolo_sys::pattern::Pattern;

/// Who the machines with certificates may act as: the first rule counts that has the certificate's subject.
/// With these rules a caller without a certificate, or of which none speaks, is the anonymous user.
#[derive(Clone, Debug, Default)]
pub struct Claims(pub Vec<ClaimRule>);

/// What holds for some subjects.
#[derive(Clone, Debug)]
pub struct ClaimRule {
    /// The common name.
    pub subject: Pattern,
    /// Who they may act as.
    pub claim: Claim,
}

/// Who a caller may act as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Any user: what AUTH_SYS says is believed.
    Any,
    /// These users, with these groups. Any other user, or one whose own group is another, is the anonymous
    /// one; any other group is left out.
    Of {
        /// The users.
        users: Vec<RangeInclusive<u32>>,
        /// The groups.
        groups: Vec<RangeInclusive<u32>>,
    },
    /// This one, whatever AUTH_SYS says.
    As {
        /// The user.
        uid: u32,
        /// Its group. It has no other.
        gid: u32,
    },
}

impl Claims {
    /// Who a caller is that names a user (or none), as far as it may; none is the anonymous user.
    pub(crate) fn identity(
        &self,
        certificate: Option<&PeerCertificate>,
        named: Option<Identity>,
    ) -> Option<Identity> {
        let subject = CString::new(certificate?.subject.as_str()).ok()?;
        let rule = self.0.iter().find(|rule| rule.subject.matches(&subject))?;
        match &rule.claim {
            Claim::Any => named,
            Claim::As { uid, gid } => Some(Identity { uid: *uid, gid: *gid, groups: None }),
            Claim::Of { users, groups } => {
                let named = named?;
                let has =
                    |ranges: &[RangeInclusive<u32>], id: u32| ranges.iter().any(|range| range.contains(&id));
                let may = has(users, named.uid) && has(groups, named.gid);
                may.then(|| Identity {
                    groups: Some(
                        named.groups().iter().copied().filter(|group| has(groups, *group)).collect(),
                    ),
                    ..named
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_says_who_may_be_whom() {
        let rule = |subject: &str, claim| ClaimRule { subject: subject.parse().expect("a pattern"), claim };
        let of = Claim::Of { users: vec![1000..=1009, 7..=7], groups: vec![100..=100, 105..=106] };
        let claims = Claims(vec![
            rule("lab-1", Claim::As { uid: 5000, gid: 600 }),
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
