//! Which values must not be shown, and how they are left out.
//!
//! Diagnostics quote lines of the file and values of keys, and end up in logs and tickets. A value counts as
//! secret by the name of its key, wherever it stands, because the schema of an unknown key cannot say so.
//! Passwords inside URLs are cut out whatever the key is called.

use std::ops::Range;

/// What stands in a message where a secret was.
pub(super) const MASK: &str = "***";

const SECRET_WORDS: [&str; 7] =
    ["secret", "password", "passwd", "passphrase", "token", "credential", "pepper"];

/// Before `key`: these make it key material and not a record's key.
const KEY_MATERIAL: [&str; 12] = [
    "api",
    "access",
    "private",
    "signing",
    "encryption",
    "master",
    "hmac",
    "jwt",
    "tls",
    "ssl",
    "shared",
    "auth",
];

/// Last words that speak about a secret without containing it: `token_ttl`, `password_file`.
const ABOUT_SECRETS: [&str; 13] = [
    "ttl", "lifetime", "timeout", "expiry", "file", "path", "header", "name", "length", "size", "limit",
    "count", "issuer",
];

/// Whether the value of a key with this name must not be shown.
pub(super) fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let words: Vec<&str> = key.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    if words.last().is_some_and(|last| ABOUT_SECRETS.contains(last)) {
        return false;
    }
    let material = words.windows(2).any(|pair| KEY_MATERIAL.contains(&pair[0]) && pair[1].starts_with("key"));
    // A tokenizer splits text.
    let key = key.replace("tokeniz", "");
    material || SECRET_WORDS.iter().any(|word| key.contains(word))
}

/// Where in a text the `user:password` of a URL stands.
pub(super) fn url_passwords(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(scheme) = text[from..].find("://") {
        let start = from + scheme + 3;
        let authority = text[start..]
            .find(|c: char| matches!(c, '/' | '"' | '\'' | '?' | '#') || c.is_whitespace())
            .map_or(&text[start..], |end| &text[start..start + end]);
        if let Some(at) = authority.rfind('@')
            && authority[..at].contains(':')
        {
            found.push(start..start + at);
        }
        from = start + authority.len();
    }
    found
}

/// A text without the passwords of its URLs.
pub(super) fn without_url_passwords(text: &str) -> String {
    let mut shown = text.to_owned();
    for range in url_passwords(text).into_iter().rev() {
        shown.replace_range(range, MASK);
    }
    shown
}

/// Secret lines of a file that could not be parsed: from a secret key to the next key or table.
pub(super) fn secret_lines(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let (mut offset, mut inside) = (0, false);
    for line in text.split_inclusive('\n') {
        let content = line.trim_end().len();
        let mut hidden_from = 0;
        if let Some((key, _)) = line.split_once('=').filter(|(key, _)| looks_like_key(key)) {
            inside = is_secret(key);
            hidden_from = key.len() + 1;
        } else if line.trim_start().starts_with('[') {
            inside = false;
        } else if line
            .split(['{', ','])
            .any(|part| part.split_once('=').is_some_and(|(key, _)| is_secret(key)))
        {
            inside = true;
        }
        if inside && hidden_from < content {
            found.push(offset + hidden_from..offset + content);
        }
        offset += line.len();
    }
    found
}

fn looks_like_key(text: &str) -> bool {
    let key = text.trim();
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.\"' ".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_their_name() {
        for name in [
            "secret",
            "jwt_secret",
            "db-password",
            "API_KEY",
            "access_key_id",
            "sessionToken",
            "signing-keys",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in
            ["key", "partition_key", "topic", "token_ttl", "tokenizer", "password_file", "listen", "monkey"]
        {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn urls_lose_their_password_only() {
        let url = "url = \"redis://app:hunter2@cache:6379/0\" # see http://docs/x@y:z";
        assert_eq!(without_url_passwords(url), "url = \"redis://***@cache:6379/0\" # see http://docs/x@y:z");
    }

    #[test]
    fn broken_files_keep_their_secrets() {
        let text = "listen = 1\nsecret = \"\"\"abc\ndef\nname = 2\n";
        let hidden: Vec<_> = secret_lines(text).into_iter().map(|range| &text[range]).collect();
        assert_eq!(hidden, [" \"\"\"abc", "def"]);
    }
}
