//! Incremental images: a VM's changes (`disk.overlay`, `memory.overlay`) to the image that it was cloned
//! from.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tombolo_core::fs::Attr;

use super::chain::{self, Ground};
use super::config::{CONFIG, Config, DISK, MEMORY};
use super::home::Home;
use super::image::overlay;
use super::image_cache::{CacheArgs, ImageCache};
use crate::assembly::plan::disk::DiskSource;
use crate::commands::files::open_path::{attr_of, own_name};
use crate::commands::files::shown::short_size;
use crate::failure::{Failure, OrCannot, Outcome};
use crate::location::{Location, encoded};

/// Maximum depth of images, including the standalone one. A VM and its checkpoints add overlays above them,
/// within the limit of stacked redo logs.
pub const IMAGES_MAX: usize = 7;

/// Returns the path of an image's file, keeping the query of a URL.
pub fn file_of(image: &Path, name: &str) -> PathBuf {
    match image.to_str().and_then(|url| url.split_once('?')) {
        Some((path, query)) if DiskSource::is_elsewhere(image) => {
            format!("{}/{name}?{query}", path.trim_end_matches('/')).into()
        }
        _ => image.join(name),
    }
}

/// Returns the files of a disk or memory in these images, from the top down: all but the last are overlays.
pub fn files(images: &[PathBuf], what: &str) -> Vec<PathBuf> {
    let (Some(whole), Some(changes)) = (images.last(), images.get(..images.len().saturating_sub(1))) else {
        return Vec::new();
    };
    changes.iter().map(|image| file_of(image, &overlay(what))).chain([file_of(whole, what)]).collect()
}

/// Returns the location of an image; of a local one the canonical path, so that a link replaced later has no
/// effect.
pub fn place_of(word: &Path, doing: &str) -> Result<PathBuf, Failure> {
    match Location::of_word(word.as_os_str()).map_err(Failure::usage)? {
        Location::Dir(path) => path.canonicalize().or_cannot(doing),
        _ => Ok(word.to_owned()),
    }
}

/// Returns the base images: next to the image under the recorded names, or as given by the user.
pub fn bases(image: &Path, config: &Config, said: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let using = format!("use image {}", image.display());
    if said.len() > config.bases.len() {
        return Err(Failure::cannot(&using, "more --base options than base images"));
    }
    let mut all = vec![image.to_owned()];
    for (index, word) in config.bases.iter().enumerate() {
        let place = match said.get(index) {
            Some(said) => place_of(said, &using)?,
            None => beside(image, word).ok_or_else(|| {
                Failure::cannot(&using, format!("its base {word} is not next to it"))
                    .remedy("give the locations of all its bases, from the top down: --base IMAGE …")
            })?,
        };
        if all.contains(&place) {
            let reason = format!("{} is its own base", place.display());
            return Err(Failure::cannot(&using, reason));
        }
        all.push(place);
    }
    all.remove(0);
    Ok(all)
}

/// Returns the sibling of an image that `word`, `../NAME`, refers to. `None` for other words, and for a
/// symbolic link, which could lead to files that the image's creator cannot read.
fn beside(image: &Path, word: &str) -> Option<PathBuf> {
    let name = word.strip_prefix("../")?;
    let is_forbidden = |letter: char| letter == '/' || letter.is_control();
    if ["", ".", ".."].contains(&name) || name.contains(is_forbidden) {
        return None;
    }
    if !DiskSource::is_elsewhere(image) {
        let beside = image.parent()?.join(name);
        return fs::symlink_metadata(&beside).is_ok_and(|found| !found.is_symlink()).then_some(beside);
    }
    own_name(&Location::of_word(image.as_os_str()).ok()?)?;
    let (path, query) =
        image.to_str()?.split_once('?').map_or((image.to_str()?, None), |(path, query)| (path, Some(query)));
    let (above, _) = path.trim_end_matches('/').rsplit_once('/')?;
    let query = query.map_or(String::new(), |query| format!("?{query}"));
    Some(format!("{above}/{}{query}", encoded(name.as_bytes())).into())
}

/// Returns the word by which the new image `dir` refers to its base `image`: `../NAME` if the directory NAME
/// next to `dir` is that base, otherwise the location. The base may be known by another path or a URL, so the
/// directory counts as the base if its files `names` (disk and memory) have the same sizes and times.
fn word_of(dir: &Path, image: &Path, names: [&str; 2], ground: &Ground) -> Result<String, Failure> {
    let place = image.to_string_lossy().into_owned();
    let attr = |file: PathBuf| attr_of(&Location::of_word(file.as_os_str()).map_err(Failure::usage)?);
    let size_and_time = |Attr { size, mtime, .. }| (size, mtime);
    let location = Location::of_word(image.as_os_str()).map_err(Failure::usage)?;
    let Some(name) = own_name(&location) else { return Ok(place) };
    let Ok(name) = str::from_utf8(name.as_name().as_bytes()) else { return Ok(place) };
    let Some(beside) = dir.parent().map(|above| above.join(name)) else { return Ok(place) };
    // Links are not followed (`beside`).
    if fs::symlink_metadata(&beside).is_ok_and(|found| found.is_symlink()) {
        return Ok(place);
    }
    for file in names {
        let Ok(there) = attr(beside.join(file)) else { return Ok(place) };
        if size_and_time(there) != size_and_time(attr(ground.caches.near(&file_of(image, file)))?) {
            return Ok(place);
        }
    }
    Ok(format!("../{name}"))
}

/// Checks that an incremental image of the VM can be created; failures name it as `dir`.
pub fn check(home: &Home, dir: &Path) -> Outcome {
    let making = format!("create image {}", dir.display());
    let images = home.here()?.images();
    if images.is_empty() {
        return Err(Failure::cannot(&making, format!("VM {} was not cloned from an image", home.name))
            .remedy("create a standalone image, without --changes"));
    }
    if images.len() == IMAGES_MAX {
        let reason = format!("the image chain already has {} images", images.len());
        return Err(Failure::cannot(&making, reason).remedy("create a standalone image, without --changes"));
    }
    Ok(())
}

/// Writes the changes of a suspended VM to `draft`, which will be renamed to `dir`. Returns the words by
/// which the image refers to its bases.
pub fn write(home: &Home, dir: &Path, draft: &Path) -> Result<Vec<String>, Failure> {
    let ground = Ground::of(home)?;
    let images = ground.here.images();
    let mut words = Vec::new();
    for (index, image) in images.iter().enumerate() {
        let is_whole = index + 1 == images.len();
        let names = [DISK, MEMORY].map(|what| if is_whole { what.to_owned() } else { overlay(what) });
        words.push(word_of(dir, image, names.each_ref().map(String::as_str), &ground)?);
    }
    for what in [DISK, MEMORY] {
        let base = files(&images, what).into_iter().next().unwrap_or_default();
        let base = match words.first().filter(|word| word.starts_with("../")) {
            Some(word) => Path::new(word).join(base.file_name().unwrap_or_default()),
            None => base,
        };
        chain::finish(home, &ground, what, &draft.join(overlay(what)), &base)?;
    }
    Ok(words)
}

/// Returns a message with the size of an image and the command to clone it.
pub fn summary(dir: &Path) -> Result<String, Failure> {
    let file = dir.join(CONFIG);
    let text = fs::read_to_string(&file).or_cannot(format_args!("read {}", file.display()))?;
    let config = Config::read(&text, &file)?;
    let taken = |what| fs::metadata(dir.join(overlay(what))).map_or(0, |file| file.blocks() * 512);
    let [disk, memory] = [DISK, MEMORY].map(|what| short_size(taken(what)));
    let away = config.bases.iter().rposition(|word| !word.starts_with("../")).map_or(0, |last| last + 1);
    let place =
        |word: &String| beside(dir, word).map_or_else(|| word.clone(), |place| place.display().to_string());
    let said: String =
        config.bases.iter().take(away).map(|word| format!(" --base {}", place(word))).collect();
    let over = config.bases.first().map_or("", String::as_str);
    let summary = format!("{}: {disk} of disk and {memory} of memory, based on {over}", dir.display());
    Ok(if said.is_empty() {
        summary
    } else {
        format!("{summary}: tombolo clone {} NAME{said}", dir.display())
    })
}

/// Caches through which images on NFS servers are read; local images have none.
#[derive(Default)]
pub struct ImageCaches(Vec<ImageCache>);

impl ImageCaches {
    /// Starts the caches of these images.
    pub fn of(images: &[PathBuf], args: &CacheArgs) -> Result<Self, Failure> {
        let mut caches = Self::default();
        images.iter().try_for_each(|image| caches.add(image, args))?;
        Ok(caches)
    }

    pub fn add(&mut self, image: &Path, args: &CacheArgs) -> Outcome {
        if self.near(image) == image {
            self.0.extend(ImageCache::of_image(image, args)?);
        }
        Ok(())
    }

    /// Returns the location by which an image, or a file of it, is read through its cache; `place` itself if
    /// there is no such cache.
    pub fn near(&self, place: &Path) -> PathBuf {
        let near = self.0.iter().map(|cache| cache.near(place)).find(|near| near != place);
        near.unwrap_or_else(|| place.to_owned())
    }

    /// Starts the cache of the image that contains the file.
    pub fn of_file(file: &Path, args: &CacheArgs) -> Result<Self, Failure> {
        Ok(Self(ImageCache::of_file(file, args)?.into_iter().collect()))
    }

    /// Starts prefetching the trace of the image that contains the file.
    pub fn look_ahead(&self, file: &Path) {
        if let Some(cache) = self.0.iter().find(|cache| cache.near(file) != file) {
            cache.look_ahead(file);
        }
    }

    /// Returns the first cache that was started, if any.
    pub fn first(&self) -> Option<&ImageCache> {
        self.0.first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_file_url_keeps_query_at_end() {
        let file = |word: &str| file_of(Path::new(word), "disk");
        assert_eq!(file("nfs://h/golden/").to_str(), Some("nfs://h/golden/disk"));
        assert_eq!(file("nfs://h/golden?soft").to_str(), Some("nfs://h/golden/disk?soft"));
        assert_eq!(file("/a?b").to_str(), Some("/a?b/disk"));
    }

    #[test]
    fn base_image_is_found_only_as_sibling() {
        let found = |image: &str, word: &str| {
            beside(Path::new(image), word).map(|place| place.to_string_lossy().into_owned())
        };
        for (image, at) in [
            ("nfs://h/images/one", "nfs://h/images/golden"),
            ("nfs://h/images/one/?soft", "nfs://h/images/golden?soft"),
            ("nfs://h/one", "nfs://h/golden"),
        ] {
            assert_eq!(found(image, "../golden").as_deref(), Some(at), "{image}");
        }
        assert_eq!(found("nfs://h/one", "../a?soft/b"), None);
        assert_eq!(found("nfs://h/one", "../a?b").as_deref(), Some("nfs://h/a%3Fb"));
        for word in [
            "golden",
            "..",
            "../",
            "../..",
            "../.",
            "../../golden",
            "/srv/golden",
            "nfs://x/golden",
            "",
            "../a\x1b[2J",
        ] {
            assert_eq!(found("nfs://h/images/one", word), None, "{word}");
            assert_eq!(found("/srv/one", word), None, "{word}");
        }
        assert_eq!(found("nfs://h", "../golden"), None);
    }
}
