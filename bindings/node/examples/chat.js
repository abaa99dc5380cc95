'use strict';
// A chat in the terminal: each turn passes the whole conversation, of which only what is new is read.
// usage: node chat.js model.gguf [system prompt] < questions

const readline = require('node:readline');
const { Model } = require('..');

async function main([path, system]) {
  const model = await Model.load(path);
  const session = model.session();
  const messages = system ? [{ role: 'system', content: system }] : [];
  process.stdout.write('> ');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    messages.push({ role: 'user', content: line });
    const answer = await session.chat(messages, { onText: (text) => { process.stdout.write(text); } });
    messages.push({ role: 'assistant', content: answer.text });
    process.stdout.write('\n> ');
  }
  process.stdout.write('\n');
  session.close();
  model.close();
}

main(process.argv.slice(2));
