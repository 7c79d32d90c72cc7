//! Numbers as DynamoDB has them: exact decimals of up to 38 digits.
//!
//! Nearly all numbers of the product are integers, so those are kept as such and everything else as digits and a
//! power of ten. A value has one representation only, which makes equality and hashing those of the fields.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use smol_str::ToSmolStr;

/// DynamoDB keeps this many significant digits and refuses more.
const MAX_DIGITS: u32 = 38;
/// DynamoDB's range: magnitudes from 1e-130 to just under 1e126.
const MIN_EXPONENT: i32 = -130;
const MAX_EXPONENT: i32 = 125;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Number(Repr);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Repr {
    Integer(i64),
    /// `digits × 10^exponent`; the last digit is not zero, and the value is no integer that fits in the other form.
    Decimal {
        digits: i128,
        exponent: i16,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NumberError {
    #[error("'{0}' is not a number")]
    Syntax(String),
    #[error("a number has at most {MAX_DIGITS} significant digits")]
    Precision,
    #[error("a number's magnitude lies between 1e{MIN_EXPONENT} and 1e{}", MAX_EXPONENT + 1)]
    Range,
}

impl Number {
    /// The one representation of `digits × 10^exponent`.
    fn new(mut digits: i128, mut exponent: i32) -> Result<Self, NumberError> {
        if digits == 0 {
            return Ok(Self(Repr::Integer(0)));
        }
        while digits % 10 == 0 {
            digits /= 10;
            exponent += 1;
        }
        let count = digit_count(digits);
        if count > MAX_DIGITS {
            return Err(NumberError::Precision);
        }
        let leading = exponent + i32::try_from(count).expect("at most 39") - 1;
        if !(MIN_EXPONENT..=MAX_EXPONENT).contains(&leading) {
            return Err(NumberError::Range);
        }
        if let Some(integer) = scaled(digits, exponent).and_then(|integer| i64::try_from(integer).ok()) {
            return Ok(Self(Repr::Integer(integer)));
        }
        let exponent = i16::try_from(exponent).expect("a number in range has a small exponent");
        Ok(Self(Repr::Decimal { digits, exponent }))
    }

    /// Digits and power of ten; not normalized for integers, which is enough to compute with.
    fn parts(self) -> (i128, i32) {
        match self.0 {
            Repr::Integer(integer) => (i128::from(integer), 0),
            Repr::Decimal { digits, exponent } => (digits, i32::from(exponent)),
        }
    }

    pub fn as_i64(self) -> Option<i64> {
        match self.0 {
            Repr::Integer(integer) => Some(integer),
            Repr::Decimal { .. } => None,
        }
    }

    pub fn as_u64(self) -> Option<u64> {
        let (digits, exponent) = self.parts();
        u64::try_from(scaled(digits, exponent)?).ok()
    }

    /// The exact sum.
    pub fn checked_add(self, other: Self) -> Result<Self, NumberError> {
        if let (Repr::Integer(a), Repr::Integer(b)) = (self.0, other.0)
            && let Some(sum) = a.checked_add(b)
        {
            return Ok(Self(Repr::Integer(sum)));
        }
        let ((a, a_exponent), (b, b_exponent)) = (self.parts(), other.parts());
        if a == 0 || b == 0 {
            return Ok(if a == 0 { other } else { self });
        }
        let exponent = a_exponent.min(b_exponent);
        let a = scaled(a, a_exponent - exponent).ok_or(NumberError::Precision)?;
        let b = scaled(b, b_exponent - exponent).ok_or(NumberError::Precision)?;
        Self::new(a.checked_add(b).ok_or(NumberError::Precision)?, exponent)
    }

    /// How long it is as text.
    pub(super) fn text_len(self) -> usize {
        match self.0 {
            Repr::Integer(integer) => {
                let digits = integer.unsigned_abs().checked_ilog10().map_or(1, |log| log as usize + 1);
                digits + usize::from(integer < 0)
            }
            Repr::Decimal { .. } => self.to_smolstr().len(),
        }
    }

    /// Appends bytes whose order is the order of the numbers. Equal numbers have equal bytes, and no number's bytes
    /// are a prefix of another's.
    pub fn encode_ordered(self, out: &mut Vec<u8>) {
        // A sign byte, the place of the first digit, then the digits in pairs, each a byte from 1 to 100, and a
        // zero byte. For negative numbers everything after the sign byte is turned around.
        let (digits, exponent) = self.parts();
        if digits == 0 {
            out.push(0x80);
            return;
        }
        // no allocation, and not the slower division of 128 bits, for the numbers that nearly all are
        let text = match self.0 {
            Repr::Integer(integer) => integer.unsigned_abs().to_smolstr(),
            Repr::Decimal { digits, .. } => digits.unsigned_abs().to_smolstr(),
        };
        let place = exponent + i32::try_from(text.len()).expect("at most 39 digits");
        let start = out.len() + 1;
        out.push(if digits < 0 { 0x7f } else { 0x81 });
        let biased =
            u16::try_from(place - MIN_EXPONENT).expect("a number in range lies above the least exponent");
        out.extend_from_slice(&biased.to_be_bytes());
        for pair in text.trim_end_matches('0').as_bytes().chunks(2) {
            let second = pair.get(1).map_or(0, |digit| digit - b'0');
            out.push((pair[0] - b'0') * 10 + second + 1);
        }
        out.push(0);
        if digits < 0 {
            out[start..].iter_mut().for_each(|byte| *byte = !*byte);
        }
    }
}

fn digit_count(digits: i128) -> u32 {
    digits.unsigned_abs().checked_ilog10().map_or(1, |log| log + 1)
}

fn scaled(digits: i128, by: i32) -> Option<i128> {
    digits.checked_mul(10i128.checked_pow(u32::try_from(by).ok()?)?)
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        if let (Repr::Integer(a), Repr::Integer(b)) = (self.0, other.0) {
            return a.cmp(&b);
        }
        let ((a, a_exponent), (b, b_exponent)) = (self.parts(), other.parts());
        let sign = a.signum().cmp(&b.signum());
        if sign != Ordering::Equal || a == 0 {
            return sign;
        }
        let place = |digits, exponent| i64::from(exponent) + i64::from(digit_count(digits));
        let magnitude = place(a, a_exponent).cmp(&place(b, b_exponent)).then_with(|| {
            // Same place of the first digit: bring both to 38 digits and compare those.
            let widened = |digits: i128| digits.unsigned_abs() * 10u128.pow(MAX_DIGITS - digit_count(digits));
            widened(a).cmp(&widened(b))
        });
        if a < 0 { magnitude.reverse() } else { magnitude }
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl FromStr for Number {
    type Err = NumberError;

    fn from_str(text: &str) -> Result<Self, NumberError> {
        let syntax = || NumberError::Syntax(text.chars().take(64).collect());
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().map_err(|_| syntax())?),
            None => (text, 0),
        };
        let (negative, mantissa) = match mantissa.as_bytes().first() {
            Some(b'-') => (true, &mantissa[1..]),
            Some(b'+') => (false, &mantissa[1..]),
            _ => (false, mantissa),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if whole.is_empty() && fraction.is_empty() || exponent.unsigned_abs() > 1_000 {
            return Err(syntax());
        }
        let fraction = fraction.trim_end_matches('0');
        let mut digits: i128 = 0;
        let mut dropped_zeros = 0;
        let all = whole.bytes().chain(fraction.bytes());
        for byte in all {
            if !byte.is_ascii_digit() {
                return Err(syntax());
            }
            // Zeros are counted until another digit follows, so that 1 and a hundred zeros is out of range, not of digits.
            if byte == b'0' {
                dropped_zeros += 1;
                continue;
            }
            digits = scaled(digits, if digits == 0 { 0 } else { dropped_zeros + 1 })
                .and_then(|scaled| scaled.checked_add(i128::from(byte - b'0')))
                .ok_or(NumberError::Precision)?;
            dropped_zeros = 0;
        }
        let fraction_len = i32::try_from(fraction.len()).map_err(|_| syntax())?;
        let exponent = exponent + dropped_zeros - fraction_len;
        Self::new(if negative { -digits } else { digits }, exponent)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Repr::Integer(integer) => integer.fmt(f),
            Repr::Decimal { digits, exponent: 0 } => digits.fmt(f),
            Repr::Decimal { digits, exponent } => write!(f, "{digits}e{exponent}"),
        }
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<i64> for Number {
    fn from(integer: i64) -> Self {
        Self(Repr::Integer(integer))
    }
}

impl From<u64> for Number {
    fn from(integer: u64) -> Self {
        match i64::try_from(integer) {
            Ok(integer) => Self(Repr::Integer(integer)),
            Err(_) => Self::new(i128::from(integer), 0).expect("twenty digits are in range"),
        }
    }
}

impl From<i32> for Number {
    fn from(integer: i32) -> Self {
        Self::from(i64::from(integer))
    }
}

impl From<u32> for Number {
    fn from(integer: u32) -> Self {
        Self::from(i64::from(integer))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(text: &str) -> Number {
        text.parse().unwrap()
    }

    fn ordered(number: Number) -> Vec<u8> {
        let mut bytes = Vec::new();
        number.encode_ordered(&mut bytes);
        bytes
    }

    #[test]
    fn one_value_has_one_representation() {
        for same in ["100", "1e2", "100.000", "0.01e4", "+100", "0000100"] {
            assert_eq!(number(same), Number::from(100), "{same}");
        }
        assert_eq!(number("-0.0"), Number::from(0));
        assert_eq!(number("9223372036854775808"), Number::from(1u64 << 63));
        assert_eq!(number("9223372036854775808").as_u64(), Some(1 << 63));
        assert_eq!(number("9223372036854775808").as_i64(), None);
        assert_eq!(number("1.5").as_u64(), None);
        assert_eq!(number("1e40").as_u64(), None);
    }

    #[test]
    fn what_dynamodb_would_refuse_is_refused() {
        assert_eq!("1.2.3".parse::<Number>(), Err(NumberError::Syntax("1.2.3".into())));
        for bad in ["", "-", ".", "e5", "1e", "NaN", "0x10", "１"] {
            assert!(matches!(bad.parse::<Number>(), Err(NumberError::Syntax(_))), "{bad}");
        }
        let digits = "9".repeat(38);
        assert_eq!(number(&digits).to_string(), digits);
        assert_eq!(format!("{digits}9").parse::<Number>(), Err(NumberError::Precision));
        assert!("9.9e125".parse::<Number>().is_ok());
        assert_eq!("1e126".parse::<Number>(), Err(NumberError::Range));
        assert!("1e-130".parse::<Number>().is_ok());
        assert_eq!("1e-131".parse::<Number>(), Err(NumberError::Range));
    }

    #[test]
    fn sums_are_exact_or_refused() {
        assert_eq!(Number::from(i64::MAX).checked_add(1.into()), Ok(Number::from(1u64 << 63)));
        assert_eq!(number("0.1").checked_add(number("0.2")), Ok(number("0.3")));
        assert_eq!(number("-5").checked_add(number("5")), Ok(0.into()));
        assert_eq!(number("1e125").checked_add(number("1e-130")), Err(NumberError::Precision));
        assert_eq!(number("1e125").checked_add(0.into()), Ok(number("1e125")));
    }

    fn any_number() -> impl Strategy<Value = Number> {
        prop_oneof![
            any::<i64>().prop_map(Number::from),
            any::<u64>().prop_map(Number::from),
            (-1000i64..1000).prop_map(Number::from),
            (any::<i64>(), -60i32..60)
                .prop_map(|(digits, exponent)| Number::new(digits.into(), exponent).unwrap()),
        ]
    }

    proptest! {
        #[test]
        fn the_length_of_its_text_is_known_without_it(number in any_number()) {
            prop_assert_eq!(number.text_len(), number.to_string().len());
        }

        #[test]
        fn text_reads_back(number in any_number()) {
            prop_assert_eq!(number.to_string().parse(), Ok(number));
        }

        #[test]
        fn bytes_have_the_order_of_the_numbers(a in any_number(), b in any_number()) {
            prop_assert_eq!(ordered(a).cmp(&ordered(b)), a.cmp(&b));
        }

        #[test]
        fn order_is_that_of_the_values(a in any::<i32>(), b in any::<i32>(), exponent in 0i32..5) {
            let scaled = |value: i32| Number::new(i128::from(value), -exponent).unwrap();
            prop_assert_eq!(scaled(a).cmp(&scaled(b)), a.cmp(&b));
        }
    }
}
