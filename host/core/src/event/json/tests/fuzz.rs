//! Lines and bytes as nobody would write them.

use super::*;
use crate::event::jsonl::{EventLines, LineProblem};
use crate::fuzz;
use proptest::prelude::*;

/// The lines of a file of the corpus.
fn lines(file: &str) -> Vec<Vec<u8>> {
    let corpus = fuzz::corpus("events");
    let (_, bytes) = corpus.into_iter().find(|(name, _)| name == file).unwrap();
    bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
}

#[test]
fn every_line_of_the_corpus_is_accepted_or_refused_as_it_is_filed() {
    for line in lines("accepted.jsonl") {
        for read in EventLines::new(&*line) {
            let read = read.unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&line)));
            assert!(read.events.iter().all(|event| event.check().is_ok()));
        }
    }
    for line in lines("refused.jsonl") {
        // After a line of its own: the mark of a byte order is one at the beginning alone.
        let file = [b"\n", &*line].concat();
        let mut read = EventLines::new(&*file);
        match read.next() {
            Some(Err(error)) => assert!(is_a_sentence(&error.to_string()), "{error}"),
            other => panic!("{other:?}: {}", String::from_utf8_lossy(&line)),
        }
    }
}

/// A refusal is shown on a terminal, whoever wrote what is refused.
fn is_a_sentence(text: &str) -> bool {
    text.starts_with("line ") && text.len() < 1_000 && !text.chars().any(char::is_control)
}

proptest! {
    #![proptest_config(fuzz::cases(3_000))]

    #[test]
    fn a_damaged_line_is_read_or_refused_with_its_number(
        which in any::<prop::sample::Index>(),
        damage in fuzz::damage(),
    ) {
        let all = [lines("accepted.jsonl"), lines("refused.jsonl")].concat();
        let file = fuzz::damaged(&all[which.index(all.len())], &damage);
        let count = file.split(|b| *b == b'\n').count();
        for read in EventLines::new(&*file) {
            match read {
                Ok(line) => {
                    for event in line.events {
                        prop_assert_eq!(event.check(), Ok(()));
                        let again = Event::from_json(event.to_json_string()).unwrap();
                        prop_assert_eq!(again, event);
                    }
                }
                Err(error) => {
                    prop_assert!(!matches!(error.problem, LineProblem::Read(_)));
                    prop_assert!((1..=count).contains(&usize::try_from(error.number).unwrap()));
                    prop_assert!(is_a_sentence(&error.to_string()), "{:?}", error.to_string());
                }
            }
        }
    }

    #[test]
    fn json_as_it_may_be_is_a_payload_that_is_kept_or_refused(json in fuzz::json()) {
        let line = format!(r#"{{"specversion":"1.0","id":"i","source":"/s","type":"t","data":{json}}}"#);
        match Event::from_json(&line) {
            Ok(event) => {
                let data = event.data.clone();
                // More members may have come along with a payload that is several.
                if event.extensions.is_empty() && event.subject.is_none() {
                    prop_assert_eq!(data.as_deref(), Some(json.trim().as_bytes()));
                }
                let again = Event::from_json(event.to_json_string()).unwrap();
                prop_assert_eq!(again.data, data);
                let shown = Value::Object(event.to_json()).to_string();
                prop_assert!(Event::from_json(shown).is_ok());
            }
            Err(error) => prop_assert!(is_a_sentence(&format!("line 1: {error}")), "{error:?}"),
        }
    }
}

#[test]
fn a_payload_many_levels_deep_is_kept_and_shown() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let json = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        let line =
            format!(r#"{{"specversion":"1.0","id":"i","source":"/s","type":"t","data":{json}}}"#);
        let event = Event::from_json(&line).unwrap();
        assert_eq!(event.data.as_deref(), Some(json.as_bytes()));
        let again = Event::from_json(event.to_json_string()).unwrap();
        assert_eq!(again, event);
        assert!(event.to_json().contains_key("data_base64"));
    }
}
