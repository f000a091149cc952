//! Attributes at the origin: set together and, if refused, one by one.
//!
//! Implied attributes, which follow from how a file was created, written or named, yield to the origin's if
//! it refuses them: a server that squashes users gives files other owners. Refused attributes that a program
//! has set remain a difference, and delay nothing else.

use tombolo_core::fs::{Attr, FileType, NodeId, SetAttr, SetTime, XattrName, XattrSet, within};
use tombolo_core::{Error, Identity, Result};

use super::nodes::OpenBelow;
use super::plan::Chosen;
use super::round::Round;
use crate::tree::Set;

/// A node whose attributes are being set at the origin.
struct Setting<'a> {
    chosen: &'a Chosen,
    below: NodeId,
    /// Attributes at the origin before the data were written.
    attr: &'a Attr,
    open: Option<&'a OpenBelow>,
    /// Users to set the attributes as, until the origin permits it to one.
    users: [Identity; 3],
}

/// Steps in which attributes are set after the origin has refused to set them together.
const STEPS: [Set; 3] = [Set::OWNER, Set::MODE, Set::ATIME.union(Set::MTIME)];

impl Round {
    /// Sets the attributes of a node. `attr` are those at the origin before its data were written.
    pub(super) async fn set_attributes(
        &self,
        chosen: &Chosen,
        below: NodeId,
        attr: &Attr,
        open: Option<&OpenBelow>,
    ) -> Result<()> {
        let owner = Identity { uid: attr.uid, gid: attr.gid, groups: None };
        let users = [chosen.user.clone(), owner, Identity::ROOT];
        let setting = Setting { chosen, below, attr, open, users };
        // A version of `None` is fetched at the end of the round.
        let known = self.refused_before(&setting);
        let (mut version, mut refused) = match self.set(&setting, chosen.set - known).await {
            Ok(after) => (after, known),
            Err(error) if is_refusal(&error) => (None, self.set_one_by_one(&setting).await?),
            Err(error) => return Err(error),
        };
        // Extended attributes are set after the owner, whose change removes capabilities.
        if chosen.set.contains(Set::XATTRS) {
            match self.set_xattrs(chosen, below, &setting.users).await {
                Err(error) if is_refusal(&error) => refused |= self.refuse(chosen, Set::XATTRS, &error),
                set => set?,
            }
            version = None;
        }
        if !(refused & chosen.implied).is_empty() {
            self.take_theirs(&setting, refused & chosen.implied).await?;
            version = None;
        }
        let mut found = self.found();
        found.refused.insert(chosen.id, refused - chosen.implied);
        found.sent.insert(chosen.id);
        found.versions.insert(chosen.id, version);
        Ok(())
    }

    /// Sets those of the attributes that [`Setting::change`] selects. Returns the node's attributes
    /// afterwards; `None` if none were to be set.
    async fn set(&self, setting: &Setting<'_>, set: Set) -> Result<Option<Attr>> {
        let change = setting.change(set);
        if change == SetAttr::default() {
            return Ok(None);
        }
        let (fs, file) = (&self.shared.below, setting.open.map(|open| open.file));
        let set = |cx: &_| fs.setattr(cx, setting.below, file, &change);
        let ((attr, _), _) = self.by_first(&setting.users, set).await?;
        Ok(Some(attr))
    }

    /// Sets the attributes step by step. Returns those that the origin refuses.
    async fn set_one_by_one(&self, setting: &Setting<'_>) -> Result<Set> {
        let mut refused = Set::empty();
        for step in STEPS {
            let step = step & setting.chosen.set;
            match self.set(setting, step).await {
                Ok(_) => {}
                Err(error) if is_refusal(&error) => refused |= self.refuse(setting.chosen, step, &error),
                Err(error) => return Err(error),
            }
        }
        // The refusal shows the origin's mapping of users only if this round has created the node as its
        // owner, and if the user, not only the group, is to be changed.
        let changes_user = setting.chosen.attr.uid != setting.attr.uid;
        let is_squashed = self.found().made_by_owner.contains(&setting.chosen.id) && changes_user;
        if is_squashed && (refused & setting.chosen.implied).contains(Set::OWNER) {
            self.shared.squashed.add(setting.owners());
        }
        Ok(refused)
    }

    /// Returns attributes that the origin would refuse again: an implied owner that it has refused for
    /// another file.
    fn refused_before(&self, setting: &Setting<'_>) -> Set {
        let Chosen { set, implied, .. } = setting.chosen;
        let is_known = || self.shared.squashed.has(setting.owners());
        match (*set & *implied).contains(Set::OWNER) && setting.changes_owner() && is_known() {
            true => Set::OWNER,
            false => Set::empty(),
        }
    }

    /// Reports refused attributes, unless all are implied. Returns them.
    fn refuse(&self, chosen: &Chosen, set: Set, error: &Error) -> Set {
        if !(set - chosen.implied).is_empty() {
            let what = [(Set::OWNER, "owner"), (Set::MODE, "mode"), (Set::XATTRS, "extended attributes")];
            let what = what.iter().find(|(each, _)| set.contains(*each)).map_or("times", |(_, what)| what);
            let path = self.shared.tree().shown_path(chosen.id);
            let refusal = format!("the origin refuses to set the {what} of {path}: {error}");
            tracing::warn!(node = chosen.id.0, "{refusal}");
            self.found().refusal.get_or_insert(refusal);
        }
        set
    }

    /// Adopts some attributes from the origin, except those changed locally since the plan was made.
    async fn take_theirs(&self, setting: &Setting<'_>, taken: Set) -> Result<()> {
        let (fs, cx) = (&self.shared.below, self.cx(Identity::ROOT));
        let theirs = fs.getattr(&cx, setting.below, None).resolve().await?;
        self.shared.note(|tree| {
            let Some(node) = tree.node_mut(setting.chosen.id) else { return };
            let taken = taken - node.set;
            if taken.contains(Set::OWNER) {
                (node.attr.uid, node.attr.gid) = (theirs.uid, theirs.gid);
            }
            if taken.contains(Set::MODE) {
                node.attr.mode = theirs.mode;
            }
            if taken.contains(Set::MTIME) {
                node.attr.mtime = theirs.mtime;
            }
        });
        Ok(())
    }

    async fn set_xattrs(&self, chosen: &Chosen, below: NodeId, users: &[Identity]) -> Result<()> {
        let fs = &self.shared.below;
        for (name, value) in &chosen.xattrs {
            let name = XattrName::new(name)?;
            let set = self.by_first(users, |cx| {
                within(fs.xattrs(), |xattrs| match value {
                    Some(value) => xattrs.set(cx, below, name, value, XattrSet::Any, false),
                    None => xattrs.remove(cx, below, name),
                })
            });
            match (set.await, value) {
                // The attribute was never at the origin, or an earlier attempt has removed it.
                (Err(Error::NoAttribute), None) => {}
                (set, _) => drop(set?),
            }
        }
        Ok(())
    }
}

impl Setting<'_> {
    fn changes_owner(&self) -> bool {
        let wanted = &self.chosen.attr;
        self.chosen.set.contains(Set::OWNER) && (wanted.uid, wanted.gid) != (self.attr.uid, self.attr.gid)
    }

    /// Returns the requested user and group, and those at the origin.
    fn owners(&self) -> [u32; 4] {
        let wanted = &self.chosen.attr;
        [wanted.uid, wanted.gid, self.attr.uid, self.attr.gid]
    }

    /// Returns the change that sets these attributes: times always, owner and mode only if they differ.
    fn change(&self, set: Set) -> SetAttr {
        let (wanted, is_link) = (&self.chosen.attr, self.chosen.attr.file_type == FileType::Symlink);
        let changes_owner = self.changes_owner();
        // The mode is set with a new owner even if it does not differ, as that may clear bits of the mode.
        let changes_mode = set.contains(Set::MODE) && (changes_owner || wanted.mode != self.attr.mode);
        let gives_owner = changes_owner && set.contains(Set::OWNER);
        SetAttr {
            uid: gives_owner.then_some(wanted.uid),
            gid: gives_owner.then_some(wanted.gid),
            mode: (changes_mode && !is_link).then_some(wanted.mode),
            atime: set.contains(Set::ATIME).then_some(SetTime::At(wanted.atime)),
            mtime: set.contains(Set::MTIME).then_some(SetTime::At(wanted.mtime)),
            ..SetAttr::default()
        }
    }
}

/// Returns `true` for an answer that the origin repeats until someone changes its permissions, limits or
/// contents.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::AccessDenied
            | Error::NotPermitted
            | Error::InvalidArgument
            | Error::NotSupported
            | Error::NotImplemented
            | Error::BadType
            | Error::ReadOnly
            | Error::NameTooLong
            | Error::CrossDevice
            | Error::TooManyLinks
            | Error::FileTooLarge
            | Error::TooBig
    )
}
