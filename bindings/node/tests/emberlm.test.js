'use strict';
// Compares the package with what the C library answers, and its errors with what they must be. EMBERLM_MODEL, EMBERLM_REFERENCE (of
// bindings/common/reference.c) and EMBERLM_LAYOUT (of generate.py --layout) name the files. Run with --expose-gc.

const { test, before } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const koffi = require('koffi');
const ember = require('..');
const native = require('../native.js');

const { constants: C } = ember;
const reference = Object.fromEntries(fs.readFileSync(process.env.EMBERLM_REFERENCE, 'utf8').trim().split('\n').map((line) => {
  const at = line.indexOf('=');
  return [line.slice(0, at), line.slice(at + 1).replaceAll('\\n', '\n')];
}));
const numbers = (name) => reference[name].split(',').map(Number);
const greedy = numbers('greedy_tokens');
const MODEL = process.env.EMBERLM_MODEL;
const UNTIL_BRUSH = ' One cold morning, she lost her blue ';
let model;
let prompt;

const fails = (call, code) => (typeof call === 'function' ? assert.throws : assert.rejects)(call, (error) => {
  assert.ok(error instanceof ember.EmberError, String(error));
  assert.equal(error.code, code);
  assert.ok(error.message.startsWith(code));
  return true;
});
const collect = async (pieces) => {
  let text = '';
  for await (const piece of pieces) text += piece;
  return text;
};

before(async () => {
  model = await ember.Model.load(MODEL);
  prompt = model.tokenize(reference.story);
});

test('sizes, offsets and numbers are those that a C compiler sees', () => {
  const compiled = Object.fromEntries(fs.readFileSync(process.env.EMBERLM_LAYOUT, 'utf8').trim().split('\n').map((line) => line.split(' ')));
  const ours = { ...C };
  for (const [name, type] of Object.entries(native.structs)) {
    ours[name] = koffi.sizeof(type);
    for (const field of Object.keys(koffi.introspect(type).members)) ours[`${name}.${field}`] = koffi.offsetof(type, field);
  }
  assert.deepEqual(ours, Object.fromEntries(Object.entries(compiled).map(([key, value]) => [key, Number(value)])));
});

test('versions, devices, facts', async () => {
  assert.equal(ember.version(), reference.version);
  assert.equal(ember.versionNumber(), C.EMBER_VERSION_NUMBER);
  ember.requireAbi(C.EMBER_ABI_VERSION);
  assert.throws(() => ember.requireAbi(C.EMBER_ABI_VERSION + 1), new RegExp(`ABI ${C.EMBER_ABI_VERSION + 1}`));
  ember.requireAbi(C.EMBER_ABI_VERSION, () => C.EMBER_VERSION_NUMBER + 1);
  assert.throws(() => ember.requireAbi(C.EMBER_ABI_VERSION, () => C.EMBER_VERSION_NUMBER - 1), /later one/);
  assert.equal(ember.devices().filter((d) => d.kind === C.EMBER_DEVICE_CPU && d.usable === 1).length, 1);
  assert.equal(ember.supported(C.EMBER_CAN_GGUF), true);
  assert.equal(ember.estimate(MODEL).context, 2048);
  assert.equal(model.parts().length, 1);
  const cpu = ember.devices().findIndex((d) => d.kind === C.EMBER_DEVICE_CPU);
  const shared = { devices: [cpu, cpu], deviceLayers: [2, 0] };
  assert.equal(ember.estimateParts(MODEL, shared)[1].first_layer, 2);
  const inParts = await ember.Model.load(MODEL, shared);
  assert.equal(inParts.parts()[1].first_layer, 2);
  inParts.close();
  assert.equal(model.info().vocab_size, 1424);
  assert.equal(model.metadata('general.architecture'), 'llama');
  assert.equal(model.metadataKeys().length, model.info().metadata_count);
  assert.equal(model.endTokens().length, model.tokenizerInfo().end_token_count);
  assert.ok(model.endTokens().every((token) => model.isEnd(token)));
  await model.evict();
  await model.resume();
});

test('tokens', async () => {
  assert.deepEqual(prompt, numbers('greedy_prompt'));
  assert.equal(model.detokenize(prompt, { skipSpecial: true }), reference.story);
  assert.equal(model.tokenBytes(prompt[1]).toString(), 'Once');
  const words = 'Grüße, 世界! 🔥 \0 '.repeat(50);
  const tokens = model.tokenize(words, { continue: true });
  assert.equal(model.detokenize(tokens), words);
  assert.deepEqual(await model.tokenizeAsync(words, { continue: true }), tokens);
  const abort = new AbortController();
  const long = model.tokenizeAsync('a b c '.repeat(2000000), { signal: abort.signal });
  abort.abort();
  await fails(long, 'EMBER_INTERRUPTED');
});

test('errors', async () => {
  await fails(ember.Model.load('no such file'), 'EMBER_FILE_NOT_FOUND');
  await fails(ember.Model.load(MODEL, { device: 1000 }), 'EMBER_NO_DEVICE');
  await fails(ember.Model.fromBuffer(Buffer.alloc(1000)), 'EMBER_UNKNOWN_FORMAT');
  fails(() => model.metadata('no.such.key'), 'EMBER_MISSING_KEY');
  fails(() => model.session({ sampling: { topP: 2 } }), 'EMBER_INVALID_ARGUMENT');
  const session = model.session();
  await assert.rejects(session.prefill([1, 2, 4000000000]), (error) => error.code === 'EMBER_INVALID_TOKEN' && error.index === 2);
  session.close();
});

test('sources and progress', async () => {
  const own = await ember.Model.fromBuffer(fs.readFileSync(MODEL));
  const session = own.session();
  assert.equal((await session.generate(prompt, { limit: 40 })).text, reference.greedy_text);
  session.close();
  own.close();
  const heard = [];
  (await ember.Model.load(MODEL, { progress: (fraction) => { heard.push(fraction); } })).close();
  assert.equal(heard.at(-1), 1);
  await fails(ember.Model.load(MODEL, { progress: () => false }), 'EMBER_CANCELLED');
  await assert.rejects(ember.Model.load(MODEL, { progress: () => { throw new RangeError('mine'); } }), RangeError);
});

test('greedy and drawn tokens', async () => {
  const session = model.session();
  await session.prefill(prompt);
  for (const token of greedy) assert.equal(await session.decode(), token);
  assert.equal(session.position, prompt.length + greedy.length);
  assert.equal(session.info().position, session.position);
  assert.deepEqual(session.tokens(prompt.length), greedy);
  const fork = session.fork();
  assert.equal(await fork.decode(), await session.decode());
  assert.equal(new Set(await ember.decodeBatch([session, fork])).size, 1);
  await fails(ember.decodeBatch([session, session]), 'EMBER_INVALID_ARGUMENT');
  fork.close();
  session.close();
  const drawn = model.session({ sampling: { temperature: 0.8, seed: 3, logprobs: 4 } });
  await drawn.prefill(prompt);
  for (const token of numbers('drawn_tokens')) assert.equal(await drawn.decode(), token);
  assert.equal(drawn.logprobs().tokens.length, 4);
  drawn.setSampling({ logitBias: { 7: 1000 }, dryMultiplier: 1, dryBreakers: ['\n', [5, 6]] });
  drawn.rewind(prompt.length);
  assert.equal(await drawn.decode(), 7);
  drawn.rewind(prompt.length);
  const logits = await drawn.logits();
  assert.equal(logits.indexOf(Math.max(...logits)), greedy[0]);
  assert.ok((await drawn.profile()).every((entry) => entry.name.length > 0));
  drawn.close();
});

test('generate and stream', async () => {
  const session = model.session();
  let pieces = '';
  let made = await session.generate(prompt, { limit: 40, onText: (text) => { pieces += text; } });
  assert.deepEqual([made.text, pieces, made.end, made.position], [reference.greedy_text, reference.greedy_text, C.EMBER_END_LIMIT, prompt.length]);
  session.rewind(0);
  made = await session.generate(prompt, { stops: ['xyz', 'brush'] });
  assert.deepEqual([made.text, made.stop], [UNTIL_BRUSH, 1]);
  session.rewind(0);
  assert.equal((await session.generate(prompt, { onText: () => false })).end, C.EMBER_END_CALLBACK);
  session.rewind(0);
  await assert.rejects(session.generate(prompt, { onText: () => { throw new RangeError('mine'); } }), RangeError);
  assert.equal(session.position, prompt.length + 1);
  session.rewind(0);
  assert.equal(await collect(session.stream(prompt, { limit: 40 })), reference.greedy_text);
  session.rewind(0);
  assert.equal(await collect(session.stream(prompt, { stops: ['brush'] })), UNTIL_BRUSH);
  session.rewind(0);
  session.startPrefill(prompt);
  let progress;
  while (!(progress = session.pollPrefill()).done) await new Promise(setImmediate);
  assert.equal(progress.evaluated, prompt.length);
  session.startDecode(3);
  await fails(session.decode(), 'EMBER_DECODE_PENDING');
  for (let i = 0; i < 3;) {
    const token = session.pollDecode();
    if (token === null) await new Promise(setImmediate);
    else assert.equal(token, greedy[i++]);
  }
  fails(() => session.pollDecode(), 'EMBER_NOTHING_PENDING');
  session.close();
});

test('chat, grammars, text streams', async () => {
  const session = model.session();
  const messages = [{ role: 'user', content: 'What is 2 plus 3?' }];
  assert.deepEqual(model.chatTokenize(messages), numbers('chat_prompt'));
  const answer = await session.chat(messages);
  assert.deepEqual([answer.text, answer.end], [reference.chat_text, C.EMBER_END_TOKEN]);
  messages.push({ role: 'assistant', content: answer.text }, { role: 'user', content: 'say "ä\\b"\n <|end|>' });
  assert.ok(model.chatFormat(messages).includes('say "ä\\b"\n <|end|>'));
  assert.ok((await session.sync(model.chatTokenize(messages))) > numbers('chat_prompt').length);
  assert.equal(model.chatFormat([], { template: '{{ word }}!', word: 'Öl' }), 'Öl!');
  session.rewind(0);
  await session.setJsonSchema(reference.schema);
  assert.equal((await session.generate(model.chatTokenize(reference.facts), { newText: true })).text, reference.json_text);
  session.rewind(0);
  await session.setGrammar(C.EMBER_GRAMMAR_REGEX, '[0-9]{3}');
  assert.match((await session.generate(prompt)).text, /^[0-9]{3}$/);
  await session.setGrammar(C.EMBER_GRAMMAR_NONE);
  session.rewind(0);
  session.draft(C.EMBER_DRAFTS_MODEL, { model, maxDrafts: 4 });
  assert.equal((await session.generate(prompt, { limit: greedy.length })).text, model.detokenize(greedy));
  assert.equal(session.speculation().maxDrafts, 4);
  session.draft();
  session.draft(C.EMBER_DRAFTS_NONE);
  assert.throws(() => session.draft(C.EMBER_DRAFTS_NGRAM, { maxDrafts: 99 }), /max_drafts/);
  await fails(session.setJsonSchema({ type: 5 }), 'EMBER_GRAMMAR');
  session.close();
  const adapter = await model.adapter(path.join(path.dirname(MODEL), '../tests/data/adapters/hamlet.gguf'));
  assert.deepEqual([adapter.info().rank, adapter.info().name], [2, 'hamlet, disturbed']);
  const adapted = model.session();
  adapted.setAdapters([{ adapter, scale: 1 }]);
  await adapted.prefill(model.tokenize('Once upon a time,'));
  const adaptedState = await adapted.saveToBuffer();
  await fails(model.restoreFromBuffer(adaptedState), 'EMBER_STATE_FOREIGN');
  const restoredAdapted = await model.restoreFromBuffer(adaptedState, { adapters: [adapter] });
  assert.equal(await restoredAdapted.decode(), await adapted.decode());
  const withAdapter = model.embedder({ pooling: C.EMBER_POOLING_MEAN, adapters: [adapter] });
  adapter.close();
  assert.throws(() => adapted.setAdapters([adapter]));
  assert.throws(() => model.embedder({ adapters: [adapter] }));
  adapted.setAdapters([], { keep: true });

  const embedder = model.embedder({ pooling: C.EMBER_POOLING_MEAN });
  const both = await embedder.embed(['Once upon a time', 'the king']);
  assert.deepEqual(both.map((vector) => vector.length), [embedder.info().dimension, embedder.info().dimension]);
  assert.deepEqual((await embedder.embedTokens([model.tokenize('the king')]))[0], both[1]);
  assert.notDeepEqual((await withAdapter.embed(['the king']))[0], both[1]);
  withAdapter.close();
  await fails(embedder.rerank('a', ['b']), 'EMBER_INVALID_ARGUMENT');
  embedder.interrupt();
  await fails(embedder.embed(['a']), 'EMBER_INTERRUPTED');
  embedder.close();
  const words = model.textStream({ stops: ['brush'], skipSpecial: true });
  assert.equal(greedy.map((token) => words.push([token])).join(''), UNTIL_BRUSH);
  assert.equal(words.stopped, true);
  assert.equal(words.finish(), '');
  words.close();
  fails(() => words.push([1]), 'EMBER_INVALID_HANDLE');
});

test('saved sessions', async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'emberlm-'));
  const file = path.join(folder, 'state');
  const session = model.session();
  await session.prefill(prompt);
  await session.save(file);
  assert.equal(ember.stateInfo(file).position, prompt.length);
  const restored = await model.restore(file);
  assert.equal(await restored.decode(), greedy[0]);
  fs.rmSync(folder, { recursive: true });
  await fails(model.restore(file), 'EMBER_FILE_NOT_FOUND');
  const again = await model.restoreFromBuffer(await session.saveToBuffer());
  assert.equal(await again.decode(), greedy[0]);
  await session.evict();
  await session.resume();
  await session.erase(2, 3);
  assert.deepEqual(session.tokens(), [...prompt.slice(0, 2), ...prompt.slice(5)]);
  for (const one of [session, restored, again]) one.close();
});

test('closed handles and the garbage collector', async () => {
  const own = await ember.Model.load(MODEL);
  const session = own.session();
  own.close();
  own.close();
  fails(() => own.info(), 'EMBER_INVALID_HANDLE');
  await session.prefill(prompt);
  assert.equal(await session.decode(), greedy[0]);
  session.close();
  await fails(session.decode(), 'EMBER_INVALID_HANDLE');
  fails(() => session.interrupt(), 'EMBER_INVALID_HANDLE');
  fails(() => session.fork(), 'EMBER_INVALID_HANDLE');

  const position = koffi.load(process.env.EMBERLM_LIBRARY).func('int32_t ember_session_position(uintptr_t session, _Out_ size_t *position, void *err)');
  const lost = Array.from({ length: 10 }, () => model.session()._raw);
  for (let i = 0; i < 100 && !lost.some((raw) => position(raw, [0], null) === C.EMBER_INVALID_HANDLE); i++) {
    global.gc();
    await new Promise((resolve) => { setTimeout(resolve, 10); });
  }
  assert.ok(lost.some((raw) => position(raw, [0], null) === C.EMBER_INVALID_HANDLE));
});

test('groups', async () => {
  const fails = (run, status) => assert.throws(run, (error) => error.code === status);
  const first = new ember.Group({ rank: 0, rankCount: 2, timeoutMs: 500 });
  const second = new ember.Group({ rank: 1, rankCount: 2, id: first.id });
  assert.equal(second.id, first.id);
  fails(() => new ember.Group({ rank: 2, rankCount: 2, id: first.id }), 'EMBER_INVALID_ARGUMENT');
  fails(() => new ember.Group({ rank: 0, rankCount: 2, address: '0.0.0.0' }), 'EMBER_INVALID_ARGUMENT');
  // A CPU has no share of each layer.
  for (const code of ['EMBER_UNSUPPORTED', 'EMBER_INVALID_ARGUMENT']) await assert.rejects(ember.Model.load(MODEL, { group: first }), { code });
  first.close();
  second.close();
});

test('loads, generations and batches that were started', async () => {
  const event = new ember.Event();
  assert.ok(event.handle >= 0);
  const load = new ember.Load(MODEL, { event });
  let own = load.poll();
  for (; own === null; own = load.poll()) await new Promise((resolve) => { setTimeout(resolve, 2); });
  assert.equal(load.fraction, 1);
  fails(() => load.poll(), 'EMBER_NOTHING_PENDING');
  load.cancel();
  load.close();
  const [session, other, empty] = [own.session(), own.session(), own.session()];
  event.clear();
  session.setEvent(event);
  const want = await other.generate(prompt, { limit: 8 });
  session.startGenerate(prompt, { limit: 8 });
  await fails(session.decode(), 'EMBER_DECODE_PENDING');
  let text = '';
  for (let piece; piece === undefined || piece.token !== null;) {
    piece = await session.nextPiece();
    text += piece.text;
  }
  const made = session.finish();
  assert.deepEqual({ ...made, text }, want);
  session.setEvent(null);
  event.close();
  ember.startDecodeBatch([session, other]);
  const tokens = [null, null];
  while (tokens.includes(null)) [session, other].forEach((s, i) => { tokens[i] ??= s.pollDecode(); });
  assert.equal(tokens[0], tokens[1]);
  const each = await ember.decodeEach([session, empty]);
  assert.deepEqual([each[0].id, each[1].status], [await other.decode(), C.EMBER_NO_INPUT]);
  await fails(ember.decodeBatch([empty]), 'EMBER_NO_INPUT');
  session.setSampling({ logprobs: 1 });
  const token = await session.decodeToken();
  assert.equal(token.logprob, session.logprobs().chosen);
  own.close();
  const again = session.model();
  assert.equal(again.info().vocab_size, session.info().vocab_size);
  for (const one of [session, other, empty, again]) one.close();
});

test('busy sessions, interrupts, sessions side by side', async () => {
  const session = model.session();
  let busy = 0;
  const onText = () => {
    fails(() => session.rewind(0), 'EMBER_BUSY');
    session.interrupt();
    busy++;
  };
  assert.equal((await session.generate(prompt, { ignoreEnd: true, onText })).end, C.EMBER_END_INTERRUPTED);
  assert.equal(busy, 1);
  session.rewind(0);
  session.interrupt();
  await fails(session.prefill(prompt), 'EMBER_INTERRUPTED');
  session.interrupt();
  session.clearInterrupt();
  const abort = new AbortController();
  const stopped = await session.generate(prompt, { signal: abort.signal, ignoreEnd: true, onText: () => abort.abort() });
  assert.equal(stopped.end, C.EMBER_END_INTERRUPTED);
  session.close();
  const texts = await Promise.all([1, 2, 3, 4].map(async () => {
    const own = model.session();
    const { text } = await own.generate(prompt, { limit: 40 });
    own.close();
    return text;
  }));
  assert.deepEqual(texts, Array(4).fill(reference.greedy_text));
});
