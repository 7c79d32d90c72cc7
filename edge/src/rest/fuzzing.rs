//! What a request says, as routes read it.

/// Reads an input as every route would. Whatever it is, it is understood or refused with a reason that is short.
pub fn rest(input: &[u8]) {
    for route in super::table() {
        let path = std::str::from_utf8(input).ok().and_then(route.reads.path);
        for refusal in [path, (route.reads.input)(&route.method, input)].into_iter().flatten() {
            assert!(refusal.message.len() < 1000, "{}", refusal.message);
        }
    }
}
