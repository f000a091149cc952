//! What was probably meant by a word that is not known.

use strsim::damerau_levenshtein;

/// The known word that `word` was most likely meant to be, if any is like it.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let slips_max = if word.chars().count() > 5 { 2 } else { 1 };
    let slips = known.into_iter().map(|other| (damerau_levenshtein(word, other), other));
    slips.filter(|(count, _)| *count <= slips_max).min_by_key(|(count, _)| *count).map(|(_, other)| other)
}

/// `unknown WHAT "WRITTEN"`, with what was meant where that can be told. The known ones come with whether
/// they take a value.
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
    fn a_slip_of_the_pen_is_recognised_and_another_word_is_not() {
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
