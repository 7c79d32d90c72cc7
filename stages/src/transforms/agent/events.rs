//! Server-sent events, as far as a completion is made of them: the data of each, however the bytes are cut.

use courant_pipeline::StageError;

use super::ASK;

/// A part of an answer is a few words; who sends longer lines is no such server.
const LONGEST_EVENT: usize = 64 * 1024;

/// What has come of an event that is not complete.
#[derive(Default)]
pub(super) struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
}

impl Events {
    /// The data of the events that these bytes complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, StageError> {
        let mut complete = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() + self.data.len() > LONGEST_EVENT {
                let reason = format!("the model server sends events of more than {LONGEST_EVENT} bytes");
                return Err(StageError::retry(ASK, reason));
            }
            if part.ends_with(b"\n") {
                complete.extend(self.take_line());
            }
        }
        Ok(complete)
    }

    /// What is left when nothing more comes: a server may leave out the last empty line.
    pub(super) fn finish(mut self) -> Option<Vec<u8>> {
        let data = self.take_line();
        data.or_else(|| (!self.data.is_empty()).then_some(self.data))
    }

    /// An empty line completes an event.
    fn take_line(&mut self) -> Option<Vec<u8>> {
        let line = std::mem::take(&mut self.line);
        let line = line.trim_ascii_end();
        if line.is_empty() {
            return (!self.data.is_empty()).then(|| std::mem::take(&mut self.data));
        }
        // Other fields, and comments that keep a connection alive, tell nothing here.
        if let Some(data) = line.strip_prefix(b"data:") {
            if !self.data.is_empty() {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let text = ": hello\r\ndata: {\"a\":1}\r\n\r\nevent: x\ndata: one\ndata: two\n\ndata:last\n";
        for size in 1..=text.len() {
            let mut events = Events::default();
            let mut heard = Vec::new();
            for part in text.as_bytes().chunks(size) {
                heard.extend(events.push(part).unwrap());
            }
            heard.extend(events.finish());
            let heard: Vec<_> = heard.iter().map(|data| std::str::from_utf8(data).unwrap()).collect();
            assert_eq!(heard, ["{\"a\":1}", "one\ntwo", "last"], "in parts of {size}");
        }
    }

    #[test]
    fn an_event_without_end_is_given_up() {
        let mut events = Events::default();
        let part = vec![b'x'; 1024];
        let gave_up = (0..=64).find_map(|_| events.push(&part).err());
        assert!(gave_up.unwrap().to_string().contains("more than 65536 bytes"));
        let mut events = Events::default();
        let lines = b"data: y\n".repeat(LONGEST_EVENT / 2);
        assert!(events.push(&lines).is_err(), "in many lines neither");
    }
}
