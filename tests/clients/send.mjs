// Sends events to a host with npm's `cloudevents` and its own emitter, as its users do.
//
// Usage: node send.mjs URL TOKEN COUNT FOLDER, where FOLDER has node_modules with `cloudevents`.
// Each event goes in one of the three modes in turn; the ids are `js 0`, `js 1`, and so on.

import { createRequire } from "node:module";
import path from "node:path";

const [url, token, count, folder] = process.argv.slice(2);
const require = createRequire(path.join(path.resolve(folder), "send.cjs"));
const { CloudEvent, HTTP, emitterFor, Mode } = require("cloudevents");

async function post(headers, body) {
  const answer = await fetch(url, {
    method: "POST",
    headers: { ...headers, authorization: `Bearer ${token}` },
    body,
  });
  const text = await answer.text();
  if (answer.status !== 202) throw new Error(`${answer.status} ${text}`);
  return JSON.parse(text).events;
}

function event(number) {
  return new CloudEvent({
    id: `js ${number}`,
    source: "https://example.com/clients/javascript",
    type: "client.event",
    // The package sends headers as they are, so in binary mode it has no other text.
    subject: number % 3 === 0 ? "fuss" : "Füße € 😀",
    client: "javascript",
    datacontenttype: "application/json",
    data: { number },
  });
}

const transport = ({ headers, body }) => post(headers, body);
const binary = emitterFor(transport, { mode: Mode.BINARY });
const structured = emitterFor(transport, { mode: Mode.STRUCTURED });

for (let number = 0; number < Number(count); ) {
  let events;
  if (number % 3 === 0) events = await binary(event(number));
  else if (number % 3 === 1) events = await structured(event(number));
  else {
    // The package has no batches to send: two of its events in one.
    const last = Math.min(number + 2, Number(count));
    const batch = [];
    for (let n = number; n < last; n++) batch.push(JSON.parse(HTTP.structured(event(n)).body));
    const headers = { "content-type": "application/cloudevents-batch+json" };
    events = await post(headers, JSON.stringify(batch));
  }
  number += events.length;
}
