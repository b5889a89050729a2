//! An HTTP server as any host of `wasi:http` runs it, which knows nothing of this one. It
//! greets each customer: the event is the request, and the answer is the event to emit.

use wstd::http::{Body, Error, Request, Response, StatusCode};

#[derive(serde::Deserialize)]
struct Order {
    customer: Option<String>,
}

#[wstd::http_server]
async fn main(mut request: Request<Body>) -> Result<Response<Body>, Error> {
    let order = request.body_mut().contents().await?;
    Ok(answer(order)?.map(Body::from))
}

/// A status of 4xx gives the event up, with the text as its reason; 408, 425, 429 and 5xx
/// have it come again later.
fn answer(order: &[u8]) -> Result<Response<String>, Error> {
    let order: Order = match serde_json::from_slice(order) {
        Ok(order) => order,
        Err(why) => return refused(StatusCode::BAD_REQUEST, format!("the order is no JSON: {why}")),
    };
    let Some(customer) = order.customer else {
        return refused(StatusCode::UNPROCESSABLE_ENTITY, "the order names no customer".to_owned());
    };
    let greeting = serde_json::json!({ "text": format!("Hello, {customer}!") });
    let response = Response::builder()
        .header("content-type", "application/json")
        .header("ce-specversion", "1.0")
        .header("ce-type", "customer.greeted");
    Ok(response.body(greeting.to_string())?)
}

fn refused(status: StatusCode, why: String) -> Result<Response<String>, Error> {
    Ok(Response::builder().status(status).body(why)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_customer_is_greeted() {
        let response = answer(br#"{"id": 7, "customer": "Ada"}"#).unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["ce-type"], "customer.greeted");
        assert_eq!(response.body(), r#"{"text":"Hello, Ada!"}"#);
    }

    #[test]
    fn an_order_of_nobody_is_refused() {
        let response = answer(br#"{"id": 8}"#).unwrap();
        assert_eq!(response.status(), StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(response.body(), "the order names no customer");
    }
}
