'use strict';
// Continues a text and shows it while it is made.
// usage: node stream.js model.gguf [prompt]

const { Model } = require('..');

async function main([path, prompt = 'Once upon a time, Mira the baker lived in Oakvale.']) {
  const model = await Model.load(path);
  const session = model.session({ sampling: { temperature: 0.8, seed: 3 } });
  process.stdout.write(prompt);
  for await (const text of session.stream(model.tokenize(prompt), { limit: 200, stops: ['\n\n'] })) process.stdout.write(text);
  process.stdout.write('\n');
  session.close();
  model.close();
}

main(process.argv.slice(2));
