//! What is done on a shared connection: each of these takes one, bounds the work in time,
//! and gives the connection back, or closes it where the work broke.

/// Does something on a shared connection.
macro_rules! on_shared {
    ($connections:expr, $what:expr, |$connection:ident| $work:expr) => {
        on_shared!($connections, $what, $crate::connection::DEADLINE, |$connection| $work)
    };
    ($connections:expr, $what:expr, $deadline:expr, |$connection:ident| $work:expr) => {
        on_shared!(
            $connections,
            $what,
            $deadline,
            $crate::session::Patience::Short,
            |$connection| $work
        )
    };
    ($connections:expr, $what:expr, $deadline:expr, $patience:expr, |$connection:ident| $work:expr) => {
        $crate::on_shared::on_lent!(
            shared,
            $connections,
            $what,
            $deadline,
            $patience,
            |$connection| $work
        )
    };
}

/// Does something on one of the connections that ingest has of its own.
macro_rules! on_ingesting {
    ($connections:expr, $what:expr, |$connection:ident| $work:expr) => {
        $crate::on_shared::on_lent!(
            for_ingest,
            $connections,
            $what,
            $crate::connection::DEADLINE,
            $crate::session::Patience::Short,
            |$connection| $work
        )
    };
}

/// Does something on a connection that this method lends.
macro_rules! on_lent {
    ($lend:ident, $connections:expr, $what:expr, $deadline:expr, $patience:expr, |$connection:ident| $work:expr) => {{
        let connections: &$crate::connection::Connections = &$connections;
        let work = async {
            let mut lent = connections.$lend().await?;
            let (result, fit) = match connections.begin_on(lent.connection(), $patience).await {
                Err(broken) => (Err(broken), true),
                Ok(mut piece) => {
                    let result = match connections.verify_piece(&mut piece).await {
                        Err(broken) => Err(broken),
                        Ok(()) => {
                            let $connection = piece.connection();
                            $work.await
                        }
                    };
                    piece.end(result).await
                }
            };
            if fit { lent.give_back(result).await } else { result }
        };
        connections.within($what, $deadline, work).await
    }};
}

/// Does something on a shared connection that may wait for others to let go of a
/// row.
macro_rules! on_shared_patiently {
    ($connections:expr, $what:expr, $deadline:expr, |$connection:ident| $work:expr) => {
        $crate::on_shared::on_shared!(
            $connections,
            $what,
            $deadline,
            $crate::session::Patience::Long,
            |$connection| $work
        )
    };
}

/// Does something on a shared connection in transactions of its own, each of which
/// brings its limits along: see [`begin`](super::piece::begin) and [`snapshot`](super::piece::snapshot).
macro_rules! on_shared_in_its_own {
    ($connections:expr, $what:expr, $deadline:expr, |$connection:ident| $work:expr) => {{
        let connections: &$crate::connection::Connections = &$connections;
        let work = async {
            let mut shared = connections.shared().await?;
            let $connection = shared.connection();
            let result = match connections.verify_pooled($connection).await {
                Err(broken) => Err(broken),
                Ok(()) => $work.await,
            };
            shared.give_back(result).await
        };
        connections.within($what, $deadline, work).await
    }};
}

/// Reads something on a shared connection that may come in part. What did not come is
/// left on the connection, which is closed then.
macro_rules! on_shared_in_parts {
    ($connections:expr, $what:expr, $deadline:expr, |$connection:ident| $work:expr) => {{
        use $crate::session::Patience;
        let connections: &$crate::connection::Connections = &$connections;
        let reading = async {
            // Whoever waited long for a connection has all the time to read on it.
            let mut shared = connections.within($what, $deadline, connections.shared()).await?;
            let work = async {
                let (result, fit) =
                    match connections.begin_on(shared.connection(), Patience::Short).await {
                        Err(broken) => (Err(broken), true),
                        Ok(mut piece) => {
                            let result = match connections.verify_piece(&mut piece).await {
                                Err(broken) => Err(broken),
                                Ok(()) => {
                                    let $connection = piece.connection();
                                    $work.await
                                }
                            };
                            match result {
                                // Not another word: its answer would come last.
                                Ok(part) if !part.is_whole => (Ok(part.read), false),
                                result => piece.end(result.map(|part| part.read)).await,
                            }
                        }
                    };
                if fit { shared.give_back(result).await } else { result }
            };
            connections.within($what, $deadline, work).await
        };
        reading.await
    }};
}

pub(super) use {
    on_ingesting, on_lent, on_shared, on_shared_in_its_own, on_shared_in_parts, on_shared_patiently,
};
