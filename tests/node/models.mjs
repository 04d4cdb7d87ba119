// Models: listed and read.
import assert from 'node:assert/strict';
import { client, gathered, refused } from './client.mjs';

const models = await gathered(client.models.list());
assert.ok(models.length > 0);
const found = await client.models.retrieve(models[0].id);
assert.equal(found.object, 'model');
assert.equal(typeof found.context_window, 'number');
await refused(client.models.retrieve('nothing-like-it'), 404, 'model_not_found');
