//! Numbers that fit a narrow column.

use super::model::Latency;

/// `0`, `0.4`, `87`, `4.2k`, `1.3M`.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        r if r <= 0.0 => "0".to_owned(),
        r if r < 9.95 => format!("{r:.1}"),
        r => scaled(r),
    }
}

/// A whole number: `999`, `4.2k`, `1.3M`.
pub(super) fn count(count: u64) -> String {
    scaled(count as f64)
}

fn scaled(number: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    // A step early, so that 999,950 becomes 1.0M and not 1000k.
    let Some((size, unit)) = units.into_iter().find(|(size, _)| number >= size * 0.9995) else {
        return format!("{number:.0}");
    };
    let scaled = number / size;
    if scaled < 9.95 { format!("{scaled:.1}{unit}") } else { format!("{scaled:.0}{unit}") }
}

/// `80µs`, `1.5ms`, `2.5s`; `>10s` beyond the last bucket; `-` if nothing was measured.
pub(super) fn latency(latency: Option<Latency>) -> String {
    let Some(Latency { seconds, beyond }) = latency else { return "-".to_owned() };
    let (value, unit) = match seconds {
        s if s >= 0.9995 => (s, "s"),
        s if s >= 0.000_999_5 => (s * 1e3, "ms"),
        s => (s * 1e6, "µs"),
    };
    let sign = if beyond { ">" } else { "" };
    if value < 9.95 && value.fract() > 0.05 {
        format!("{sign}{value:.1}{unit}")
    } else {
        format!("{sign}{value:.0}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_short() {
        let rates = [0.0, 0.42, 9.96, 87.4, 999.4, 999.6, 4210.0, 999_960.0, 1.31e6].map(rate);
        assert_eq!(rates, ["0", "0.4", "10", "87", "999", "1.0k", "4.2k", "1.0M", "1.3M"]);
        assert_eq!([0, 7, 123_456].map(count), ["0", "7", "123k"]);
    }

    #[test]
    fn latencies_carry_their_unit() {
        let short = |seconds| latency(Some(Latency { seconds, beyond: false }));
        assert_eq!([0.00008, 0.0015, 0.25, 2.5].map(short), ["80µs", "1.5ms", "250ms", "2.5s"]);
        assert_eq!(latency(Some(Latency { seconds: 10.0, beyond: true })), ">10s");
        assert_eq!(latency(None), "-");
    }
}
