//! The state of a group.

use super::DeliveryDatabase;
use super::samples::{group, led, scoped_write, settlement, write};
use crate::Settlement;
use event_host_core::event::bounds::SHORT_BYTES;

pub async fn the_last_write_of_a_key_wins(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let epoch = led(&store, "g").await;
    let name = group("g");
    let big = vec![7; 2 << 20];
    for (writes, expected) in [
        (vec![], None),
        (vec![Some(&b"1"[..])], Some(&b"1"[..])),
        (vec![Some(b"2"), Some(b"3")], Some(b"3")),
        (vec![Some(b"4"), None], None),
        (vec![None, Some(b"5")], Some(b"5")),
        (vec![], Some(b"5")),
        (vec![Some(&big)], Some(&big)),
        (vec![None], None),
        (vec![None], None),
    ] {
        let state = writes.iter().map(|value| write("key", *value)).collect();
        let settlement = Settlement { state, ..settlement(&store, "g", epoch, 0).await };
        store.settle(&settlement).await.unwrap();
        let value = store.state_get(&name, "", "key").await.unwrap();
        assert!(value.as_deref() == expected, "after {:?}", writes.len());
    }
}

pub async fn state_belongs_to_one_group_and_scope(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    for name in ["g", "h"] {
        let epoch = led(&store, name).await;
        let state = ["", "s", "S"]
            .iter()
            .map(|scope| scoped_write(scope, "key", Some(format!("{name}{scope}").as_bytes())))
            .collect();
        store
            .settle(&Settlement { state, ..settlement(&store, name, epoch, 0).await })
            .await
            .unwrap();
    }
    for name in ["g", "h"] {
        for scope in ["", "s", "S"] {
            let value = store.state_get(&group(name), scope, "key").await.unwrap();
            assert_eq!(value, Some(format!("{name}{scope}").into_bytes()));
            let keys = store.state_keys(&group(name), scope, "", 10).await.unwrap();
            assert_eq!(keys, ["key"]);
        }
        assert_eq!(store.state_key_count(&group(name)).await.unwrap(), 3);
    }
    assert_eq!(store.state_key_count(&group("none")).await.unwrap(), 0);
    assert_eq!(store.state_get(&group("g"), "none", "key").await.unwrap(), None);
    assert_eq!(store.state_get(&group("none"), "", "key").await.unwrap(), None);
    assert!(store.state_keys(&group("none"), "", "", 10).await.unwrap().is_empty());
}

pub async fn the_longest_keys_of_the_longest_groups_and_scopes_are_kept(
    database: &dyn DeliveryDatabase,
) {
    let store = database.delivery().await;
    let name = "g".repeat(128);
    let epoch = led(&store, &name).await;
    // Nothing that a database could make smaller.
    let text = |length: usize| -> String {
        let mut number = 7_u32;
        let mut next = || {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            char::from(b'!' + u8::try_from((number >> 16) % 94).unwrap())
        };
        (0..length).map(|_| next()).collect()
    };
    // As a lane calls that of the longest partition key.
    let scope = format!("key:{}", text(SHORT_BYTES));
    let key = text(1_024);
    let state = vec![scoped_write(&scope, &key, Some(b"1"))];
    store.settle(&Settlement { state, ..settlement(&store, &name, epoch, 0).await }).await.unwrap();
    let value = store.state_get(&group(&name), &scope, &key).await.unwrap();
    assert_eq!(value.as_deref(), Some(&b"1"[..]));
}

pub async fn keys_are_listed_in_the_order_of_their_bytes(database: &dyn DeliveryDatabase) {
    let store = database.delivery().await;
    let epoch = led(&store, "g").await;
    let keys = [
        "a",
        "a/",
        "a/1",
        "a/10",
        "a/2",
        "a0",
        "A/1",
        "a%",
        "a_",
        "a*",
        "b",
        "\u{e9}",
        "e\u{301}",
        "\u{7f}",
        "\u{80}",
        "\u{D7FF}",
        "\u{E000}",
        "\u{10FFFF}",
        "\u{10FFFF}x",
        "a\0b",
    ];
    let keys = keys.map(|key| database.kept(key));
    let state = keys.iter().map(|key| write(key, Some(b"1"))).collect();
    store.settle(&Settlement { state, ..settlement(&store, "g", epoch, 0).await }).await.unwrap();

    let mut sorted: Vec<&str> = keys.iter().map(String::as_str).collect();
    sorted.sort_by_key(|key| key.as_bytes());
    for prefix in ["", "a", "a/", "a/1", "a%", "a_", "A", "\u{D7FF}", "\u{10FFFF}", "none"] {
        let expected: Vec<&str> =
            sorted.iter().copied().filter(|key| key.starts_with(prefix)).collect();
        for limit in [0, 1, 3, 100, usize::MAX] {
            let listed = store.state_keys(&group("g"), "", prefix, limit).await.unwrap();
            assert_eq!(listed, expected[..limit.min(expected.len())], "{prefix:?} {limit}");
        }
    }
}
