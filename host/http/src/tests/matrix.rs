//! What every caller is answered at every route, for every tenant that it may name.

use std::fmt::Write as _;

use super::{connection, here, listener, request, stubs};
use crate::problem::Kind;
use crate::routes::TABLE;
use crate::token::{Role, Scope, Token, TokenHash};

/// The tenants that the settings know.
const TENANTS: [&str; 2] = ["acme", "globex"];

/// What is asked for: nothing, the tenant of a token of one, another one, and none at all.
const NAMED: [&str; 4] = ["", "?tenant=acme", "?tenant=globex", "?tenant=nobody"];

fn tokens() -> Vec<Token> {
    let of = |role: Role, name: String, scope| Token {
        roles: [role].into(),
        scope,
        ..Token::unlimited(&name, TokenHash::of(&name))
    };
    let mut tokens = Vec::new();
    for role in Role::ALL {
        let acme = Scope::One("acme".parse().unwrap());
        tokens.push(of(role, format!("{role} of acme"), acme));
        tokens.push(of(role, format!("{role} of all"), Scope::All));
    }
    let expired = Token::unlimited("expired", TokenHash::of("expired"));
    tokens.push(Token { expires: Some(jiff::Timestamp::UNIX_EPOCH), ..expired });
    tokens
}

async fn table() -> String {
    let routes = stubs();
    let names: Vec<String> = tokens().into_iter().map(|token| token.name).collect();
    let callers = ["no token", "unknown token"].map(str::to_owned).into_iter().chain(names);
    let callers: Vec<String> = callers.collect();
    let mut table = String::from(
        "# What every caller is answered at every route: the status without `?tenant=`, and\n\
         # with the name of the token's own tenant, of another, and of one that is not there.\n\
         # 204 stands for: the handler is called.\n",
    );
    for spec in TABLE {
        writeln!(table, "\n{} {}", spec.method, spec.path).unwrap();
        for caller in &callers {
            write!(table, "  {caller:<16}").unwrap();
            for named in NAMED {
                // A connection of its own, for failures of an address count together.
                let host = connection(listener(), tokens(), Some(&TENANTS), &routes, here());
                let bearer = format!("Bearer {caller}");
                let headers: &[_] =
                    if caller == "no token" { &[] } else { &[("authorization", bearer.as_str())] };
                let path = spec.path.replace(['{', '}'], "");
                let request = request(spec.method.as_str(), &format!("{path}{named}"), headers);
                let response = host.answer(request).await;
                write!(table, " {}", response.status().as_u16()).unwrap();
            }
            table.push('\n');
        }
    }
    table
}

#[test]
fn every_route_and_every_problem_is_in_the_documents() {
    let page = include_str!("../../../../docs/http.md");
    for spec in TABLE {
        let path = spec.path.replace("{slug}", "NAME").replace("{source}", "SOURCE");
        let line = format!("`{} {path}`", spec.method);
        assert!(page.contains(&line), "{line}");
    }
    for kind in Kind::ALL {
        let has = |line: &str| {
            line.starts_with(&format!("| {}", kind.status().as_u16()))
                && line.contains(&format!("`{}`", kind.slug()))
        };
        assert!(page.lines().any(has), "{} with its status", kind.slug());
    }
}

/// A route that is not in the file, and a route that answers otherwise, fail it. The file is
/// what people read: whoever adds a route reads its lines before they are kept.
#[tokio::test]
async fn every_route_answers_every_caller_as_the_matrix_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/matrix.txt");
    let table = table().await;
    if std::env::var_os("UPDATE_MATRIX").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap();
    assert_eq!(table, kept, "if it is right: UPDATE_MATRIX=1 cargo test -p event-host-http");
}
