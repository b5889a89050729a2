// What the engine calls with each request, which is an event.

import { answer } from './answer.ts';

interface FetchEvent {
  request: Request;
  respondWith(response: Promise<Response>): void;
}

declare function addEventListener(type: 'fetch', listener: (event: FetchEvent) => void): void;

addEventListener('fetch', (event) => event.respondWith(answer(event.request)));
