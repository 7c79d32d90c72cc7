//! When a record says that something happened: ISO 8601 text, or milliseconds since 1970.

use courant_connectors::model::Timestamp;

use crate::jq::Scalar;

/// The moment in milliseconds since 1970; the reason if the value is none.
pub fn millis(value: &Scalar<'_>) -> Result<u64, String> {
    match value {
        Scalar::Text(text) => {
            text.parse::<Timestamp>().map(Timestamp::unix_millis).map_err(|error| error.to_string())
        }
        Scalar::Int(millis) => u64::try_from(*millis).map_err(|_| format!("{millis} is before 1970")),
        _ => Err("it is neither ISO 8601 text nor milliseconds since 1970".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_milliseconds_are_moments() {
        assert_eq!(millis(&Scalar::Text("1970-01-01T00:00:01.500Z".into())), Ok(1500));
        assert_eq!(millis(&Scalar::Int(7)), Ok(7));
        for wrong in [Scalar::Int(-1), Scalar::Text("soon".into()), Scalar::Null, Scalar::Other] {
            assert!(millis(&wrong).is_err(), "{wrong:?}");
        }
    }
}
