// Greets each customer: the answer to a request, which is an order, is the event to emit. It
// knows nothing of the host: any host of `wasi:http` runs it.

// A status of 4xx gives the event up, with the text as its reason; 408, 425, 429 and 5xx have
// it come again later.
export async function answer(request) {
  let order;
  try {
    order = await request.json();
  } catch (error) {
    return new Response(`the order is no JSON: ${error.message}`, { status: 400 });
  }
  if (typeof order?.customer !== 'string') {
    return new Response('the order names no customer', { status: 422 });
  }

  return new Response(JSON.stringify({ text: `Hello, ${order.customer}!` }), {
    headers: {
      'content-type': 'application/json',
      'ce-specversion': '1.0',
      'ce-type': 'customer.greeted',
      'ce-subject': encodeURIComponent(order.customer),
    },
  });
}
