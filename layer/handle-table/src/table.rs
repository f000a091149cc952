//! The files that have a number.

use std::collections::{BTreeMap, HashMap};

use tombolo_core::fs::{Attr, Name, NameBuf};
use tombolo_core::{Error, Result};

use super::FILES_MAX;
use super::log::{Log, Record};

/// A file's number. The upper half is drawn at each start, so that numbers that were lost are not given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id(pub u64);

impl Id {
    /// The export's root.
    pub const ROOT: Self = Self(0);
}

/// What makes a file that file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Who {
    pub fsid: u64,
    pub fileid: u64,
    /// 0 where the file system does not tell a file from an earlier one with its number.
    pub generation: u64,
}

impl Who {
    pub fn of(attr: &Attr) -> Self {
        Self { fsid: attr.fsid, fileid: attr.fileid, generation: attr.generation }
    }
}

/// Under which directory and name a file was met.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub parent: Id,
    pub name: NameBuf,
}

struct File {
    who: Who,
    /// `None` once it has lost the name that we knew.
    place: Option<Place>,
    /// Whether it may have other names; so after a restart, when nobody knows.
    has_names: bool,
    age: u64,
}

/// Deeper than this no path is followed.
const DEPTH_MAX: usize = 4096;

/// All files that have a number.
pub(super) struct Table {
    files: HashMap<Id, File>,
    by_who: HashMap<Who, Id>,
    by_place: HashMap<Place, Id>,
    /// How many files are in a directory; none is not kept.
    children: HashMap<Id, u32>,
    /// From the oldest to the youngest.
    ages: BTreeMap<u64, Id>,
    /// Those of them that are nowhere.
    nameless: BTreeMap<u64, Id>,
    next_age: u64,
    files_max: usize,
    log: Log,
    epoch: u32,
    next: u32,
}

impl Table {
    /// An empty one; `epoch` is what its new numbers begin with.
    pub fn new(log: Log, epoch: u32) -> Self {
        Self {
            files: HashMap::new(),
            by_who: HashMap::new(),
            by_place: HashMap::new(),
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

    /// The number of a file that was met at `place`, which may have other names.
    pub fn meet(&mut self, place: &Place, who: Who, has_names: bool) -> Result<Id> {
        if let Some(&id) = self.by_who.get(&who) {
            // Of several names the first is kept for as long as it is there.
            let settled = self.files.get_mut(&id).is_some_and(|file| {
                file.has_names = has_names;
                file.place.as_ref().is_some_and(|known| known == place || has_names)
            });
            if !settled {
                self.put(id, who, Some(place.clone()));
            }
            return Ok(id);
        }
        let id = Id(u64::from(self.epoch) << 32 | u64::from(self.next));
        self.next = self.next.checked_add(1).ok_or(Error::NoSpace)?;
        self.put(id, who, Some(place.clone()));
        if let Some(file) = self.files.get_mut(&id) {
            file.has_names = has_names;
        }
        Ok(id)
    }

    /// The file that a place means.
    pub fn at(&self, place: &Place) -> Option<Id> {
        self.by_place.get(place).copied()
    }

    /// The name of a file is gone. `was` is what the place meant before: if it means another file now, that one is left alone.
    pub fn unnamed(&mut self, place: &Place, was: Id) {
        if self.at(place) != Some(was) {
            return;
        }
        let Some(file) = self.files.get(&was) else { return };
        let who = file.who;
        // Nobody will meet it again: it is gone, or the next file with this number could not be told from it.
        let is_gone = !file.has_names || who.generation == 0;
        self.put(was, who, None);
        if is_gone {
            self.forget(was);
        }
    }

    /// A file goes from one place to another, and what was there loses its name. `was` is what both places meant before.
    pub fn moved(&mut self, from: &Place, to: &Place, was: [Option<Id>; 2]) {
        let [moved, replaced] = was;
        if let Some(replaced) = replaced {
            self.unnamed(to, replaced);
        }
        let Some((id, file)) = moved.and_then(|id| Some((id, self.files.get(&id)?))) else { return };
        // It has been met elsewhere since, or where it went another file was met. Nowhere: its old name is another file's.
        let (who, is_on_the_way) = (file.who, file.place.as_ref().is_none_or(|place| place == from));
        if is_on_the_way {
            let is_free = self.at(to).is_none_or(|there| there == id);
            self.put(id, who, is_free.then(|| to.clone()));
        }
    }

    /// Two files change places. `was` is what these meant before.
    pub fn exchanged(&mut self, one: &Place, other: &Place, was: [Option<Id>; 2]) {
        let ids = [self.at(one), self.at(other)];
        if ids == was {
            self.by_place.remove(one);
            self.by_place.remove(other);
            self.put_at(ids[0], Some(other));
            self.put_at(ids[1], Some(one));
            return;
        }
        // Somebody was met there meanwhile. The others will be met again.
        for (now, was) in ids.into_iter().zip(was) {
            self.put_at(now.filter(|_| now == was), None);
        }
    }

    /// The way from the root to a file: its steps in order, each with who must be there.
    pub fn way(&self, id: Id) -> Result<Vec<(NameBuf, Who)>> {
        let mut steps = Vec::new();
        let mut next = id;
        while next != Id::ROOT {
            let file = self.files.get(&next).ok_or(Error::Stale)?;
            let place = file.place.as_ref().ok_or(Error::Stale)?;
            steps.push((place.name.clone(), file.who));
            next = place.parent;
            if steps.len() > DEPTH_MAX {
                return Err(Error::Stale);
            }
        }
        steps.reverse();
        Ok(steps)
    }

    /// The directory under which a file was met; the root is under itself.
    pub fn parent(&self, id: Id) -> Result<Id> {
        if id == Id::ROOT {
            return Ok(id);
        }
        let place = self.files.get(&id).and_then(|file| file.place.as_ref());
        place.map(|place| place.parent).ok_or(Error::Stale)
    }

    /// Takes over what a log says.
    pub fn replay(&mut self, record: Record) {
        if record.place.is_none() && record.who.generation == 0 {
            self.forget(record.id);
        } else {
            self.set(record.id, record.who, record.place);
        }
    }

    /// All files, from the oldest to the youngest.
    pub fn ids(&self) -> Vec<Id> {
        self.ages.values().copied().collect()
    }

    /// What is known of a file.
    pub fn record(&self, id: Id) -> Option<Record> {
        self.files.get(&id).map(|file| Record { id, who: file.who, place: file.place.clone() })
    }

    /// Where changes are kept.
    pub fn log(&mut self) -> &mut Log {
        &mut self.log
    }

    /// Whether the log is best written anew.
    pub fn has_long_log(&self) -> bool {
        self.log.is_long(self.files.len())
    }

    fn put_at(&mut self, id: Option<Id>, place: Option<&Place>) {
        let who = id.and_then(|id| self.files.get(&id)).map(|file| file.who);
        if let (Some(id), Some(who)) = (id, who) {
            self.put(id, who, place.cloned());
        }
    }

    fn put(&mut self, id: Id, who: Who, place: Option<Place>) {
        self.log.append(&Record { id, who, place: place.clone() });
        self.set(id, who, place);
    }

    fn set(&mut self, id: Id, who: Who, place: Option<Place>) {
        if let Some(file) = self.files.get_mut(&id) {
            file.who = who;
        } else {
            let age = self.new_age();
            self.files.insert(id, File { who, place: None, has_names: true, age });
            self.ages.insert(age, id);
        }
        self.by_who.insert(who, id);
        self.settle(id, place);
        while self.files.len() > self.files_max
            && let Some(id) = self.least_missed()
        {
            self.forget(id);
        }
    }

    fn settle(&mut self, id: Id, place: Option<Place>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let age = file.age;
        if let Some(before) = std::mem::replace(&mut file.place, place.clone()) {
            self.leave(id, &before);
        }
        let Some(place) = place else {
            self.nameless.insert(age, id);
            return;
        };
        self.nameless.remove(&age);
        *self.children.entry(place.parent).or_default() += 1;
        if let Some(other) = self.by_place.insert(place, id)
            && other != id
        {
            // It was taken away without our knowing.
            self.settle(other, None);
        }
    }

    fn leave(&mut self, id: Id, place: &Place) {
        if self.at(place) == Some(id) {
            self.by_place.remove(place);
        }
        if let Some(children) = self.children.get_mut(&place.parent) {
            *children -= 1;
            if *children == 0 {
                self.children.remove(&place.parent);
            }
        }
    }

    /// Who makes room: those that are nowhere first, then the oldest. A directory that others are in counts as young each time its
    /// turn comes, as they would be lost with it.
    fn least_missed(&mut self) -> Option<Id> {
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
        // Nothing but circles.
        self.ages.first_key_value().map(|(_, &id)| id)
    }

    fn new_age(&mut self) -> u64 {
        self.next_age += 1;
        self.next_age
    }

    fn forget(&mut self, id: Id) {
        let Some(file) = self.files.remove(&id) else { return };
        if let Some(place) = &file.place {
            self.leave(id, place);
        }
        self.ages.remove(&file.age);
        self.nameless.remove(&file.age);
        if self.by_who.get(&file.who) == Some(&id) {
            self.by_who.remove(&file.who);
        }
    }
}

impl Place {
    pub fn new(parent: Id, name: Name<'_>) -> Self {
        Self { parent, name: name.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table::new(Log::nowhere(), 7)
    }

    fn place(parent: Id, name: &str) -> Place {
        Place::new(parent, Name::new(name.as_bytes()).expect("a name"))
    }

    fn who(fileid: u64) -> Who {
        Who { fsid: 1, fileid, generation: 5 }
    }

    fn names(table: &Table, id: Id) -> Option<Vec<String>> {
        let text =
            |(name, _): (NameBuf, Who)| String::from_utf8_lossy(name.as_name().as_bytes()).into_owned();
        table.way(id).ok().map(|way| way.into_iter().map(text).collect())
    }

    #[test]
    fn a_file_keeps_its_number_wherever_it_goes() {
        let mut table = table();
        let dir = table.meet(&place(Id::ROOT, "dir"), who(1), true).expect("a number");
        let file = table.meet(&place(dir, "file"), who(2), false).expect("a number");
        assert_eq!(names(&table, file).expect("a way"), ["dir", "file"]);
        table.moved(&place(Id::ROOT, "dir"), &place(Id::ROOT, "else"), [Some(dir), None]);
        assert_eq!(names(&table, file).expect("a way"), ["else", "file"]);
        // Moved by others, and met again.
        assert_eq!(table.meet(&place(Id::ROOT, "here"), who(2), false).expect("a number"), file);
        assert_eq!(names(&table, file).expect("a way"), ["here"]);
    }

    #[test]
    fn what_lost_its_name_is_nowhere_and_its_successor_is_another() {
        let mut table = table();
        let old = table.meet(&place(Id::ROOT, "file"), who(1), false).expect("a number");
        table.unnamed(&place(Id::ROOT, "file"), old);
        assert_eq!(names(&table, old), None);
        let new = table.meet(&place(Id::ROOT, "file"), who(2), false).expect("a number");
        assert!(new != old && names(&table, old).is_none());
        let nameless = Who { generation: 0, ..who(3) };
        let old = table.meet(&place(Id::ROOT, "g"), nameless, false).expect("a number");
        table.unnamed(&place(Id::ROOT, "g"), old);
        assert_ne!(table.meet(&place(Id::ROOT, "g"), nameless, false).expect("a number"), old);
    }

    #[test]
    fn of_several_names_one_is_kept_until_it_goes() {
        let mut table = table();
        let file = table.meet(&place(Id::ROOT, "one"), who(1), true).expect("a number");
        assert_eq!(table.meet(&place(Id::ROOT, "two"), who(1), true).expect("a number"), file);
        assert_eq!(names(&table, file).expect("a way"), ["one"]);
        table.unnamed(&place(Id::ROOT, "one"), file);
        assert_eq!(table.meet(&place(Id::ROOT, "two"), who(1), false).expect("a number"), file);
        assert_eq!(names(&table, file).expect("a way"), ["two"]);
    }

    #[test]
    fn a_replacing_and_an_exchanging_rename_leave_everybody_in_place() {
        let mut table = table();
        let one = table.meet(&place(Id::ROOT, "one"), who(1), false).expect("a number");
        let two = table.meet(&place(Id::ROOT, "two"), who(2), false).expect("a number");
        table.exchanged(&place(Id::ROOT, "one"), &place(Id::ROOT, "two"), [Some(one), Some(two)]);
        assert_eq!(names(&table, one).expect("a way"), ["two"]);
        assert_eq!(names(&table, two).expect("a way"), ["one"]);
        table.moved(&place(Id::ROOT, "one"), &place(Id::ROOT, "two"), [Some(two), Some(one)]);
        assert_eq!(names(&table, two).expect("a way"), ["two"]);
        assert_eq!(names(&table, one), None);
    }

    #[test]
    fn a_circle_of_directories_is_no_way() {
        let mut table = table();
        let one = table.meet(&place(Id::ROOT, "one"), who(1), true).expect("a number");
        let two = table.meet(&place(one, "two"), who(2), true).expect("a number");
        table.replay(Record { id: one, who: who(1), place: Some(place(two, "one")) });
        assert!(matches!(table.way(two), Err(Error::Stale)));
    }

    #[test]
    fn who_takes_a_name_while_it_is_given_up_keeps_it() {
        let mut table = table();
        let (one, two) = (place(Id::ROOT, "one"), place(Id::ROOT, "two"));
        let old = table.meet(&one, who(1), false).expect("a number");
        let new = table.meet(&one, who(2), false).expect("a number");
        table.unnamed(&one, old);
        assert_eq!(names(&table, new).expect("a way"), ["one"]);
        // `new` went from one to two, and before that is noted a third file is made at its old name.
        let third = table.meet(&one, who(3), false).expect("a number");
        table.moved(&one, &two, [Some(new), None]);
        assert_eq!(names(&table, new).expect("a way"), ["two"]);
        assert_eq!(names(&table, third).expect("a way"), ["one"]);
        // As before, and the new name is another's already.
        let fourth = table.meet(&two, who(4), false).expect("a number");
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
        let dir = table.meet(&place(Id::ROOT, "dir"), who(1), false).expect("a number");
        let kept = table.meet(&place(dir, "kept"), who(2), true).expect("a number");
        for n in 10..20 {
            let file = place(dir, &n.to_string());
            let id = table.meet(&file, who(n), false).expect("a number");
            table.unnamed(&file, id);
        }
        assert_eq!((table.files.len(), table.ages.len()), (2, 2), "what was removed is forgotten");
        assert_eq!(names(&table, kept).expect("a way"), ["dir", "kept"]);
        // It has another name, and lost the one that we knew.
        let nameless = table.meet(&place(dir, "n"), who(3), true).expect("a number");
        table.unnamed(&place(dir, "n"), nameless);
        let ids: Vec<Id> = (30..32)
            .map(|n| table.meet(&place(dir, &n.to_string()), who(n), false).expect("a number"))
            .collect();
        assert!(!table.files.contains_key(&nameless) && names(&table, kept).is_some());
        table.meet(&place(dir, "new"), who(40), false).expect("a number");
        assert!(names(&table, kept).is_none(), "the oldest that is no directory with children");
        assert!(ids.iter().all(|&id| names(&table, id).is_some()));
        assert!(table.nameless.is_empty() && table.children.len() == 2);
    }
}
