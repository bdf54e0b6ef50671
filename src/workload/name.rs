//! Generated names: safe characters, bounded lengths, the same for the same input.

/// Maximum length of a label value.
pub(crate) const LABEL: usize = 63;
/// Maximum length of an object's name.
pub(crate) const NAME: usize = 253;

/// Letters and digits that form no words and are not mistaken for one another.
const SAFE: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// FNV-1a, 32 bit.
pub(crate) fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// `text` with every byte mapped to a letter or digit that is safe in a name.
pub(crate) fn safe(text: &str) -> String {
    text.bytes().map(|byte| char::from(SAFE[usize::from(byte) % SAFE.len()])).collect()
}

/// A hash for use in names: at most ten safe letters.
pub(crate) fn safe_hash(text: &str) -> String {
    safe(&hash(text).to_string())
}

/// Five safe letters derived from `text`: they distinguish the pods of one workload.
pub(crate) fn instance(text: &str) -> String {
    let base = u32::try_from(SAFE.len()).unwrap_or(1);
    let mut rest = hash(text);
    let mut letters = String::with_capacity(5);
    for _ in 0..5 {
        letters.push(char::from(SAFE[(rest % base) as usize]));
        rest /= base;
    }
    letters
}

/// `text` if it is no longer than `most`, otherwise its beginning and a hash of the whole.
pub(crate) fn bounded(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let suffix = safe_hash(text);
    let mut end = most.saturating_sub(suffix.len() + 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let beginning = text[..end].trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    format!("{beginning}-{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_shortened_and_stays_unique() {
        let (one, other) = (format!("{}-a", "x".repeat(300)), format!("{}-b", "x".repeat(300)));
        let (cut, beside) = (bounded(&one, NAME), bounded(&other, NAME));
        assert!(cut.len() <= NAME && beside.len() <= NAME);
        assert_ne!(cut, beside);
        assert_eq!(bounded("short", NAME), "short");
        assert!(!bounded(&format!("{}.{}", "x".repeat(51), "y".repeat(60)), LABEL).contains(".-"));
    }

    #[test]
    fn a_hash_is_fnv_1a() {
        assert_eq!(hash("a"), 0xe40c_292c);
        assert!(safe_hash("whatever").bytes().all(|byte| SAFE.contains(&byte)));
        assert_eq!(instance("x").len(), 5);
    }
}
