//! Guessing what a misspelt word was meant to be.

/// The candidate nearest to `word`, if it is near enough to be a typing mistake. Looks only at the first of very many
/// candidates: some files have a hundred thousand names.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST {
        return None;
    }
    let reach = word.chars().count() / 3 + 1;
    let mut left = MOST_LETTERS;
    candidates
        .into_iter()
        .filter(|candidate| candidate.len().abs_diff(word.len()) <= reach)
        .take_while(|candidate| {
            left = left.saturating_sub(candidate.len() * word.len());
            left > 0
        })
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= reach)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours between two words (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.to_lowercase().chars().collect(), b.to_lowercase().chars().collect());
    // Of the rows of the table, the last two and the one that is written.
    let (mut before, mut last, mut row) = (Vec::new(), (0..=b.len()).collect::<Vec<usize>>(), Vec::new());
    for i in 1..=a.len() {
        row.clear();
        row.push(i);
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        (before, last, row) = (last, row, before);
    }
    last[b.len()]
}

/// Bytes of a word that is too long to be corrected.
const LONGEST: usize = 256;
/// Pairs of letters that one guess compares: some 30,000 names of eight letters.
const MOST_LETTERS: usize = 2_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        let keys = ["priority", "wfq", "weight", "policy"];
        assert_eq!(nearest("prioriy", keys), Some("priority"));
        assert_eq!(nearest("wqf", keys), Some("wfq"));
        assert_eq!(nearest("Weight", keys), Some("weight"));
        assert_eq!(nearest("colour", keys), None);
    }
}
