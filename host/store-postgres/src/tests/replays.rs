//! Replays that meet: on the same dead letter, on the same group, and with
//! somebody who discards. Each is held in the middle of its statement.

use sqlx::PgConnection;
use tokio::task::JoinHandle;

use super::{
    PostgresDatabase, PostgresStore, dead, first_settlement, group, hold_inserts_into, led,
    let_inserts_go, publish, seen, types, until_waiting, value,
};
use event_host_store::traits::*;
use event_host_store::{DeadLetterId, Missing, Replayed, Settled, Settlement, StoreError};

/// A database with three dead letters of group `g`, and somebody who can hold
/// replays in the middle.
struct Scene {
    database: PostgresDatabase,
    store: PostgresStore,
    ids: Vec<DeadLetterId>,
    holder: PgConnection,
}

impl Scene {
    async fn new() -> Self {
        let database = PostgresDatabase::new().await;
        let store = database.store();
        led(&store, "g").await;
        for event_type in ["a", "b", "c"] {
            publish(&store, event_type).await;
        }
        let settlement = Settlement {
            dead_letters: seen(&store).await.into_iter().map(dead).collect(),
            ..first_settlement("g", 3)
        };
        assert_eq!(store.settle(&settlement).await.unwrap(), Settled::Committed);
        let ids = store.dead_letter_ids(&group("g")).await.unwrap();
        assert_eq!(ids.len(), 3);
        let mut holder = database.raw().await;
        hold_inserts_into(&mut holder, "events").await;
        Self { database, store, ids, holder }
    }

    /// Another host, which replays.
    fn replay(&self, id: DeadLetterId) -> JoinHandle<Result<Replayed, StoreError>> {
        let store = self.database.store();
        tokio::spawn(async move { store.replay(id, None, None).await })
    }

    fn replay_all(&self) -> JoinHandle<Result<Vec<Replayed>, StoreError>> {
        let (store, last) = (self.database.store(), self.ids[2]);
        tokio::spawn(async move {
            store.replay_some(&group("g"), DeadLetterId(0), last, 10, None).await
        })
    }

    fn discard(&self, id: DeadLetterId) -> JoinHandle<Result<(), StoreError>> {
        let store = self.database.store();
        tokio::spawn(async move { store.discard(id).await })
    }

    async fn end_whoever_waits(&mut self) {
        // Whoever was first waits for the holder, everybody else for the first.
        let ended: i64 = value(
            &mut self.holder,
            "SELECT count(pg_terminate_backend(pid)) FROM pg_locks
             WHERE locktype = 'advisory' AND NOT granted
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        )
        .await;
        assert_eq!(ended, 1);
    }

    async fn left(&self) -> Vec<DeadLetterId> {
        self.store.dead_letter_ids(&group("g")).await.unwrap()
    }
}

fn not_found(id: DeadLetterId, error: &StoreError) {
    assert!(
        matches!(error, StoreError::NotFound(Missing::DeadLetter(of)) if *of == id),
        "{error:?}"
    );
    assert_eq!(error.to_string(), format!("dead letter {id} not found"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_of_two_replays_waits_and_then_finds_nothing() {
    let mut scene = Scene::new().await;
    let id = scene.ids[1];
    let first = scene.replay(id);
    until_waiting(&mut scene.holder, 1).await;
    let second = scene.replay(id);
    until_waiting(&mut scene.holder, 2).await;
    let_inserts_go(&mut scene.holder).await;
    assert_eq!(first.await.unwrap().unwrap().id, id);
    not_found(id, &second.await.unwrap().unwrap_err());
    assert_eq!(types(&scene.store).await, ["a", "b", "c", "b"]);
    assert_eq!(scene.left().await, [scene.ids[0], scene.ids[2]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaying_all_skips_what_somebody_else_has_in_hand_without_waiting() {
    let mut scene = Scene::new().await;
    let one = scene.replay(scene.ids[1]);
    until_waiting(&mut scene.holder, 1).await;
    let all = scene.replay_all();
    // It waits for the holder, in its own insert, and not for the other replay.
    until_waiting(&mut scene.holder, 2).await;
    let another_all = scene.replay_all();
    assert_eq!(another_all.await.unwrap().unwrap(), [], "the rest is in hand already");
    let_inserts_go(&mut scene.holder).await;
    let replayed: Vec<_> = all.await.unwrap().unwrap().into_iter().map(|one| one.id).collect();
    assert_eq!(replayed, [scene.ids[0], scene.ids[2]]);
    one.await.unwrap().unwrap();
    let mut types = types(&scene.store).await;
    types.sort();
    assert_eq!(types, ["a", "a", "b", "b", "c", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_inside_a_replay_leaves_the_letter_dead_and_free_for_the_next() {
    let mut scene = Scene::new().await;
    let id = scene.ids[0];
    let first = scene.replay(id);
    until_waiting(&mut scene.holder, 1).await;
    let second = scene.replay(id);
    until_waiting(&mut scene.holder, 2).await;
    scene.end_whoever_waits().await;
    let error = first.await.unwrap().unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert_eq!(scene.left().await, scene.ids, "it is dead, and not queued");
    let_inserts_go(&mut scene.holder).await;
    assert_eq!(second.await.unwrap().unwrap().id, id);
    assert_eq!(types(&scene.store).await, ["a", "b", "c", "a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_inside_a_replay_of_all_leaves_all_of_them_dead() {
    let mut scene = Scene::new().await;
    let all = scene.replay_all();
    until_waiting(&mut scene.holder, 1).await;
    scene.end_whoever_waits().await;
    assert!(matches!(all.await.unwrap(), Err(StoreError::Unavailable(_))));
    assert_eq!(scene.left().await, scene.ids);
    let_inserts_go(&mut scene.holder).await;
    assert_eq!(types(&scene.store).await, ["a", "b", "c"]);
    assert_eq!(scene.replay_all().await.unwrap().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_discards_what_is_replayed_waits_and_then_finds_nothing() {
    let mut scene = Scene::new().await;
    let id = scene.ids[2];
    let replay = scene.replay(id);
    until_waiting(&mut scene.holder, 1).await;
    let discard = scene.discard(id);
    until_waiting(&mut scene.holder, 2).await;
    let_inserts_go(&mut scene.holder).await;
    replay.await.unwrap().unwrap();
    not_found(id, &discard.await.unwrap().unwrap_err());
    assert_eq!(types(&scene.store).await, ["a", "b", "c", "c"], "once, and not lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_replays_what_is_discarded_waits_and_then_finds_nothing() {
    let mut scene = Scene::new().await;
    let id = scene.ids[2];
    let mut other = scene.database.raw().await;
    let discard = format!("BEGIN; DELETE FROM event_host.dead_letters WHERE id = {id}");
    super::run(&mut other, discard).await;
    let replay = scene.replay(id);
    until_waiting(&mut scene.holder, 1).await;
    super::run(&mut other, "COMMIT").await;
    not_found(id, &replay.await.unwrap().unwrap_err());
    let_inserts_go(&mut scene.holder).await;
    assert_eq!(types(&scene.store).await, ["a", "b", "c"]);
}
