//! A cron expression, over the fields of civil time: which dates and times of day it
//! names, whatever the zone.
//!
//! croner parses the fields and finds the next time that they name. It brings no clock and
//! no zone here: [`Civil`] is all that it sees of time. What is refused is said field by
//! field, by this file.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use croner::parser::{CronParser, Seconds, Year};
use croner::{
    CivilDate, CivilDateTime, CivilTime, Cron, CronDateTime, Resolution, Weekday, errors::CronError,
};
use jiff::SignedDuration;
use jiff::civil::DateTime;

/// A field of an expression: what it is called, and what it may hold.
struct Field {
    name: &'static str,
    values: &'static str,
    /// Names that stand for numbers.
    names: &'static [&'static str],
    /// Letters and signs beside digits and `* / , -`.
    signs: &'static str,
}

const MONTHS: &[&str] =
    &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

const FIELDS: [Field; 6] = [
    Field { name: "second", values: "0 to 59", names: &[], signs: "" },
    Field { name: "minute", values: "0 to 59", names: &[], signs: "" },
    Field { name: "hour", values: "0 to 23", names: &[], signs: "" },
    Field {
        name: "day of the month",
        values: "1 to 31, `L` for the last or `15W` for the working day next to it",
        names: &[],
        signs: "lw",
    },
    Field { name: "month", values: "1 to 12 or jan to dec", names: MONTHS, signs: "" },
    Field {
        name: "day of the week",
        values: "0 to 7 or sun to sat (0 and 7 are Sunday), `fri#2` for the second or `friL` for \
                 the last of a month",
        names: DAYS,
        signs: "l#",
    },
];

/// Where the field of the hour is.
const HOUR: usize = 2;

/// Where the field of the day of the week is.
const DAY_OF_WEEK: usize = 5;

/// Why a text is no cron expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidCron(String);

/// A cron expression: five fields, or six with the seconds first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CronExpression {
    /// As it was written, in lower case and with single spaces.
    text: String,
    cron: Cron,
    is_elapsed: bool,
}

impl CronExpression {
    /// Whether it goes on through a change of the clock as time elapses: its hours begin
    /// with `*`. Any other names hours of the day.
    pub(crate) fn is_elapsed(&self) -> bool {
        self.is_elapsed
    }

    /// The first time at or after this one that it names; `None` if there is none before
    /// the calendar ends.
    pub(crate) fn first_from(&self, from: DateTime) -> Option<DateTime> {
        self.cron.find_next_occurrence(&Civil(from), true).ok().map(|Civil(found)| found)
    }
}

impl fmt::Display for CronExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for CronExpression {
    type Err = InvalidCron;

    fn from_str(text: &str) -> Result<Self, InvalidCron> {
        let text = text.to_ascii_lowercase();
        let given: Vec<&str> = text.split_ascii_whitespace().collect();
        let text = given.join(" ");
        let fields = match *given {
            [nickname] if nickname.starts_with('@') => stands_for(nickname)?.split(' ').collect(),
            _ => given,
        };
        let mut fields = match fields.len() {
            5 => [&["0"][..], &fields].concat(),
            6 => fields,
            count => return Err(wrong_count(count)),
        };
        for (field, given) in FIELDS.iter().zip(&fields) {
            check(field, given)?;
        }
        // The usual one of the two signs for "any": croner takes `*` for a day that says
        // nothing beside the other.
        for field in &mut fields[HOUR + 1..] {
            if *field == "?" {
                *field = "*";
            }
        }
        let cron = parse(&fields).map_err(|why| InvalidCron(why.to_string()))?;
        let expression = Self { is_elapsed: fields[HOUR].starts_with('*'), text, cron };
        // A leap year is at most eight years away; no other date is further than one.
        if expression.first_from(DateTime::constant(2000, 1, 1, 0, 0, 0, 0)).is_none() {
            return Err(InvalidCron(
                "no date is ever like that: write a day that its month has".to_owned(),
            ));
        }
        Ok(expression)
    }
}

fn wrong_count(count: usize) -> InvalidCron {
    let has = match count {
        0 => "it is empty".to_owned(),
        1 => "it has one field".to_owned(),
        _ => format!("it has {count} fields"),
    };
    InvalidCron(format!(
        "{has}: write five, `minute hour day-of-month month day-of-week`, such as \
         `0 9 * * mon-fri`, or six with the second first"
    ))
}

/// What a nickname stands for.
fn stands_for(nickname: &str) -> Result<&'static str, InvalidCron> {
    match nickname {
        "@yearly" | "@annually" => Ok("0 0 1 1 *"),
        "@monthly" => Ok("0 0 1 * *"),
        "@weekly" => Ok("0 0 * * 0"),
        "@daily" | "@midnight" => Ok("0 0 * * *"),
        "@hourly" => Ok("0 * * * *"),
        _ => Err(InvalidCron(
            "there is no such nickname: write `@hourly`, `@daily`, `@weekly`, `@monthly` or \
             `@yearly`, or five fields"
                .to_owned(),
        )),
    }
}

/// Refuses a field by itself, so that what is said names it.
fn check(field: &Field, given: &str) -> Result<(), InvalidCron> {
    let refused = || {
        let Field { name, values, .. } = field;
        InvalidCron(format!(
            "the {name} is `{given}`: write {values}, `*`, a range (`1-5`), a list (`1,5`) or a \
             step (`*/5`)"
        ))
    };
    let is_day = field.signs.contains('l');
    if given == "*" || given == "?" && is_day {
        return Ok(());
    }
    if given.split(',').any(str::is_empty) {
        return Err(refused());
    }
    let numbers = with_numbers(field, given);
    let allowed = |c: char| c.is_ascii_digit() || "*/,-".contains(c) || field.signs.contains(c);
    if !numbers.chars().all(allowed) {
        return Err(refused());
    }
    let mut alone = ["*"; 6];
    let place = FIELDS.iter().position(|other| other.name == field.name).unwrap_or(0);
    alone[place] = given;
    parse(&alone).map(drop).map_err(|_| refused())
}

/// A field with its names as numbers.
fn with_numbers(field: &Field, given: &str) -> String {
    // Whole names alone: what is left of `monday` is letters.
    let mut numbers = given.to_owned();
    for name in field.names {
        numbers = numbers.replace(name, "1");
    }
    numbers
}

fn parse(fields: &[&str]) -> Result<Cron, CronError> {
    debug_assert_eq!(fields.len(), DAY_OF_WEEK + 1);
    CronParser::builder()
        .seconds(Seconds::Required)
        .year(Year::Disallowed)
        .build()
        .parse(&fields.join(" "))
}

/// Civil time as croner is given it: without a zone, so that each time is there once.
#[derive(Debug, Clone, Copy)]
struct Civil(DateTime);

impl CronDateTime for Civil {
    fn to_civil(&self) -> CivilDateTime {
        let Self(time) = self;
        // jiff has checked the parts, none of which is negative.
        let part = |part: i8| u32::from(part.unsigned_abs());
        CivilDateTime::new(
            CivilDate::from_parts_unchecked(
                i32::from(time.year()),
                part(time.month()),
                part(time.day()),
            ),
            CivilTime::from_parts_unchecked(
                part(time.hour()),
                part(time.minute()),
                part(time.second()),
            ),
        )
    }

    fn civil_weekday(&self) -> Weekday {
        let days = self.0.weekday().to_sunday_zero_offset();
        Weekday::from_days_from_sunday(u32::from(days.unsigned_abs()))
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        let part = |part: u32| i8::try_from(part).map_err(|_| CronError::InvalidTime);
        let time = DateTime::new(
            i16::try_from(civil.year()).map_err(|_| CronError::InvalidDate)?,
            part(civil.month())?,
            part(civil.day())?,
            part(civil.hour())?,
            part(civil.minute())?,
            part(civil.second())?,
            0,
        );
        time.map(|time| Resolution::Single(Self(time))).map_err(|_| CronError::InvalidDate)
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        self.0.checked_add(SignedDuration::from_secs(seconds)).ok().map(Self)
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;

    fn expression(text: &str) -> CronExpression {
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    /// The first times from the first day of 2024, a leap year that began on a Monday.
    fn first(text: &str, count: usize) -> Vec<String> {
        let expression = expression(text);
        let mut from = date(2024, 1, 1).at(0, 0, 0, 0);
        let mut times = Vec::new();
        while times.len() < count {
            let time = expression.first_from(from).unwrap();
            times.push(time.strftime("%m-%d %H:%M:%S").to_string());
            from = time.checked_add(SignedDuration::from_secs(1)).unwrap();
        }
        times
    }

    #[test]
    fn an_expression_names_the_times_that_cron_does() {
        for (text, expected) in [
            ("0 9 * * mon-fri", &["01-01 09:00:00", "01-02 09:00:00"][..]),
            ("0 9 * * 1-5", &["01-01 09:00:00", "01-02 09:00:00"]),
            ("*/20 * * * *", &["01-01 00:00:00", "01-01 00:20:00", "01-01 00:40:00"]),
            ("10-59/20 * * * *", &["01-01 00:10:00", "01-01 00:30:00", "01-01 00:50:00"]),
            ("0 0 * * 7", &["01-07 00:00:00", "01-14 00:00:00"]),
            ("0 0 * * sun,TUE", &["01-02 00:00:00", "01-07 00:00:00"]),
            ("0 0 L * *", &["01-31 00:00:00", "02-29 00:00:00", "03-31 00:00:00"]),
            ("0 0 31 * *", &["01-31 00:00:00", "03-31 00:00:00"]),
            ("0 0 29 2 *", &["02-29 00:00:00"]),
            ("0 0 15W 6 *", &["06-14 00:00:00"]),
            ("0 0 * * fri#2", &["01-12 00:00:00", "02-09 00:00:00"]),
            ("0 0 * * friL", &["01-26 00:00:00", "02-23 00:00:00"]),
            ("0 12 1 Jan-Mar ?", &["01-01 12:00:00", "02-01 12:00:00", "03-01 12:00:00"]),
            // Both days are restricted: either is enough, as POSIX has it.
            ("0 0 13 * fri", &["01-05 00:00:00", "01-12 00:00:00", "01-13 00:00:00"]),
            ("*/30 * * * * *", &["01-01 00:00:00", "01-01 00:00:30", "01-01 00:01:00"]),
            ("  0\t9  * * *", &["01-01 09:00:00"]),
            ("@hourly", &["01-01 00:00:00", "01-01 01:00:00"]),
            ("@Daily", &["01-01 00:00:00", "01-02 00:00:00"]),
            ("@weekly", &["01-07 00:00:00"]),
            ("@monthly", &["01-01 00:00:00", "02-01 00:00:00"]),
            ("@yearly", &["01-01 00:00:00", "01-01 00:00:00"]),
        ] {
            assert_eq!(first(text, expected.len()), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused_with_the_field_that_is_wrong() {
        for (text, expected) in [
            ("", "it is empty"),
            ("0 9 * *", "it has 4 fields: write five"),
            ("0 0 9 * * mon 2026", "it has 7 fields"),
            ("hourly", "it has one field"),
            ("@reboot", "there is no such nickname"),
            ("@every 5m", "it has 2 fields"),
            ("60 * * * *", "the minute is `60`: write 0 to 59"),
            ("0 24 * * *", "the hour is `24`: write 0 to 23"),
            ("0 0 0 * *", "the day of the month is `0`"),
            ("0 0 32 * *", "the day of the month is `32`"),
            ("0 0 * 13 *", "the month is `13`: write 1 to 12 or jan to dec"),
            ("0 0 * * 8", "the day of the week is `8`"),
            ("0 0 * * monday", "the day of the week is `monday`"),
            ("0 0 * mon *", "the month is `mon`"),
            ("0 0 jan * *", "the day of the month is `jan`"),
            ("0 9-5 * * *", "the hour is `9-5`"),
            ("*/0 * * * *", "the minute is `*/0`"),
            ("5/10 * * * *", "the minute is `5/10`"),
            ("1,,2 * * * *", "the minute is `1,,2`"),
            ("? * * * *", "the minute is `?`"),
            ("L * * * *", "the minute is `l`"),
            ("0 0 * * +mon", "the day of the week is `+mon`"),
            ("-1 * * * *", "the minute is `-1`"),
            ("1.5 * * * *", "the minute is `1.5`"),
            ("٣ * * * *", "the minute is `٣`"),
            ("61 * * * * *", "the second is `61`"),
            ("0 0 30 2 *", "no date is ever like that"),
            ("0 0 31 4,6,9,11 *", "no date is ever like that"),
        ] {
            let why = text.parse::<CronExpression>().map(|found| found.to_string());
            let why = why.expect_err(text).to_string();
            assert!(why.starts_with(expected), "{text}: {why}");
        }
    }

    #[test]
    fn an_expression_is_shown_as_it_was_written() {
        assert_eq!(expression("  0  9 * * MON-Fri").to_string(), "0 9 * * mon-fri");
        assert_eq!(expression("@Daily").to_string(), "@daily");
    }
}
