//! The only source of random numbers of this program: the kernel's, through ring. Must not be replaced by one that
//! can be predicted: some of the numbers become names that no other client may take in advance.

use std::io;

use ring::rand::{SystemRandom, generate};

/// A random number.
///
/// # Errors
/// When the kernel gives no random bytes.
pub fn number() -> io::Result<u64> {
    bytes().map(u64::from_ne_bytes)
}

/// A random UUID (RFC 9562, version 4), as text.
///
/// # Errors
/// As [`number`].
pub fn uuid() -> io::Result<String> {
    let bits = u128::from_be_bytes(bytes()?);
    let bits = bits & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let hex = format!("{bits:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
    Ok(parts.join("-"))
}

fn bytes<const N: usize>() -> io::Result<[u8; N]>
where
    [u8; N]: ring::rand::RandomlyConstructable,
{
    let random = generate(&SystemRandom::new());
    random.map(ring::rand::Random::expose).map_err(|_| io::Error::other("the kernel gives no random bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ() {
        assert_ne!(number().unwrap(), number().unwrap());
    }

    #[test]
    fn a_uuid_has_its_form() {
        for _ in 0..64 {
            let uuid = uuid().unwrap();
            let lengths: Vec<_> = uuid.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{uuid}");
            assert!(
                uuid.chars().all(|c| c == '-' || c.is_ascii_hexdigit() && !c.is_ascii_uppercase()),
                "{uuid}"
            );
            assert_eq!(uuid.as_bytes()[14], b'4', "{uuid}");
            assert!(b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
        }
        assert_ne!(uuid().unwrap(), uuid().unwrap());
    }
}
