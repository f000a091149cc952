/// Values that are known by numbers, which are used again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    vacant: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Adds a value, and says its number.
    pub fn add(&mut self, value: T) -> u32 {
        let vacant = self.vacant.pop();
        match vacant.and_then(|number| Some((number, self.places.get_mut(number as usize)?))) {
            Some((number, place)) => {
                *place = Some(value);
                number
            }
            None => {
                self.places.push(Some(value));
                // A table holds far fewer than a u32 counts.
                (self.places.len() - 1) as u32
            }
        }
    }

    /// A value.
    pub fn peek(&self, number: u32) -> Option<&T> {
        self.places.get(number as usize)?.as_ref()
    }

    /// A value, to change.
    pub fn at(&mut self, number: u32) -> Option<&mut T> {
        self.places.get_mut(number as usize)?.as_mut()
    }

    /// Takes a value out.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.places.get_mut(number as usize)?.take()?;
        self.vacant.push(number);
        Some(value)
    }
}
