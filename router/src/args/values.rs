//! Parsers of values: from a flag's text to a number, a time or a name.
//!
//! Input: the text of a flag or of its variable. Output: the value, or the end of a sentence that begins with
//! the flag and its value. What must hold: a value that is refused comes with what to give instead.

use std::{
    num::{NonZeroU32, NonZeroU64},
    time::Duration,
};

use text_embeddings_backend::{BackendKind, is_built_in, not_built_in};
use text_embeddings_backend_core::{DType, Pool};
use text_embeddings_core::families;

use super::ChatTemplateSource;

/// A whole number from 1, for flags of the `NonZero` types.
pub(crate) fn at_least_one<T: TryFrom<NonZeroU64>>(text: &str) -> Result<T, String> {
    let number: u64 = text.trim().parse().map_err(|_| "must be a whole number from 1".to_owned())?;
    let number = NonZeroU64::new(number).ok_or("must be at least 1")?;
    T::try_from(number).map_err(|_| "is too large".to_owned())
}

/// A whole number from 0.
pub(crate) fn whole<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number: u64 = text.trim().parse().map_err(|_| "must be a whole number from 0".to_owned())?;
    T::try_from(number).map_err(|_| "is too large".to_owned())
}

/// True or false, for a flag whose value may be left out.
pub(super) fn optional_switch(text: &str) -> Result<bool, String> {
    match text.trim().to_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" => Ok(true),
        "false" | "f" | "no" | "n" | "off" | "0" => Ok(false),
        _ => {
            Err("must be true or false; before another word, write the flag as `--auto-truncate=true`"
                .to_owned())
        }
    }
}

/// A model's share of the device's time.
pub(super) fn device_weight(text: &str) -> Result<NonZeroU32, String> {
    let weight: Option<NonZeroU32> = text.trim().parse().ok();
    weight
        .filter(|weight| weight.get() <= 100)
        .ok_or_else(|| "must be a whole number from 1 to 100".to_owned())
}

/// A number that is neither NaN nor infinite.
pub(crate) fn finite_number(text: &str) -> Result<f32, String> {
    match text.trim().parse() {
        Ok(number) if f32::is_finite(number) => Ok(number),
        _ => Err("must be a finite number".to_owned()),
    }
}

/// The number of a port.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    text.trim().parse().map_err(|_| "must be a whole number from 0 to 65535".to_owned())
}

/// A time in seconds, above zero and less than a year.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds < 3.2e7);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| "must be a number of seconds above 0 and below a year, such as `2.5`".to_owned())
}

/// When a model of a models file is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadTime {
    AtStart,
    FirstRequest,
}

pub(super) fn load_time(text: &str) -> Result<LoadTime, String> {
    match text.trim().replace(' ', "-").as_str() {
        "at-start" => Ok(LoadTime::AtStart),
        "first-request" => Ok(LoadTime::FirstRequest),
        _ => Err("expected at-start or first-request".to_owned()),
    }
}

/// A time without requests: seconds, minutes or hours, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdleLimit(pub(crate) Option<Duration>);

pub(super) fn idle_limit(text: &str) -> Result<IdleLimit, String> {
    if text.trim() == "never" {
        return Ok(IdleLimit(None));
    }
    let (number, unit) = match text.trim().split_at_checked(text.trim().len().saturating_sub(1)) {
        Some((number, "s")) => (number, 1.0),
        Some((number, "m")) => (number, 60.0),
        Some((number, "h")) => (number, 3600.0),
        _ => (text, 1.0),
    };
    match seconds(number) {
        Ok(time) => Ok(IdleLimit(Some(time.mul_f64(unit)))),
        Err(_) => Err("must be a time above 0, such as `90s`, `15m` or `2h`, or `never`".to_owned()),
    }
}

pub(super) fn dtype(text: &str) -> Result<DType, String> {
    // Other tools use the short names.
    let name = match text {
        "fp32" => "float32",
        "fp16" => "float16",
        "bf16" => "bfloat16",
        name => name,
    };
    let found = DType::ALL.into_iter().find(|dtype| dtype.to_string() == name);
    found.ok_or_else(|| "expected float32, float16, bfloat16, int8 or int4".to_owned())
}

pub(super) fn backend(text: &str) -> Result<BackendKind, String> {
    let found = BackendKind::ALL.into_iter().find(|backend| backend.as_str() == text);
    let backend = found.ok_or("expected candle, ort or python")?;
    if is_built_in(backend) { Ok(backend) } else { Err(not_built_in(backend)) }
}

pub(super) fn pool(text: &str) -> Result<Pool, String> {
    let all = [Pool::Cls, Pool::Mean, Pool::Splade, Pool::LastToken];
    let found = all.into_iter().find(|pool| pool.to_string() == text);
    found.ok_or_else(|| "expected cls, mean, splade or last-token".to_owned())
}

#[expect(clippy::unnecessary_wraps, reason = "clap wants a parser that can fail")]
pub(super) fn chat_template(text: &str) -> Result<ChatTemplateSource, String> {
    Ok(families::by_name(text)
        .map_or_else(|_| ChatTemplateSource::File(text.into()), ChatTemplateSource::Builtin))
}

/// A flag's text. An empty variable means the same as none.
pub(crate) fn nonempty(text: Option<&String>) -> Option<&String> {
    text.filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::{NonZeroU32, NonZeroUsize};

    #[test]
    fn an_arithmetic_has_the_short_name_of_other_tools_too() {
        for (short, name) in [("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")] {
            assert_eq!(dtype(short), dtype(name));
            assert_eq!(dtype(name).map(|dtype| dtype.to_string()), Ok(name.to_owned()));
        }
        assert!(dtype("half").is_err());
    }

    #[test]
    fn a_time_has_a_unit_or_is_in_seconds() {
        for (text, expected) in
            [("90", Some(90)), ("90s", Some(90)), ("1.5m", Some(90)), (" 2h ", Some(7200)), ("never", None)]
        {
            assert_eq!(idle_limit(text), Ok(IdleLimit(expected.map(Duration::from_secs))), "{text}");
        }
        for text in ["", "0", "-1m", "m", "15 minutes", "1d", "1e99h", "nan", "é"] {
            let expected = "must be a time above 0, such as `90s`, `15m` or `2h`, or `never`";
            assert_eq!(idle_limit(text), Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_number_that_is_refused_comes_with_the_numbers_that_are_taken() {
        assert_eq!(at_least_one::<NonZeroUsize>(" 7 ").map(NonZeroUsize::get), Ok(7));
        for (text, expected) in [
            ("0", "must be at least 1"),
            ("", "must be a whole number from 1"),
            ("-1", "must be a whole number from 1"),
            ("1.5", "must be a whole number from 1"),
            ("1e3", "must be a whole number from 1"),
            ("4294967296", "is too large"),
        ] {
            assert_eq!(at_least_one::<NonZeroU32>(text), Err(expected.to_owned()), "{text}");
        }
        assert_eq!((whole("0"), whole::<u32>("x")), (Ok(0), Err("must be a whole number from 0".to_owned())));
        assert_eq!(whole::<u32>("4294967296"), Err("is too large".to_owned()));
        let message = "must be a whole number from 0 to 65535".to_owned();
        assert_eq!((port("80"), port("65536"), port("tcp")), (Ok(80), Err(message.clone()), Err(message)));
    }
}
