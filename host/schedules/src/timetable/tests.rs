//! Ticks around changes of clocks and calendars, in zones that differ in them.

use std::collections::BTreeSet;

use jiff::civil::date;
use jiff::tz::AmbiguousOffset;
use proptest::prelude::*;

use super::*;

fn timetable(cron: &str, zone: &str) -> Timetable {
    Timetable::new(cron, zone).unwrap_or_else(|why| panic!("{cron} {zone}: {why}"))
}

fn instant(text: &str) -> Timestamp {
    format!("{text}Z").parse().unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// The first ticks after an instant, in UTC and to the minute.
fn ticks(cron: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let timetable = timetable(cron, zone);
    let mut after = instant(after);
    let ticks = std::iter::from_fn(|| {
        after = timetable.next_after(after)?;
        Some(after.strftime("%Y-%m-%dT%H:%M").to_string())
    });
    ticks.take(count).collect()
}

/// A zone, an expression, after when, and the ticks that follow.
type Case = (&'static str, &'static str, &'static str, &'static [&'static str]);

fn hold(cases: &[Case]) {
    for (zone, cron, after, expected) in cases {
        assert_eq!(ticks(cron, zone, after, expected.len()), *expected, "{cron} {zone}");
    }
}

#[test]
fn times_that_a_clock_skips_tick_once_when_it_has_skipped_them() {
    hold(&[
        // 02:00 to 03:00, at 01:00 UTC.
        (
            "Europe/Berlin",
            "30 2 * * *",
            "2026-03-28T12:00",
            &["2026-03-29T01:00", "2026-03-30T00:30"],
        ),
        (
            "Europe/Berlin",
            "0 3 * * *",
            "2026-03-28T12:00",
            &["2026-03-29T01:00", "2026-03-30T01:00"],
        ),
        (
            "Europe/Berlin",
            "0 2,3 * * *",
            "2026-03-28T12:00",
            &["2026-03-29T01:00", "2026-03-30T00:00"],
        ),
        (
            "Europe/Berlin",
            "*/20 2 * * *",
            "2026-03-28T12:00",
            &["2026-03-29T01:00", "2026-03-30T00:00"],
        ),
        (
            "Europe/Berlin",
            "30 2 29 3 *",
            "2026-01-01T00:00",
            &["2026-03-29T01:00", "2027-03-29T00:30"],
        ),
        // Not on another day of the week, which has no tick.
        ("Europe/Berlin", "30 2 * * mon", "2026-03-28T12:00", &["2026-03-30T00:30"]),
        // 01:00 to 02:00, at 01:00 UTC.
        (
            "Europe/Dublin",
            "30 1 * * *",
            "2026-03-28T12:00",
            &["2026-03-29T01:00", "2026-03-30T00:30"],
        ),
        (
            "America/New_York",
            "30 2 * * *",
            "2026-03-07T12:00",
            &["2026-03-08T07:00", "2026-03-09T06:30"],
        ),
        (
            "America/St_Johns",
            "30 2 * * *",
            "2026-03-07T12:00",
            &["2026-03-08T05:30", "2026-03-09T05:00"],
        ),
        // 02:00 to 02:30, at 15:30 UTC.
        (
            "Australia/Lord_Howe",
            "15 2 * * *",
            "2026-10-03T00:00",
            &["2026-10-03T15:30", "2026-10-04T15:15"],
        ),
        (
            "Australia/Lord_Howe",
            "30 2 * * *",
            "2026-10-03T00:00",
            &["2026-10-03T15:30", "2026-10-04T15:30"],
        ),
        // By two hours, from 01:00 to 03:00.
        (
            "Antarctica/Troll",
            "30 1-2 * * *",
            "2026-03-28T12:00",
            &["2026-03-29T01:00", "2026-03-29T23:30"],
        ),
        // At midnight.
        (
            "America/Sao_Paulo",
            "0 0 * * *",
            "2018-11-03T12:00",
            &["2018-11-04T03:00", "2018-11-05T02:00"],
        ),
        // All of 30 December.
        (
            "Pacific/Apia",
            "0 9 * * *",
            "2011-12-29T18:00",
            &["2011-12-29T19:00", "2011-12-30T10:00", "2011-12-30T19:00"],
        ),
        (
            "Pacific/Apia",
            "0 0 30 12 *",
            "2011-06-01T00:00",
            &["2011-12-30T10:00", "2012-12-29T10:00"],
        ),
    ]);
}

#[test]
fn times_that_a_clock_shows_twice_tick_the_first_time() {
    hold(&[
        // 03:00 to 02:00, at 01:00 UTC.
        (
            "Europe/Berlin",
            "30 2 * * *",
            "2026-10-24T12:00",
            &["2026-10-25T00:30", "2026-10-26T01:30"],
        ),
        (
            "Europe/Berlin",
            "0 3 * * *",
            "2026-10-24T12:00",
            &["2026-10-25T02:00", "2026-10-26T02:00"],
        ),
        (
            "Europe/Berlin",
            "0 2-4 * * *",
            "2026-10-24T12:00",
            &["2026-10-25T00:00", "2026-10-25T02:00", "2026-10-25T03:00"],
        ),
        // Between the two, and after both.
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T00:45", &["2026-10-26T01:30"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T01:15", &["2026-10-26T01:30"]),
        (
            "America/New_York",
            "30 1 * * *",
            "2026-10-31T12:00",
            &["2026-11-01T05:30", "2026-11-02T06:30"],
        ),
        (
            "America/St_Johns",
            "15 1 * * *",
            "2026-10-31T12:00",
            &["2026-11-01T03:45", "2026-11-02T04:45"],
        ),
        // At 00:01, back into the day before.
        (
            "America/St_Johns",
            "0 0 * * *",
            "2006-10-28T12:00",
            &["2006-10-29T02:30", "2006-10-30T03:30"],
        ),
        (
            "America/St_Johns",
            "30 23 * * *",
            "2006-10-28T12:00",
            &["2006-10-29T02:00", "2006-10-30T03:00"],
        ),
        // 02:00 to 01:30, at 15:00 UTC.
        (
            "Australia/Lord_Howe",
            "45 1 * * *",
            "2026-04-04T00:00",
            &["2026-04-04T14:45", "2026-04-05T15:15"],
        ),
        (
            "Antarctica/Troll",
            "30 1 * * *",
            "2026-10-24T12:00",
            &["2026-10-24T23:30", "2026-10-26T01:30"],
        ),
    ]);
}

#[test]
fn an_expression_for_every_hour_goes_on_as_time_elapses() {
    hold(&[
        (
            "Europe/Berlin",
            "*/30 * * * *",
            "2026-03-29T00:10",
            &["2026-03-29T00:30", "2026-03-29T01:00", "2026-03-29T01:30"],
        ),
        (
            "Europe/Berlin",
            "*/30 * * * *",
            "2026-10-24T23:59",
            &[
                "2026-10-25T00:00",
                "2026-10-25T00:30",
                "2026-10-25T01:00",
                "2026-10-25T01:30",
                "2026-10-25T02:00",
            ],
        ),
        (
            "America/New_York",
            "0 * * * *",
            "2026-11-01T04:00",
            &["2026-11-01T05:00", "2026-11-01T06:00", "2026-11-01T07:00"],
        ),
        (
            "Australia/Lord_Howe",
            "*/15 * * * *",
            "2026-04-04T14:30",
            &["2026-04-04T14:45", "2026-04-04T15:00", "2026-04-04T15:15", "2026-04-04T15:30"],
        ),
        (
            "Australia/Lord_Howe",
            "0 * * * *",
            "2026-10-03T14:30",
            &["2026-10-03T16:00", "2026-10-03T17:00"],
        ),
        (
            "Pacific/Apia",
            "0 * * * *",
            "2011-12-30T08:30",
            &["2011-12-30T09:00", "2011-12-30T10:00", "2011-12-30T11:00"],
        ),
        (
            "Europe/Berlin",
            "0 */2 * * *",
            "2026-03-28T23:30",
            &["2026-03-29T02:00", "2026-03-29T04:00"],
        ),
    ]);
}

#[test]
fn the_calendar_is_the_zones() {
    hold(&[
        ("UTC", "0 0 29 2 *", "2026-01-01T00:00", &["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("UTC", "0 0 29 2 *", "2096-03-01T00:00", &["2104-02-29T00:00"]),
        ("UTC", "59 23 L * *", "2028-02-01T00:00", &["2028-02-29T23:59", "2028-03-31T23:59"]),
        ("Pacific/Kiritimati", "0 0 1 1 *", "2026-06-01T00:00", &["2026-12-31T10:00"]),
        (
            "America/Los_Angeles",
            "0 9 * * mon-fri",
            "2026-07-03T17:00",
            &["2026-07-06T16:00", "2026-07-07T16:00"],
        ),
        (
            "Asia/Kathmandu",
            "0 0 * * *",
            "2026-01-01T00:00",
            &["2026-01-01T18:15", "2026-01-02T18:15"],
        ),
        ("Europe/Berlin", "0 9 * * mon-fri", "2026-03-27T12:00", &["2026-03-30T07:00"]),
    ]);
}

#[test]
fn the_next_tick_is_after_the_instant_and_a_whole_second() {
    let timetable = timetable("* * * * * *", "Europe/Berlin");
    for (after, next) in [
        ("2026-01-01T10:00:00", "2026-01-01T10:00:01"),
        ("2026-01-01T10:00:00.000001", "2026-01-01T10:00:01"),
        ("2026-01-01T10:00:00.999999999", "2026-01-01T10:00:01"),
        ("1969-12-31T23:59:59.5", "1970-01-01T00:00:00"),
        ("1969-12-31T23:59:58.5", "1969-12-31T23:59:59"),
    ] {
        assert_eq!(timetable.next_after(instant(after)), Some(instant(next)), "{after}");
    }
    assert_eq!(timetable.next_after(Timestamp::MAX), None);
    // A second before a change and at it.
    let daily = Timetable::new("30 2 * * *", "Europe/Berlin").unwrap();
    for after in ["2026-03-29T00:59:59", "2026-03-29T00:59:59.9"] {
        assert_eq!(daily.next_after(instant(after)), Some(instant("2026-03-29T01:00:00")));
    }
    let at_it = daily.next_after(instant("2026-03-29T01:00:00"));
    assert_eq!(at_it, Some(instant("2026-03-30T00:30:00")));
}

#[test]
fn a_zone_is_one_of_the_iana_database() {
    for zone in ["Europe/Berln", "", "Mars/Olympus", "Etc/Unknown", "+02:00", "../etc/passwd"] {
        assert_eq!(Timetable::new("0 9 * * *", zone), Err(InvalidTimetable::Zone), "{zone}");
    }
    for zone in ["UTC", "Etc/GMT+5", "Asia/Calcutta"] {
        assert_eq!(timetable("0 9 * * *", zone).zone(), zone);
    }
}

/// What ticks by each civil minute of some days, one after the other: slow, and by other
/// means than the timetable.
fn by_civil_minutes(
    zone: &TimeZone,
    is_elapsed: bool,
    hours: &[i8],
    minutes: &[i8],
    first: jiff::civil::Date,
    days: i32,
) -> BTreeSet<Timestamp> {
    let mut ticks = BTreeSet::new();
    for day in 0..days {
        let day = first.checked_add(jiff::Span::new().days(day)).unwrap();
        for (hour, minute) in hours.iter().flat_map(|h| minutes.iter().map(move |m| (*h, *m))) {
            let civil = day.at(hour, minute, 0, 0);
            let ambiguous = zone.to_ambiguous_timestamp(civil);
            match ambiguous.offset() {
                AmbiguousOffset::Unambiguous { .. } => {
                    ticks.insert(ambiguous.unambiguous().unwrap());
                }
                AmbiguousOffset::Fold { before, after } => {
                    ticks.insert(before.to_timestamp(civil).unwrap());
                    if is_elapsed {
                        ticks.insert(after.to_timestamp(civil).unwrap());
                    }
                }
                AmbiguousOffset::Gap { after, .. } => {
                    if !is_elapsed {
                        // With the offset of after it, it is before the gap.
                        let before = after.to_timestamp(civil).unwrap();
                        let change = zone.following(before).next().unwrap();
                        ticks.insert(change.timestamp());
                    }
                }
            }
        }
    }
    ticks
}

proptest! {
    #[test]
    fn each_civil_time_ticks_as_often_as_it_is_there(
        zone in prop::sample::select(vec![
            "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/St_Johns",
            "Pacific/Apia", "Africa/Casablanca", "Antarctica/Troll", "America/Sao_Paulo", "UTC",
        ]),
        year in prop::sample::select(vec![2006_i16, 2011, 2018, 2026, 2040]),
        day in 1_i16..=365,
        hours in prop::collection::btree_set(0_i8..24, 1..5),
        minutes in prop::collection::btree_set(0_i8..60, 1..4),
        is_elapsed: bool,
    ) {
        const DAYS: i32 = 40;
        let (hours, minutes): (Vec<i8>, Vec<i8>) =
            (hours.into_iter().collect(), minutes.into_iter().collect());
        let joined = |numbers: &[i8]| {
            numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        let every_hour: Vec<i8> = (0..24).collect();
        let (hours, text) =
            if is_elapsed { (every_hour, "*".to_owned()) } else { (hours.clone(), joined(&hours)) };
        let timetable = timetable(&format!("{} {text} * * *", joined(&minutes)), zone);
        let zone = TimeZone::get(zone).unwrap();
        let first = date(year, 1, 1).checked_add(jiff::Span::new().days(i32::from(day))).unwrap();
        let expected = by_civil_minutes(&zone, is_elapsed, &hours, &minutes, first, DAYS);
        // Its first and last days may have ticks of other days beside them.
        let begin = *expected.first().unwrap() + SignedDuration::from_hours(48);
        let end = *expected.last().unwrap() - SignedDuration::from_hours(48);
        let expected: Vec<_> =
            expected.into_iter().filter(|tick| *tick > begin && *tick < end).collect();
        let mut found = Vec::new();
        let mut after = begin;
        while let Some(tick) = timetable.next_after(after).filter(|tick| *tick < end) {
            prop_assert!(tick > after);
            found.push(tick);
            after = tick;
        }
        prop_assert_eq!(found, expected);
    }
}
