//! Reading and printing a number with its unit.

/// The error for a text that cannot be read as the wanted quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {want}")]
pub struct UnitError {
    text: String,
    want: &'static str,
}

impl UnitError {
    pub(crate) fn zero(text: &str, want: &'static str) -> Self {
        Self { text: text.to_owned(), want }
    }
}

/// Reads digits (with `_` and at most one decimal point) and a unit from `units`; exact, and refuses fractions of
/// the smallest unit and values beyond 64 bits.
pub(crate) fn quantity(text: &str, want: &'static str, units: &[(&str, u64)]) -> Result<u64, UnitError> {
    let wrong = || UnitError { text: text.to_owned(), want };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).ok_or_else(wrong)?;
    let (number, unit) = (&trimmed[..split], trimmed[split..].trim_start());
    let &(_, scale) = units.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let digits = number.replace('_', "");
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    if whole.is_empty() || fraction.len() > 18 || fraction.contains('.') {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let tens = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| wrong())?);
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| wrong())? };
    if !(fraction * u128::from(scale)).is_multiple_of(tens) {
        return Err(wrong());
    }
    let total = u128::from(whole) * u128::from(scale) + fraction * u128::from(scale) / tens;
    u64::try_from(total).map_err(|_| wrong())
}

/// `value / unit` with up to three decimals, rounded to nearest, and the unit's name.
pub(crate) fn decimal(value: u64, unit: u64, name: &str) -> String {
    let thousandths = (u128::from(value) * 1_000 + u128::from(unit) / 2) / u128::from(unit);
    let (whole, rest) = (thousandths / 1_000, thousandths % 1_000);
    let fraction = format!("{rest:03}");
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() { format!("{whole}{name}") } else { format!("{whole}.{fraction}{name}") }
}

/// Serde and JSON Schema for a unit: text in formats that people read, the exact integer in others.
macro_rules! text_serde {
    ($unit:ident, $about:literal, $pattern:literal) => {
        impl serde::Serialize for $unit {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                if to.is_human_readable() { to.collect_str(self) } else { serde::Serialize::serialize(&self.0, to) }
            }
        }
        impl<'de> serde::Deserialize<'de> for $unit {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                if !from.is_human_readable() {
                    return serde::Deserialize::deserialize(from).map(Self);
                }
                let text = String::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
        impl schemars::JsonSchema for $unit {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($unit).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "description": $about, "pattern": $pattern })
            }
        }
    };
}
pub(crate) use text_serde;

#[cfg(test)]
mod tests {
    use crate::{BitRate, Bytes, Frequency, Span};

    #[test]
    fn reads_what_operators_write() {
        assert_eq!("10Gbps".parse(), Ok(BitRate::gbps(10)));
        assert_eq!("1.5 Gbit/s".parse(), Ok(BitRate::mbps(1_500)));
        assert_eq!("64KiB".parse(), Ok(Bytes::new(65_536)));
        assert_eq!("1_500B".parse(), Ok(Bytes::new(1_500)));
        assert_eq!("0.5us".parse(), Ok(Span::ns(500)));
        assert_eq!("2.4GHz".parse(), Ok(Frequency::mhz(2_400)));
    }

    #[test]
    fn refuses_what_is_not_a_quantity() {
        for text in [
            "",
            "10",
            "Gbps",
            "0Gbps",
            "1..5Gbps",
            "-1Mbps",
            "1.2.3Mbps",
            "0.1bps",
            "99999999999Gbps",
            "10gbps",
        ] {
            assert!(text.parse::<BitRate>().is_err(), "{text} was taken");
        }
        assert!("0.3ns".parse::<Span>().is_err());
    }

    #[test]
    fn prints_with_at_most_three_decimals() {
        assert_eq!(BitRate::mbps(5_500).to_string(), "5.5Gbps");
        assert_eq!(Span::ns(1_234_567).to_string(), "1.235ms");
        assert_eq!(Bytes::new(1_500).to_string(), "1.5kB");
        assert_eq!(format!("{:>8}", Bytes::new(64)), "     64B");
    }

    proptest::proptest! {
        /// A rate printed with all its digits is read back as itself.
        #[test]
        fn bits_per_second_round_trip(n in 1_u64..) {
            let rate = BitRate::new(n).expect("above zero");
            proptest::prop_assert_eq!(format!("{n}bps").parse(), Ok(rate));
        }

        /// No text makes the parser panic.
        #[test]
        fn any_text_is_answered(text in ".*") {
            let _ = (text.parse::<BitRate>(), text.parse::<Span>(), text.parse::<Bytes>());
        }
    }
}
