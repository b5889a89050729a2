// Sends each order to a web service, and emits what the service says.

// Where orders go. `allow.http` in the settings lets requests to it out, and to no other.
const SERVICE = 'http://localhost:8080/orders';

// The request is an event, and the answer says what becomes of it: an event to emit, a status
// of 4xx that gives it up, or 5xx that has it come again later. A test brings a `send` of its
// own; the host gives each attempt for an event the same `Idempotency-Key`.
export async function answer(request: Request, send: typeof fetch = fetch): Promise<Response> {
  const order = await request.text();
  let response: Response;
  try {
    response = await send(SERVICE, { method: 'POST', body: order, headers: { 'content-type': 'application/json' } });
  } catch (error) {
    return new Response(`${SERVICE}: ${(error as Error).message}`, { status: 503, headers: { 'retry-after': '5' } });
  }
  if (!response.ok) {
    return new Response(`the service says ${response.status}`, { status: response.status });
  }

  return new Response(await response.text(), {
    headers: { 'content-type': 'application/json', 'ce-specversion': '1.0', 'ce-type': 'order.forwarded' },
  });
}
