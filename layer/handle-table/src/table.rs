//! The table in memory: numbered files, by number and by location.

use std::collections::{BTreeMap, HashMap};

use tombolo_core::fs::NameBuf;
use tombolo_core::{Error, Result};

use super::FILES_MAX;
use super::log::{FileIdentity, Id, Location, Log, Record};

struct File {
    identity: FileIdentity,
    /// Location of the file; `None` once the file has lost its known name.
    location: Option<Location>,
    /// `true` if the file may have other names; also after a restart, when that is unknown.
    has_names: bool,
    /// Key of the file in [`Table::ages`]: increases with the order of registration.
    age: u64,
}

/// Maximum depth of a path; a longer one counts as a cycle, and is stale.
const DEPTH_MAX: usize = 4096;

/// All files with a number, by number, identity and location.
pub(super) struct Table {
    files: HashMap<Id, File>,
    by_identity: HashMap<FileIdentity, Id>,
    by_location: HashMap<Location, Id>,
    /// Number of registered files in each directory that has any.
    children: HashMap<Id, u32>,
    /// Files by age, oldest first.
    ages: BTreeMap<u64, Id>,
    /// Files without a location, by age.
    nameless: BTreeMap<u64, Id>,
    next_age: u64,
    files_max: usize,
    log: Log,
    /// Upper half of new numbers.
    epoch: u32,
    /// Lower half of the next number.
    next: u32,
}

impl Table {
    /// Creates an empty table; `epoch` is the upper half of its new numbers.
    pub fn new(log: Log, epoch: u32) -> Self {
        Self {
            files: HashMap::new(),
            by_identity: HashMap::new(),
            by_location: HashMap::new(),
            children: HashMap::new(),
            ages: BTreeMap::new(),
            nameless: BTreeMap::new(),
            next_age: 0,
            files_max: FILES_MAX,
            log,
            epoch,
            next: 1,
        }
    }

    /// Registers a file seen at `location`, and returns its number. `has_names`: the file may have other
    /// names.
    pub fn register(&mut self, location: &Location, identity: FileIdentity, has_names: bool) -> Result<Id> {
        if let Some(&id) = self.by_identity.get(&identity) {
            // A file with several names retains the one that was registered first, while that exists.
            let settled = self.files.get_mut(&id).is_some_and(|file| {
                file.has_names = has_names;
                file.location.as_ref().is_some_and(|known| known == location || has_names)
            });
            if !settled {
                self.put(id, identity, Some(location.clone()));
            }
            return Ok(id);
        }
        let id = Id(u64::from(self.epoch) << 32 | u64::from(self.next));
        self.next = self.next.checked_add(1).ok_or(Error::NoSpace)?;
        self.put(id, identity, Some(location.clone()));
        if let Some(file) = self.files.get_mut(&id) {
            file.has_names = has_names;
        }
        Ok(id)
    }

    /// Returns the file last seen at a location.
    pub fn at(&self, location: &Location) -> Option<Id> {
        self.by_location.get(location).copied()
    }

    /// Records the removal of a name. `was` is the file that had the name: another file that is at the
    /// location by now is not affected.
    pub fn name_removed(&mut self, location: &Location, was: Id) {
        if self.at(location) != Some(was) {
            return;
        }
        let Some(file) = self.files.get(&was) else { return };
        let identity = file.identity;
        // A file without other names is deleted, and one without a generation is indistinguishable from the
        // next file with its inode number.
        let is_gone = !file.has_names || identity.generation == 0;
        self.put(was, identity, None);
        if is_gone {
            self.forget(was);
        }
    }

    /// Records a rename; the file replaced loses its name. `was` are the files at both locations before.
    pub fn moved(&mut self, from: &Location, to: &Location, was: [Option<Id>; 2]) {
        let [moved, replaced] = was;
        if let Some(replaced) = replaced {
            self.name_removed(to, replaced);
        }
        let Some((id, file)) = moved.and_then(|id| Some((id, self.files.get(&id)?))) else { return };
        // If the moved file was seen at a third location since, it retains that one. If another file was seen
        // at the destination, the moved file has no location, because its old name may be another file's.
        let (identity, is_on_the_way) =
            (file.identity, file.location.as_ref().is_none_or(|location| location == from));
        if is_on_the_way {
            let is_free = self.at(to).is_none_or(|there| there == id);
            self.put(id, identity, is_free.then(|| to.clone()));
        }
    }

    /// Records an exchange of two files. `was` are the files at these locations before.
    pub fn exchanged(&mut self, one: &Location, other: &Location, was: [Option<Id>; 2]) {
        let ids = [self.at(one), self.at(other)];
        if ids == was {
            self.by_location.remove(one);
            self.by_location.remove(other);
            self.put_at(ids[0], Some(other));
            self.put_at(ids[1], Some(one));
            return;
        }
        // Another file was seen at one of the locations since. Both files lose theirs until seen again.
        for (now, was) in ids.into_iter().zip(was) {
            self.put_at(now.filter(|_| now == was), None);
        }
    }

    /// Returns the path from the root to a file: names in order, each with the identity of its file.
    pub fn path_of(&self, id: Id) -> Result<Vec<(NameBuf, FileIdentity)>> {
        let mut steps = Vec::new();
        let mut next = id;
        while next != Id::ROOT {
            let file = self.files.get(&next).ok_or(Error::Stale)?;
            let location = file.location.as_ref().ok_or(Error::Stale)?;
            steps.push((location.name.clone(), file.identity));
            next = location.parent;
            if steps.len() > DEPTH_MAX {
                return Err(Error::Stale);
            }
        }
        steps.reverse();
        Ok(steps)
    }

    /// Returns the directory of a file; the root is its own.
    pub fn parent(&self, id: Id) -> Result<Id> {
        if id == Id::ROOT {
            return Ok(id);
        }
        let location = self.files.get(&id).and_then(|file| file.location.as_ref());
        location.map(|location| location.parent).ok_or(Error::Stale)
    }

    /// Applies a record read from a log, without appending it to this table's log.
    pub fn replay(&mut self, record: Record) {
        if record.location.is_none() && record.identity.generation == 0 {
            self.forget(record.id);
        } else {
            self.set(record.id, record.identity, record.location);
        }
    }

    /// Returns all files, oldest first.
    pub fn ids(&self) -> Vec<Id> {
        self.ages.values().copied().collect()
    }

    pub fn record(&self, id: Id) -> Option<Record> {
        self.files.get(&id).map(|file| Record {
            id,
            identity: file.identity,
            location: file.location.clone(),
        })
    }

    pub fn log(&mut self) -> &mut Log {
        &mut self.log
    }

    pub fn has_long_log(&self) -> bool {
        self.log.is_long(self.files.len())
    }

    fn put_at(&mut self, id: Option<Id>, location: Option<&Location>) {
        let identity = id.and_then(|id| self.files.get(&id)).map(|file| file.identity);
        if let (Some(id), Some(identity)) = (id, identity) {
            self.put(id, identity, location.cloned());
        }
    }

    fn put(&mut self, id: Id, identity: FileIdentity, location: Option<Location>) {
        self.log.append(&Record { id, identity, location: location.clone() });
        self.set(id, identity, location);
    }

    fn set(&mut self, id: Id, identity: FileIdentity, location: Option<Location>) {
        if let Some(file) = self.files.get_mut(&id) {
            file.identity = identity;
        } else {
            let age = self.new_age();
            self.files.insert(id, File { identity, location: None, has_names: true, age });
            self.ages.insert(age, id);
        }
        self.by_identity.insert(identity, id);
        self.set_location(id, location);
        while self.files.len() > self.files_max
            && let Some(id) = self.eviction_candidate()
        {
            self.forget(id);
        }
    }

    fn set_location(&mut self, id: Id, location: Option<Location>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let age = file.age;
        if let Some(before) = std::mem::replace(&mut file.location, location.clone()) {
            self.leave(id, &before);
        }
        let Some(location) = location else {
            self.nameless.insert(age, id);
            return;
        };
        self.nameless.remove(&age);
        *self.children.entry(location.parent).or_default() += 1;
        if let Some(other) = self.by_location.insert(location, id)
            && other != id
        {
            // The other file was removed or renamed by another program.
            self.set_location(other, None);
        }
    }

    fn leave(&mut self, id: Id, location: &Location) {
        if self.at(location) == Some(id) {
            self.by_location.remove(location);
        }
        if let Some(children) = self.children.get_mut(&location.parent) {
            *children -= 1;
            if *children == 0 {
                self.children.remove(&location.parent);
            }
        }
    }

    /// Returns the file to evict: those without a location first, then the oldest. A directory with children
    /// is not evicted but becomes the newest, because its children would be lost with it.
    fn eviction_candidate(&mut self) -> Option<Id> {
        if let Some((_, &id)) = self.nameless.first_key_value() {
            return Some(id);
        }
        for _ in 0..self.ages.len() {
            let (&age, &id) = self.ages.first_key_value()?;
            if !self.children.contains_key(&id) {
                return Some(id);
            }
            self.ages.remove(&age);
            let age = self.new_age();
            self.ages.insert(age, id);
            if let Some(file) = self.files.get_mut(&id) {
                file.age = age;
            }
        }
        // Every file has children: the table contains cycles, which no real tree has.
        self.ages.first_key_value().map(|(_, &id)| id)
    }

    fn new_age(&mut self) -> u64 {
        self.next_age += 1;
        self.next_age
    }

    fn forget(&mut self, id: Id) {
        let Some(file) = self.files.remove(&id) else { return };
        if let Some(location) = &file.location {
            self.leave(id, location);
        }
        self.ages.remove(&file.age);
        self.nameless.remove(&file.age);
        if self.by_identity.get(&file.identity) == Some(&id) {
            self.by_identity.remove(&file.identity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::fs::Name;

    fn table() -> Table {
        Table::new(Log::discarding(), 7)
    }

    fn location(parent: Id, name: &str) -> Location {
        Location::new(parent, Name::new(name.as_bytes()).expect("a name"))
    }

    fn identity(fileid: u64) -> FileIdentity {
        FileIdentity { fsid: 1, fileid, generation: 5 }
    }

    fn names(table: &Table, id: Id) -> Option<Vec<String>> {
        let text = |(name, _): (NameBuf, FileIdentity)| {
            String::from_utf8_lossy(name.as_name().as_bytes()).into_owned()
        };
        table.path_of(id).ok().map(|path_of| path_of.into_iter().map(text).collect())
    }

    #[test]
    fn a_file_keeps_its_number_wherever_it_goes() {
        let mut table = table();
        let dir = table.register(&location(Id::ROOT, "dir"), identity(1), true).expect("a number");
        let file = table.register(&location(dir, "file"), identity(2), false).expect("a number");
        assert_eq!(names(&table, file).expect("a way"), ["dir", "file"]);
        table.moved(&location(Id::ROOT, "dir"), &location(Id::ROOT, "else"), [Some(dir), None]);
        assert_eq!(names(&table, file).expect("a way"), ["else", "file"]);
        // Moved by others, and seen again.
        assert_eq!(table.register(&location(Id::ROOT, "here"), identity(2), false).expect("a number"), file);
        assert_eq!(names(&table, file).expect("a way"), ["here"]);
    }

    #[test]
    fn unlinked_file_has_no_path_or_successor() {
        let mut table = table();
        let old = table.register(&location(Id::ROOT, "file"), identity(1), false).expect("a number");
        table.name_removed(&location(Id::ROOT, "file"), old);
        assert_eq!(names(&table, old), None);
        let new = table.register(&location(Id::ROOT, "file"), identity(2), false).expect("a number");
        assert!(new != old && names(&table, old).is_none());
        let nameless = FileIdentity { generation: 0, ..identity(3) };
        let old = table.register(&location(Id::ROOT, "g"), nameless, false).expect("a number");
        table.name_removed(&location(Id::ROOT, "g"), old);
        assert_ne!(table.register(&location(Id::ROOT, "g"), nameless, false).expect("a number"), old);
    }

    #[test]
    fn of_several_names_one_is_kept_until_it_goes() {
        let mut table = table();
        let file = table.register(&location(Id::ROOT, "one"), identity(1), true).expect("a number");
        assert_eq!(table.register(&location(Id::ROOT, "two"), identity(1), true).expect("a number"), file);
        assert_eq!(names(&table, file).expect("a way"), ["one"]);
        table.name_removed(&location(Id::ROOT, "one"), file);
        assert_eq!(table.register(&location(Id::ROOT, "two"), identity(1), false).expect("a number"), file);
        assert_eq!(names(&table, file).expect("a way"), ["two"]);
    }

    #[test]
    fn replacing_and_exchanging_renames_keep_all_paths() {
        let mut table = table();
        let one = table.register(&location(Id::ROOT, "one"), identity(1), false).expect("a number");
        let two = table.register(&location(Id::ROOT, "two"), identity(2), false).expect("a number");
        table.exchanged(&location(Id::ROOT, "one"), &location(Id::ROOT, "two"), [Some(one), Some(two)]);
        assert_eq!(names(&table, one).expect("a way"), ["two"]);
        assert_eq!(names(&table, two).expect("a way"), ["one"]);
        table.moved(&location(Id::ROOT, "one"), &location(Id::ROOT, "two"), [Some(two), Some(one)]);
        assert_eq!(names(&table, two).expect("a way"), ["two"]);
        assert_eq!(names(&table, one), None);
    }

    #[test]
    fn a_circle_of_directories_is_no_way() {
        let mut table = table();
        let one = table.register(&location(Id::ROOT, "one"), identity(1), true).expect("a number");
        let two = table.register(&location(one, "two"), identity(2), true).expect("a number");
        table.replay(Record { id: one, identity: identity(1), location: Some(location(two, "one")) });
        assert!(matches!(table.path_of(two), Err(Error::Stale)));
    }

    #[test]
    fn file_taking_a_released_name_keeps_it() {
        let mut table = table();
        let (one, two) = (location(Id::ROOT, "one"), location(Id::ROOT, "two"));
        let old = table.register(&one, identity(1), false).expect("a number");
        let new = table.register(&one, identity(2), false).expect("a number");
        table.name_removed(&one, old);
        assert_eq!(names(&table, new).expect("a way"), ["one"]);
        // `new` moved from one to two; before that is recorded, a third file is created at its old name.
        let third = table.register(&one, identity(3), false).expect("a number");
        table.moved(&one, &two, [Some(new), None]);
        assert_eq!(names(&table, new).expect("a way"), ["two"]);
        assert_eq!(names(&table, third).expect("a way"), ["one"]);
        // The same, but the new name is already another file's.
        let fourth = table.register(&two, identity(4), false).expect("a number");
        table.moved(&one, &two, [Some(third), Some(new)]);
        assert_eq!(names(&table, fourth).expect("a way"), ["two"]);
        assert_eq!((names(&table, third), names(&table, new)), (None, None));
        table.exchanged(&one, &two, [Some(third), Some(new)]);
        assert_eq!(names(&table, fourth).expect("a way"), ["two"]);
    }

    #[test]
    fn removed_files_and_those_without_children_make_room() {
        let mut table = table();
        table.files_max = 4;
        let dir = table.register(&location(Id::ROOT, "dir"), identity(1), false).expect("a number");
        let kept = table.register(&location(dir, "kept"), identity(2), true).expect("a number");
        for n in 10..20 {
            let file = location(dir, &n.to_string());
            let id = table.register(&file, identity(n), false).expect("a number");
            table.name_removed(&file, id);
        }
        assert_eq!((table.files.len(), table.ages.len()), (2, 2), "what was removed is forgotten");
        assert_eq!(names(&table, kept).expect("a way"), ["dir", "kept"]);
        // It has another name, and has lost the known one.
        let nameless = table.register(&location(dir, "n"), identity(3), true).expect("a number");
        table.name_removed(&location(dir, "n"), nameless);
        let ids: Vec<Id> = (30..32)
            .map(|n| table.register(&location(dir, &n.to_string()), identity(n), false).expect("a number"))
            .collect();
        assert!(!table.files.contains_key(&nameless) && names(&table, kept).is_some());
        table.register(&location(dir, "new"), identity(40), false).expect("a number");
        assert!(names(&table, kept).is_none(), "the oldest that is no directory with children");
        assert!(ids.iter().all(|&id| names(&table, id).is_some()));
        assert!(table.nameless.is_empty() && table.children.len() == 2);
    }
}
