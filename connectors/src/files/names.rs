//! File names for names that people choose.
//!
//! Queue and pipeline names may hold anything, a slash included. Letters, digits, `-`, `_` and inner dots stay
//! as they are, every other byte becomes `%XX`; so a name never leaves its folder, two names never share a
//! file, and the name can be read back from the file.

use super::FileError;

/// Leaves room for extensions below the 255 bytes that file systems allow.
const MAX_NAME: usize = 200;

pub(super) fn to_file_name(name: &str) -> Result<String, FileError> {
    let bad = |reason| FileError::Name { name: name.to_owned(), reason };
    if name.is_empty() {
        return Err(bad("it is empty"));
    }
    let mut file_name = String::with_capacity(name.len());
    for (index, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => file_name.push(char::from(byte)),
            b'.' if index > 0 => file_name.push('.'),
            _ => {
                use std::fmt::Write as _;
                write!(file_name, "%{byte:02X}").expect("writing to a string does not fail");
            }
        }
    }
    if file_name.len() > MAX_NAME {
        return Err(bad("it is too long"));
    }
    Ok(file_name)
}

/// None if no name gives this file name.
pub(super) fn from_file_name(file_name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(file_name.len());
    let mut rest = file_name;
    while let Some(first) = rest.bytes().next() {
        if first == b'%' {
            bytes.push(u8::from_str_radix(rest.get(1..3)?, 16).ok()?);
            rest = &rest[3..];
        } else {
            bytes.push(first);
            rest = rest.get(1..)?;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_folder_and_read_back() {
        for (name, file_name) in [
            ("ingest", "ingest"),
            ("a.b-c_1", "a.b-c_1"),
            ("../etc/passwd", "%2E.%2Fetc%2Fpasswd"),
            (".", "%2E"),
            ("..", "%2E."),
            ("grün %", "gr%C3%BCn%20%25"),
        ] {
            assert_eq!(to_file_name(name).unwrap(), file_name);
            assert_eq!(from_file_name(file_name).as_deref(), Some(name));
        }
    }

    #[test]
    fn names_that_no_file_can_bear_are_refused() {
        assert!(to_file_name("").is_err());
        assert!(to_file_name(&"x".repeat(201)).is_err());
        assert!(to_file_name(&"/".repeat(67)).is_err());
        assert_eq!(from_file_name("broken%2"), None);
    }
}
