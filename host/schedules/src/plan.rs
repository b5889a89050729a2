//! Which ticks of a schedule are to be published now, and what becomes of those that were
//! missed.

use jiff::{SignedDuration, Timestamp};

use crate::timetable::Timetable;

/// A tick was missed if no host has published it for this long: 1 minute. A host that is
/// started again, or waits for its database, is back by then.
pub const MISSED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// How far back what was missed is made up for: 1 day.
pub const REACH: SignedDuration = SignedDuration::from_hours(24);

/// How many ticks are published in one transaction.
const AT_ONCE: usize = 256;

/// What is to become of the ticks that were missed while no host ran the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Missed {
    /// Nothing: none of them is published.
    Skip,
    /// The last of them is published, for all.
    #[default]
    Once,
    /// Each of them is published, in order.
    All,
}

/// What is to be done for a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The ticks to publish, in order.
    pub ticks: Vec<Timestamp>,
    /// Each tick up to here is published or left out then.
    pub done_to: Timestamp,
    /// How many of the ticks to publish were missed.
    pub made_up: usize,
    /// Whether ticks were missed that are never published.
    pub leaves_out: bool,
}

/// What is to be done now for a schedule of which each tick up to `done_to` is done;
/// `None` for nothing. There may be more to do afterwards.
#[must_use]
pub fn plan(
    timetable: &Timetable,
    done_to: Timestamp,
    now: Timestamp,
    missed: Missed,
) -> Option<Plan> {
    let due = |after: Timestamp, up_to: Timestamp| {
        let mut after = after;
        std::iter::from_fn(move || {
            after = timetable.next_after(after).filter(|tick| *tick <= up_to)?;
            Some(after)
        })
    };
    due(done_to, now).next()?;
    // Up to here a tick is missed. Of a whole second, as stores keep no more of it than
    // microseconds.
    let edge = earlier(now, MISSED_AFTER);
    let edge = Timestamp::from_second(edge.as_second()).unwrap_or(edge).max(done_to);
    let reach = earlier(now, REACH).max(done_to).min(edge);
    let made_up: Vec<Timestamp> = match missed {
        Missed::Skip => Vec::new(),
        Missed::Once => last(reach, edge, &due).into_iter().collect(),
        Missed::All => due(reach, edge).take(AT_ONCE).collect(),
    };
    let leaves_out = match missed {
        Missed::All => due(done_to, reach).next().is_some(),
        Missed::Skip | Missed::Once => {
            due(done_to, edge).next().is_some_and(|tick| Some(&tick) != made_up.first())
        }
    };
    let mut ticks = made_up.clone();
    let on_time = AT_ONCE - ticks.len();
    ticks.extend(due(edge, now).take(on_time));
    let done_to = ticks.last().copied().unwrap_or(edge);
    Some(Plan { ticks, done_to, made_up: made_up.len(), leaves_out })
}

/// The last tick after one instant and up to another. It is looked for near the end first:
/// a schedule may tick each second, and a day is long.
fn last<I: Iterator<Item = Timestamp>>(
    after: Timestamp,
    up_to: Timestamp,
    due: &impl Fn(Timestamp, Timestamp) -> I,
) -> Option<Timestamp> {
    [SignedDuration::from_mins(1), SignedDuration::from_hours(1), REACH]
        .into_iter()
        .find_map(|span| due(earlier(up_to, span).max(after), up_to).last())
}

fn earlier(instant: Timestamp, by: SignedDuration) -> Timestamp {
    instant.saturating_sub(by).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> Timestamp {
        format!("2026-{text}Z").parse().unwrap()
    }

    fn timetable(cron: &str) -> Timetable {
        Timetable::new(cron, "UTC").unwrap()
    }

    fn planned(cron: &str, done_to: &str, now: &str, missed: Missed) -> Option<Plan> {
        plan(&timetable(cron), at(done_to), at(now), missed)
    }

    fn shown(plan: &Plan) -> Vec<String> {
        plan.ticks.iter().map(|tick| tick.strftime("%m-%dT%H:%M:%S").to_string()).collect()
    }

    #[test]
    fn a_tick_that_is_a_little_late_is_not_missed() {
        for missed in [Missed::Skip, Missed::Once, Missed::All] {
            let nothing = planned("0 9 * * *", "03-01T09:00:00", "03-02T08:59:59.999", missed);
            assert_eq!(nothing, None);
            for now in ["03-02T09:00:00", "03-02T09:00:00.4", "03-02T09:00:59.9"] {
                let plan = planned("0 9 * * *", "03-01T09:00:00", now, missed).unwrap();
                assert_eq!(shown(&plan), ["03-02T09:00:00"], "{missed:?} {now}");
                assert_eq!((plan.made_up, plan.leaves_out), (0, false));
                assert_eq!(plan.done_to, at("03-02T09:00:00"));
            }
        }
    }

    #[test]
    fn what_was_missed_is_left_out_or_made_up_for_once_or_each_time() {
        let (done_to, now) = ("03-02T06:00:00", "03-02T09:30:00");
        let hourly = |missed| planned("0 * * * *", done_to, now, missed).unwrap();
        let skipped = hourly(Missed::Skip);
        assert_eq!(shown(&skipped), [""; 0]);
        assert_eq!((skipped.done_to, skipped.leaves_out), (at("03-02T09:29:00"), true));
        let once = hourly(Missed::Once);
        assert_eq!(shown(&once), ["03-02T09:00:00"]);
        assert_eq!((once.made_up, once.leaves_out), (1, true));
        let all = hourly(Missed::All);
        assert_eq!(shown(&all), ["03-02T07:00:00", "03-02T08:00:00", "03-02T09:00:00"]);
        assert_eq!((all.made_up, all.leaves_out), (3, false));
        // The only one that was missed is made up for, and nothing is left out.
        let only = planned("0 9 * * *", done_to, now, Missed::Once).unwrap();
        assert_eq!((shown(&only), only.leaves_out), (vec!["03-02T09:00:00".to_owned()], false));
        // What is due now comes besides.
        let both = planned("* * * * *", done_to, "03-02T09:30:20", Missed::Once).unwrap();
        assert_eq!(shown(&both), ["03-02T09:29:00", "03-02T09:30:00"]);
        let due = planned("* * * * *", done_to, "03-02T09:30:20", Missed::Skip).unwrap();
        assert_eq!(shown(&due), ["03-02T09:30:00"]);
        assert!(due.leaves_out);
    }

    #[test]
    fn what_was_missed_is_made_up_for_at_most_a_day_back() {
        let (done_to, now) = ("02-01T00:00:00", "03-02T09:30:00");
        let all = planned("0 * * * *", done_to, now, Missed::All).unwrap();
        assert_eq!(all.ticks.len(), 24);
        assert_eq!(all.ticks.first(), Some(&at("03-01T10:00:00")));
        assert!(all.leaves_out);
        assert_eq!(planned("0 9 1 * *", done_to, now, Missed::Once).unwrap().ticks, []);
        let yesterday = planned("0 10 1 * *", done_to, now, Missed::Once).unwrap();
        assert_eq!(shown(&yesterday), ["03-01T10:00:00"]);
    }

    #[test]
    fn a_long_row_is_published_in_parts_and_none_is_left_out() {
        let timetable = timetable("* * * * * *");
        let (mut done_to, now) = (at("03-01T00:00:00"), at("03-02T09:30:00"));
        let mut ticks: Vec<Timestamp> = Vec::new();
        while let Some(plan) = plan(&timetable, done_to, now, Missed::All) {
            assert!(plan.ticks.len() <= AT_ONCE && plan.done_to > done_to);
            done_to = plan.done_to;
            ticks.extend(plan.ticks);
        }
        assert_eq!(ticks.len(), 86_400);
        assert!(ticks.windows(2).all(|two| two[1] - two[0] == SignedDuration::from_secs(1)));
        assert_eq!(ticks.last(), Some(&now));
    }

    proptest! {
        #[test]
        fn whatever_a_host_sees_when_each_tick_is_done_once(
            cron in prop::sample::select(vec!["* * * * *", "*/7 * * * *", "0 3 * * *", "*/40 * * * * *"]),
            looks in prop::collection::vec((-90_i64..20_000, 0_u8..3), 1..12),
        ) {
            let timetable = timetable(cron);
            let mut done_to = at("03-01T00:00:00");
            let (mut now, mut published) = (done_to, Vec::new());
            for (step, missed) in looks {
                // A clock may also go back.
                now = now.saturating_add(SignedDuration::from_secs(step)).unwrap();
                let missed = [Missed::Skip, Missed::Once, Missed::All][usize::from(missed)];
                while let Some(plan) = plan(&timetable, done_to, now, missed) {
                    prop_assert!(plan.done_to > done_to && plan.done_to <= now);
                    for tick in &plan.ticks {
                        prop_assert!(*tick > done_to && *tick <= plan.done_to);
                    }
                    done_to = plan.done_to;
                    published.extend(plan.ticks);
                }
                // What is younger than a minute is never left out.
                let next = timetable.next_after(done_to).unwrap();
                prop_assert!(next > now);
            }
            let mut once = published.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(published, once);
        }
    }
}
