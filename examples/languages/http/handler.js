// An HTTP server as any host of `wasi:http` runs it: it knows nothing of this one.
addEventListener('fetch', (event) => event.respondWith(answer(event.request)));

async function answer(request) {
  if (request.headers.get('ce-type') !== 'order.placed') {
    return new Response(null, { status: 204 });
  }

  let order;
  try {
    order = await request.json();
  } catch (error) {
    return new Response(`the order is no JSON: ${error.message}`, { status: 400 });
  }
  if (typeof order?.customer !== 'string') {
    return new Response('the order names no customer', { status: 422 });
  }
  if (order.stock === 0) {
    return new Response('out of stock', { status: 503, headers: { 'retry-after': '2' } });
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
