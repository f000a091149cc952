//! Suggestions for misspelt words.

use strsim::damerau_levenshtein;

/// Returns the known word nearest to `word`, if any is similar.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let slips_max = if word.chars().count() > 5 { 2 } else { 1 };
    let slips = known.into_iter().map(|other| (damerau_levenshtein(word, other), other));
    slips.filter(|(count, _)| *count <= slips_max).min_by_key(|(count, _)| *count).map(|(_, other)| other)
}

/// Formats `unknown WHAT "WRITTEN"` with a suggestion, if any. Each known word comes with `true` if it takes
/// a value.
pub fn unknown<'a>(what: &str, written: &str, known: impl IntoIterator<Item = (&'a str, bool)>) -> String {
    let name = written.split_once('=').map_or(written, |(name, _)| name);
    let known: Vec<_> = known.into_iter().collect();
    let meant = match nearest(name, known.iter().map(|(name, _)| *name)) {
        None => String::new(),
        Some(meant) if known.contains(&(meant, true)) => format!(": did you mean {meant}=…?"),
        Some(meant) => format!(": did you mean {meant}?"),
    };
    format!("unknown {what} {written:?}{meant}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_recognised_and_other_words_are_not() {
        let known = ["nfs", "shm", "coherence", "nolock"];
        for (word, meant) in [("nsf", "nfs"), ("sm", "shm"), ("cohernce", "coherence"), ("no_lock", "nolock")]
        {
            assert_eq!(nearest(word, known), Some(meant), "{word}");
        }
        for word in ["http", "", "ftp", "colour"] {
            assert_eq!(nearest(word, known), None, "{word}");
        }
    }
}
