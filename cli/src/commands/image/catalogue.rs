//! Catalogue of images and their properties (docs/formats/catalogue.md).

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use libtombolo::{Last, StreamError, block_on};
use serde::Deserialize;
use tombolo_core::fs::OpenFlags;

use crate::assembly::options::disk::size;
use crate::commands::files::open_path::Opener;
use crate::commands::files::shown;
use crate::commands::vm::{Bounded, checked_name};
use crate::failure::{Failure, OrCannot};
use crate::location::{End, Location};
use crate::setting::{Setting, list};

/// Name of the catalogue in the directory of the images.
pub const NAME: &str = "catalogue.toml";
const VERSION: u32 = 1;
/// Maximum length of a catalogue, in bytes; a longer file is refused.
const BYTES_MAX: u64 = 256 << 10;

/// Properties that are compared as minimum amounts.
const SIZES: [&str; 3] = ["mem", "disk", "cpus"];

/// Images of a directory, in the file's order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    version: u32,
    #[serde(default, rename = "image")]
    pub images: Vec<Entry>,
}

/// An image and its properties.
#[derive(Debug, Deserialize)]
pub struct Entry {
    /// Name of the image, which is that of its subdirectory.
    pub name: String,
    #[serde(flatten)]
    pub properties: BTreeMap<String, Property>,
}

/// Value of a property. Amounts are in bytes, except `cpus`.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a property must be a number, a string or a list of strings")]
pub enum Property {
    Amount(u64),
    Word(String),
    Words(Vec<String>),
}

impl Property {
    fn words(&self) -> &[String] {
        match self {
            Self::Amount(_) => &[],
            Self::Word(word) => std::slice::from_ref(word),
            Self::Words(words) => words,
        }
    }
}

impl Catalogue {
    /// Reads the catalogue of a local or remote directory.
    pub fn in_dir(dir: &Path) -> Result<Self, Failure> {
        let (file, reading) = within(dir, NAME)?;
        let text = read(&file, &reading)?;
        Self::parse(&text).map_err(|reason| Failure::cannot(reading, reason))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut catalogue: Self =
            toml::from_str(text).map_err(|error| error.to_string().trim().replace('\n', "; "))?;
        if catalogue.version != VERSION {
            return Err(format!("unsupported version {} (expected {VERSION})", catalogue.version));
        }
        let mut names = HashSet::new();
        for entry in &mut catalogue.images {
            // An unchecked name could lead outside the directory.
            checked_name(&entry.name)
                .map_err(|rule| format!("{:?} is not a valid image name: {rule}", entry.name))?;
            entry.check().map_err(|reason| format!("{}: {reason}", entry.name))?;
            if !names.insert(&entry.name) {
                return Err(format!("duplicate image {}", entry.name));
            }
        }
        Ok(catalogue)
    }

    /// Returns the smallest image that meets all needs; the first among equals.
    fn fitting(&self, needs: &Needs) -> Result<&Entry, String> {
        let fitting = self.images.iter().filter(|entry| entry.lacks(needs).is_empty());
        fitting.min_by_key(|entry| entry.sizes()).ok_or_else(|| self.nearest(needs))
    }

    /// Describes the nearest image and what it lacks.
    fn nearest(&self, needs: &Needs) -> String {
        let lacking = self.images.iter().map(|entry| (entry, entry.lacks(needs)));
        let Some((nearest, lacks)) = lacking.min_by_key(|(entry, lacks)| (lacks.len(), entry.sizes())) else {
            return format!("{NAME} lists no images");
        };
        let names: Vec<_> = self.images.iter().take(NAMES_TOLD).map(|entry| entry.name.as_str()).collect();
        let more = if self.images.len() > NAMES_TOLD { ", …" } else { "" };
        format!(
            "available: {}{more}; the nearest is {}, without {}",
            names.join(", "),
            nearest.name,
            lacks.join(", ")
        )
    }
}

/// Maximum number of images listed when none fits.
const NAMES_TOLD: usize = 12;

impl Entry {
    /// Validates the properties, and converts sizes to amounts.
    fn check(&mut self) -> Result<(), String> {
        for (key, property) in &mut self.properties {
            if !is_key(key) {
                return Err(format!(
                    "{key:?} is not a valid property: use lower-case letters, digits and `-`"
                ));
            }
            if SIZES.contains(&key.as_str()) {
                let said = match &*property {
                    Property::Amount(amount) => Some(*amount),
                    Property::Word(word) => amount(key, word),
                    Property::Words(_) => None,
                };
                *property = Property::Amount(said.ok_or_else(|| no_amount(key))?);
            } else if property.words().is_empty() || !property.words().iter().all(|word| is_word(word)) {
                return Err(format!("{key} must be a string or a list of strings, without commas"));
            }
        }
        Ok(())
    }

    /// Returns the amounts that order images by size. Unspecified ones count as unlimited.
    fn sizes(&self) -> [u64; SIZES.len()] {
        SIZES.map(|key| match self.properties.get(key) {
            Some(Property::Amount(amount)) => *amount,
            _ => u64::MAX,
        })
    }

    /// Returns the unmet needs, with the image's value.
    fn lacks(&self, needs: &Needs) -> Vec<String> {
        let lacking = needs.0.iter().filter_map(|need| {
            let has = self.properties.get(&need.key);
            let fits = match (&need.wanted, has) {
                (Wanted::AtLeast(wanted), Some(Property::Amount(amount))) => amount >= wanted,
                (Wanted::Word(wanted), Some(has)) => {
                    has.words().iter().any(|word| word.eq_ignore_ascii_case(wanted))
                }
                _ => false,
            };
            let instead =
                has.map_or_else(String::new, |has| format!(" (it has {})", shown_of(&need.key, has)));
            (!fits).then(|| format!("{}{instead}", need.text))
        });
        lacking.collect()
    }
}

/// Formats a property for the user.
pub fn shown_of(key: &str, property: &Property) -> String {
    match property {
        Property::Amount(amount) if key == "cpus" => amount.to_string(),
        Property::Amount(bytes) => shown::short_size(*bytes),
        words => words.words().join(","),
    }
}

/// Required properties: `KEY=VALUE[,KEY=VALUE]…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs(Vec<Need>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Need {
    /// Need as the user wrote it.
    text: String,
    key: String,
    wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    AtLeast(u64),
    Word(String),
}

impl FromStr for Needs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let needs = list(text).map(|need @ Setting { text, name, value }| {
            let value = value.filter(|value| is_key(name) && is_word(value));
            let value = value.ok_or_else(|| need.wrong("for example os=debian or mem=512M"))?;
            let wanted = if SIZES.contains(&name) {
                Wanted::AtLeast(amount(name, value).ok_or_else(|| need.wrong(no_amount(name)))?)
            } else {
                Wanted::Word(value.into())
            };
            Ok(Need { text: text.into(), key: name.into(), wanted })
        });
        let needs: Vec<_> = needs.collect::<Result<_, String>>()?;
        if needs.is_empty() {
            Err("no property given; for example os=debian,mem=512M".into())
        } else {
            Ok(Self(needs))
        }
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(|need| need.text.as_str()).collect();
        f.write_str(&texts.join(","))
    }
}

/// Returns the path of the image that satisfies the needs, in a local or remote directory.
pub fn find(dir: &Path, needs: &Needs) -> Result<PathBuf, Failure> {
    let catalogue = Catalogue::in_dir(dir)?;
    let finding = format!("find an image with {needs}");
    let entry = catalogue.fitting(needs).map_err(|reason| {
        Failure::cannot(&finding, reason).remedy(format_args!("see tombolo image list {}", dir.display()))
    })?;
    match within(dir, &entry.name)?.0 {
        // The directory's owner chooses a link's target, so links are refused.
        Location::Dir(path) if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_dir()) => {
            Err(Failure::cannot(finding, format!("{} is not a directory", path.display())))
        }
        Location::Dir(mut path) => {
            path.pop();
            let dir = path.canonicalize().or_cannot(finding)?;
            Ok(dir.join(&entry.name))
        }
        elsewhere => Ok(elsewhere.to_string().into()),
    }
}

/// Returns the location of a name in a directory, and `read LOCATION` for failures.
fn within(dir: &Path, name: &str) -> Result<(Location, String), Failure> {
    let location = Location::of_word(dir.as_os_str()).map_err(Failure::usage)?;
    let below = location.below(name.as_bytes()).ok_or_else(|| Failure::usage("a path is not valid text"))?;
    let reading = match &below {
        Location::Dir(path) => format!("read {}", path.display()),
        elsewhere => format!("read {elsewhere}"),
    };
    Ok((below, reading))
}

/// Reads a whole file of limited length.
fn read(file: &Location, reading: &str) -> Result<String, Failure> {
    let place = Opener::new().open(file, End::Target)?;
    let file = block_on(place.find_or_fail(Last::Follow)?.open(OpenFlags::READ));
    let file = file.map_err(|error| place.cannot("read", &error))?;
    let mut bytes = Bounded::new(Vec::new(), BYTES_MAX);
    match block_on(file.read_to(0, &mut bytes, Default::default())) {
        Ok(_) => {}
        Err(StreamError::File(error)) => return Err(place.cannot("read", &error)),
        Err(StreamError::Stream(error)) => return Err(Failure::cannot(reading, &error)),
    }
    String::from_utf8(bytes.to).map_err(|_| Failure::cannot(reading, "it is not valid text"))
}

fn is_key(text: &str) -> bool {
    let is_in = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(is_in)
}

/// Returns `true` for a word that `--needs` can name: not empty, no commas, nothing to escape when printed.
fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(',') && shown::name(text.as_bytes()) == text
}

fn amount(key: &str, text: &str) -> Option<u64> {
    if key == "cpus" { text.parse().ok() } else { size(text) }
}

fn no_amount(key: &str) -> String {
    if key == "cpus" { "cpus must be a number".into() } else { format!("{key} must be a size, such as 512M") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGES: &str = "
        version = 1
        [[image]]
        name = \"large\"
        mem = \"1G\"
        cpus = 4
        os = \"debian\"
        app = [\"gcc\", \"make\"]
        [[image]]
        name = \"small\"
        mem = \"512M\"
        disk = \"2G\"
        os = \"Debian\"
        app = [\"perl\", \"gcc\"]
        [[image]]
        name = \"same\"
        mem = 536870912
        disk = \"2G\"
        os = \"debian\"
        app = \"gcc\"
        [[image]]
        name = \"tiny\"
        os = \"alpine\"
    ";

    fn found(needs: &str) -> Result<String, String> {
        let images = Catalogue::parse(IMAGES).expect("good");
        images.fitting(&needs.parse().expect(needs)).map(|entry| entry.name.clone())
    }

    #[test]
    fn smallest_fitting_image_wins_then_first() {
        for (needs, name) in [
            ("os=debian", "small"),
            ("os=debian,mem=512M,app=gcc", "small"),
            ("mem=513M", "large"),
            ("app=gcc,app=make", "large"),
            ("cpus=2", "large"),
            ("os=alpine", "tiny"),
        ] {
            assert_eq!(found(needs).as_deref(), Ok(name), "{needs}");
        }
        let told = found("os=debian,app=perl,mem=768M").expect_err("none");
        assert!(
            told.starts_with("available: large, small, same, tiny; the nearest is small, without"),
            "{told}"
        );
        assert!(told.ends_with("mem=768M (it has 512M)"), "{told}");
        let told = found("os=alpine,gpu=yes").expect_err("none");
        assert!(told.contains("nearest is tiny, without gpu=yes"), "{told}");
    }

    #[test]
    fn invalid_catalogue_and_needs_are_refused() {
        for (from, to) in [
            ("version = 1", "version = 2"),
            ("version = 1", "version = 1\ninclude = \"/etc/images.toml\""),
            ("\"tiny\"", "\"../tiny\""),
            ("\"tiny\"", "\"/srv/tiny\""),
            ("\"tiny\"", "\"..\""),
            ("\"tiny\"", "\"tiny?ssh=sh\""),
            ("\"tiny\"", "\"small\""),
            ("name = \"tiny\"", ""),
            ("\"alpine\"", "[]"),
            ("\"alpine\"", "7"),
            ("\"alpine\"", "\"a\\u001bb\""),
            ("\"alpine\"", "{ like = \"debian\" }"),
            ("mem = \"1G\"", "mem = \"much\""),
            ("cpus = 4", "cpus = -4"),
            ("cpus = 4", "CPUs = 4"),
        ] {
            assert!(IMAGES.contains(from));
            Catalogue::parse(&IMAGES.replace(from, to)).expect_err(to);
        }
        for needs in ["", "os", "os=", "mem=much", "cpus=2G", "OS=debian", "=x"] {
            needs.parse::<Needs>().expect_err(needs);
        }
    }
}
