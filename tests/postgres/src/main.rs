//! A throw-away PostgreSQL server: prints its URL, and ends with its stdin.

use std::io;

use anyhow::Result;
use test_postgres::Server;

fn main() -> Result<()> {
    let server = Server::start(&[])?;
    println!("{}", server.url("postgres"));
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
