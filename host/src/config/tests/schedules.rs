//! `[schedules.NAME]`.

use super::*;
use event_host_schedules::{Missed, Payload, Timetable};

/// The only schedule of a file that has these lines in its table, from line 5 on.
fn schedule(lines: &str) -> Schedule {
    let config = config(&with(&format!("[schedules.report]\n{lines}")));
    let [schedule] = &config.schedules[..] else { panic!("{lines}: {config:?}") };
    schedule.clone()
}

#[test]
fn every_setting_of_a_schedule_is_read() {
    let full = schedule(
        r#"cron = "0 9 * * MON-fri"
timezone = "Europe/Berlin"
missed = "all"
type = "report.due"
source = "/reports/${REGION}"
subject = "daily"
partitionkey = "acme"
datacontenttype = "application/vnd.report+json"
data = { n = 1, half = 0.5, on = true, list = ["a", 2], at = 2026-01-31T12:00:00Z, region = "${REGION}" }
tenant = "acme""#,
    );
    let data =
        r#"{"at":"2026-01-31T12:00:00Z","half":0.5,"list":["a",2],"n":1,"on":true,"region":"eu"}"#;
    let expected = Schedule {
        name: "report".parse().unwrap(),
        tenant: "acme".parse().unwrap(),
        timetable: Timetable::new("0 9 * * mon-fri", "Europe/Berlin").unwrap(),
        missed: Missed::All,
        payload: Payload {
            event_type: "report.due".to_owned(),
            source: "/reports/eu".to_owned(),
            subject: Some("daily".to_owned()),
            partitionkey: Some("acme".to_owned()),
            datacontenttype: Some("application/vnd.report+json".to_owned()),
            data: Some(data.as_bytes().to_vec()),
        },
    };
    assert_eq!(full, expected);
}

#[test]
fn all_of_a_schedule_but_its_time_and_type_has_a_default() {
    let least = schedule("cron = \"@daily\"\ntype = \"t\"");
    assert_eq!(least.timetable, Timetable::new("@daily", "UTC").unwrap());
    assert_eq!((least.missed, &*least.payload.source), (Missed::Once, "/schedules/report"));
    assert_eq!((least.payload.data, least.payload.datacontenttype), (None, None));
    assert!(least.tenant.is_none());
    assert_eq!(config(&with("")).schedules, []);
}

#[test]
fn a_string_is_the_data_as_it_stands_and_all_else_is_json() {
    let read = |data: &str| {
        let Payload { data, datacontenttype, .. } =
            schedule(&format!("cron = \"@daily\"\ntype = \"t\"\n{data}")).payload;
        (String::from_utf8(data.unwrap()).unwrap(), datacontenttype.unwrap())
    };
    let is = |text: &str, media_type: &str| (text.to_owned(), media_type.to_owned());
    assert_eq!(read("data = \"daily\""), is("daily", "text/plain"));
    assert_eq!(read("data = \"\""), is("", "text/plain"));
    assert_eq!(read("data = 7"), is("7", "application/json"));
    assert_eq!(read("data = [1, { a = \"b\" }]"), is("[1,{\"a\":\"b\"}]", "application/json"));
    let json = "datacontenttype = \"application/json\"\ndata = '{\"a\":  1}'";
    assert_eq!(read(json), is("{\"a\":  1}", "application/json"));
}

#[test]
fn each_mistake_in_a_schedule_is_named_with_its_place_and_what_would_be_right() {
    const DAILY: &str = "cron = \"@daily\"\ntype = \"t\"";
    for (lines, expected) in [
        (
            "type = \"t\"",
            "4:12: `cron` is missing: say when the schedule ticks, such as `cron = \"0 9 * * mon-fri\"`",
        ),
        (
            "cron = \"@daily\"",
            "4:12: `type` is missing: name the type of its events, such as `type = \"report.due\"`",
        ),
        (
            "cron = \"0 9 * *\"\ntype = \"t\"",
            "5:8: `cron` is `0 9 * *`: it has 4 fields: write five, `minute hour day-of-month month day-of-week`, such as `0 9 * * mon-fri`, or six with the second first",
        ),
        (
            "cron = \"0 25 * * *\"\ntype = \"t\"",
            "5:8: `cron` is `0 25 * * *`: the hour is `25`: write 0 to 23, `*`, a range (`1-5`), a list (`1,5`) or a step (`*/5`)",
        ),
        (
            "cron = 5\ntype = \"t\"",
            "5:8: `cron` is an integer, not a string: write `cron = \"0 9 * * mon-fri\"`",
        ),
        (
            "cron = \"@daily\"\ntype = \"t\"\ntimezone = \"Europe/Berln\"",
            "7:12: `timezone` is `Europe/Berln`: there is no such time zone: did you mean \"Europe/Berlin\"?",
        ),
        (
            "cron = \"@daily\"\ntype = \"t\"\ntimezone = \"+02:00\"",
            "7:12: `timezone` is `+02:00`: there is no such time zone: write a name of the IANA database, such as \"Europe/Berlin\", or \"UTC\"",
        ),
        (
            "cron = \"@daily\"\ntype = \"t\"\nmissed = \"never\"",
            "7:10: `missed` is `never`: use \"skip\", \"once\" or \"all\"",
        ),
        (
            "cron = \"@daily\"\ntype = \"\"",
            "6:8: no event can be as the schedule has it: `type` is empty",
        ),
        (
            "cron = \"@daily\"\ntype = \"t\"\nsource = \"no uri\"",
            "7:10: no event can be as the schedule has it: `source` ",
        ),
        (
            "cron = \"@daily\"\ntype = \"t\"\ndata = inf",
            "7:8: `data` holds `inf`, which is no number of JSON: put it in quotes",
        ),
        (
            "cron = \"@daily\"\ntype = \"t\"\ndatacontenttype = \"text/html\"",
            "7:19: `datacontenttype` says what `data` is, and there is none: add it, or leave this out",
        ),
        (
            "cron = \"@daily\"\ntype = \"t\"\ndata = \"{\"\ndatacontenttype = \"application/json\"",
            "7:8: `data` is `{`, which is no JSON (",
        ),
        ("cron = \"@daily\"\ntype = \"t\"\ntenant = \"\"", "7:10: `` is no name for a tenant: "),
        (
            "cron = \"@daily\"\ntype = \"t\"\ntime_zone = \"UTC\"",
            "7:1: unknown key `time_zone` in [schedules.report]; did you mean `timezone`?",
        ),
    ] {
        let found = problems(&with(&format!("[schedules.report]\n{lines}")));
        let expected = format!("handlers.toml:{expected}");
        assert!(
            found.len() == 1 && found[0].starts_with(&expected),
            "{lines}\n{expected}\n{found:?}"
        );
    }
    for (text, expected) in [
        (
            format!("[schedules.\"a b\"]\n{DAILY}"),
            "4:12: `a b` is no name for a schedule: ".to_owned(),
        ),
        (
            format!("[schedules.a]\n{DAILY}\ntenant = \"acm\"\n[tenants.acme]"),
            "7:10: there is no table [tenants.acm]: did you mean `acme`?".to_owned(),
        ),
    ] {
        let found = problems(&with(&text));
        let expected = format!("handlers.toml:{expected}");
        assert!(found.len() == 1 && found[0].starts_with(&expected), "{text}\n{found:?}");
    }
    let found = problems(&format!("schedules = 1\n{}", with("")));
    assert_eq!(
        found,
        [
            "handlers.toml:1:13: `schedules` is an integer, not a table of schedules: write a table [schedules.NAME] for each"
        ]
    );
}
