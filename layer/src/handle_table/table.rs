//! The files that have a number.

use std::collections::{HashMap, VecDeque};

use tombolo_core::fs::{Attr, Error, Name, NameBuf, Result};

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
}

/// Deeper than this no path is followed.
const DEPTH_MAX: usize = 4096;

/// All files that have a number.
pub(super) struct Table {
    files: HashMap<Id, File>,
    by_who: HashMap<Who, Id>,
    by_place: HashMap<Place, Id>,
    /// From the oldest to the youngest.
    ages: VecDeque<Id>,
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
            ages: VecDeque::new(),
            log,
            epoch,
            next: 1,
        }
    }

    /// The number of a file that was met at `place`, which may have other names.
    pub fn meet(&mut self, place: &Place, who: Who, has_names: bool) -> Result<Id> {
        if let Some(&id) = self.by_who.get(&who) {
            // Of several names the first is kept for as long as it is there.
            let settled = self
                .files
                .get(&id)
                .is_some_and(|file| file.place.as_ref().is_some_and(|known| known == place || has_names));
            if !settled {
                self.put(id, who, Some(place.clone()));
            }
            return Ok(id);
        }
        let id = Id(u64::from(self.epoch) << 32 | u64::from(self.next));
        self.next = self.next.checked_add(1).ok_or(Error::NoSpace)?;
        self.put(id, who, Some(place.clone()));
        Ok(id)
    }

    /// The name of a place is gone.
    pub fn unnamed(&mut self, place: &Place) {
        let Some(&id) = self.by_place.get(place) else { return };
        let Some(file) = self.files.get(&id) else { return };
        let who = file.who;
        self.put(id, who, None);
        if who.generation == 0 {
            // The next file with this number could not be told from it.
            self.by_who.remove(&who);
        }
    }

    /// A file goes from one place to another, and what was there loses its name.
    pub fn moved(&mut self, from: &Place, to: &Place) {
        self.unnamed(to);
        self.put_at(self.by_place.get(from).copied(), to);
    }

    /// Two files change places.
    pub fn exchanged(&mut self, one: &Place, other: &Place) {
        let ids = (self.by_place.remove(one), self.by_place.remove(other));
        self.put_at(ids.0, other);
        self.put_at(ids.1, one);
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
        self.set(record.id, record.who, record.place);
    }

    /// Writes all that is known into a new log.
    pub fn write_to(&self, log: &mut Log) {
        for id in &self.ages {
            if let Some(file) = self.files.get(id) {
                log.append(&Record { id: *id, who: file.who, place: file.place.clone() });
            }
        }
    }

    /// Goes on with this log.
    pub fn use_log(&mut self, log: Log) {
        self.log = log;
    }

    fn put_at(&mut self, id: Option<Id>, place: &Place) {
        let who = id.and_then(|id| self.files.get(&id)).map(|file| file.who);
        if let (Some(id), Some(who)) = (id, who) {
            self.put(id, who, Some(place.clone()));
        }
    }

    fn put(&mut self, id: Id, who: Who, place: Option<Place>) {
        self.log.append(&Record { id, who, place: place.clone() });
        self.set(id, who, place);
    }

    fn set(&mut self, id: Id, who: Who, place: Option<Place>) {
        match self.files.insert(id, File { who, place: place.clone() }) {
            Some(before) => self.leave(id, before.place),
            None => self.ages.push_back(id),
        }
        self.by_who.insert(who, id);
        if let Some(place) = place
            && let Some(other) = self.by_place.insert(place, id)
            && other != id
            && let Some(file) = self.files.get_mut(&other)
        {
            // It was taken away without our knowing.
            file.place = None;
        }
        while self.files.len() > FILES_MAX
            && let Some(oldest) = self.ages.pop_front()
        {
            self.forget(oldest);
        }
    }

    fn leave(&mut self, id: Id, place: Option<Place>) {
        if let Some(place) = place
            && self.by_place.get(&place) == Some(&id)
        {
            self.by_place.remove(&place);
        }
    }

    fn forget(&mut self, id: Id) {
        let Some(file) = self.files.remove(&id) else { return };
        self.leave(id, file.place);
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
        table.moved(&place(Id::ROOT, "dir"), &place(Id::ROOT, "else"));
        assert_eq!(names(&table, file).expect("a way"), ["else", "file"]);
        // Moved by others, and met again.
        assert_eq!(table.meet(&place(Id::ROOT, "here"), who(2), false).expect("a number"), file);
        assert_eq!(names(&table, file).expect("a way"), ["here"]);
    }

    #[test]
    fn what_lost_its_name_is_nowhere_and_its_successor_is_another() {
        let mut table = table();
        let old = table.meet(&place(Id::ROOT, "file"), who(1), false).expect("a number");
        table.unnamed(&place(Id::ROOT, "file"));
        assert_eq!(names(&table, old), None);
        let new = table.meet(&place(Id::ROOT, "file"), who(2), false).expect("a number");
        assert!(new != old && names(&table, old).is_none());
        let nameless = Who { generation: 0, ..who(3) };
        let old = table.meet(&place(Id::ROOT, "g"), nameless, false).expect("a number");
        table.unnamed(&place(Id::ROOT, "g"));
        assert_ne!(table.meet(&place(Id::ROOT, "g"), nameless, false).expect("a number"), old);
    }

    #[test]
    fn of_several_names_one_is_kept_until_it_goes() {
        let mut table = table();
        let file = table.meet(&place(Id::ROOT, "one"), who(1), true).expect("a number");
        assert_eq!(table.meet(&place(Id::ROOT, "two"), who(1), true).expect("a number"), file);
        assert_eq!(names(&table, file).expect("a way"), ["one"]);
        table.unnamed(&place(Id::ROOT, "one"));
        assert_eq!(table.meet(&place(Id::ROOT, "two"), who(1), false).expect("a number"), file);
        assert_eq!(names(&table, file).expect("a way"), ["two"]);
    }

    #[test]
    fn a_replacing_and_an_exchanging_rename_leave_everybody_in_place() {
        let mut table = table();
        let one = table.meet(&place(Id::ROOT, "one"), who(1), false).expect("a number");
        let two = table.meet(&place(Id::ROOT, "two"), who(2), false).expect("a number");
        table.exchanged(&place(Id::ROOT, "one"), &place(Id::ROOT, "two"));
        assert_eq!(names(&table, one).expect("a way"), ["two"]);
        assert_eq!(names(&table, two).expect("a way"), ["one"]);
        table.moved(&place(Id::ROOT, "one"), &place(Id::ROOT, "two"));
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
}
