//! Name changes of a directory in progress at the origin. If two changes of one name overlap, their order is
//! unknown, so the cache must not rely on either result.

use tombolo_core::fs::NameBuf;

/// Changes in progress, at most one per operation.
#[derive(Debug, Default)]
pub(crate) struct ChangesUnderWay {
    changes: Vec<UnderWay>,
    next: ChangeId,
}

/// Identity of a change in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeId(u64);

#[derive(Debug)]
struct UnderWay {
    id: ChangeId,
    names: Vec<NameBuf>,
    /// `true` once another change was in progress at the same time.
    has_company: bool,
    /// `true` once another change of one of the names was in progress at the same time.
    has_rival: bool,
}

impl ChangesUnderWay {
    /// Registers a change of these names, from before its request until [`ChangesUnderWay::end`].
    pub(crate) fn begin(&mut self, names: &[&NameBuf]) -> ChangeId {
        let id = self.next;
        self.next = ChangeId(id.0.wrapping_add(1));
        let (has_company, mut has_rival) = (!self.changes.is_empty(), false);
        for other in &mut self.changes {
            let is_rival = names.iter().any(|name| other.names.contains(name));
            other.has_company = true;
            other.has_rival |= is_rival;
            has_rival |= is_rival;
        }
        let names = names.iter().copied().cloned().collect();
        self.changes.push(UnderWay { id, names, has_company, has_rival });
        id
    }

    /// Returns `true` if another change in the directory was in progress during this one.
    pub(crate) fn has_company(&self, id: ChangeId) -> bool {
        self.changes.iter().any(|change| change.id == id && change.has_company)
    }

    /// Returns `true` if another change of one of the same names was in progress during this one.
    pub(crate) fn has_rival(&self, id: ChangeId) -> bool {
        self.changes.iter().any(|change| change.id == id && change.has_rival)
    }

    /// Unregisters a change, after its reply was processed.
    pub(crate) fn end(&mut self, id: ChangeId) {
        self.changes.retain(|change| change.id != id);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use tombolo_core::fs::Name;

    use super::*;

    #[test]
    fn changes_of_one_name_are_rivals_whichever_ends_first() {
        let [one, two, three] =
            ["one", "two", "three"].map(|name| Name::new(name.as_bytes()).expect("a name").to_owned());
        let mut changes = ChangesUnderWay::default();
        let a = changes.begin(&[&one, &two]);
        assert!(!changes.has_company(a));
        let b = changes.begin(&[&three]);
        assert!(changes.has_company(a) && changes.has_company(b));
        let c = changes.begin(&[&two]);
        assert!(changes.has_rival(a) && !changes.has_rival(b));
        changes.end(a);
        assert!(changes.has_rival(c));
        let d = changes.begin(&[&one, &one]);
        assert!(!changes.has_rival(d), "what has ended is no rival of what begins after it");
        for id in [b, c, d] {
            changes.end(id);
        }
        assert!(changes.is_empty());
    }
}
