'use strict';
// A character of a game describes itself as JSON: a schema leaves the model no other way to answer.
// usage: node json.js model.gguf

const { Model } = require('..');

const schema = {
  type: 'object',
  properties: {
    name: { type: 'string', minLength: 1, maxLength: 20 },
    role: { enum: ['guard', 'baker', 'fisher', 'potter'] },
    place: { type: 'string', maxLength: 30 },
    item: { type: 'string', maxLength: 30 },
  },
  required: ['name', 'role', 'place', 'item'],
  additionalProperties: false,
};

async function main([path]) {
  const model = await Model.load(path);
  const session = model.session();
  await session.setJsonSchema(schema);
  const answer = await session.chat([
    { role: 'system', content: 'Hanna the guard is at the lighthouse and has a white map. Olga the potter is at the pond and has a small apple.' },
    { role: 'user', content: 'Describe Hanna as JSON.' },
  ]);
  const person = JSON.parse(answer.text);
  console.log(`${person.name} (${person.role}) stands at ${person.place} with a ${person.item}.`);
  session.close();
  model.close();
}

main(process.argv.slice(2));
