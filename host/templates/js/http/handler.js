// What the engine calls with each request, which is an event.

import { answer } from './answer.js';

addEventListener('fetch', (event) => event.respondWith(answer(event.request)));
