'use strict';
// EmberLM for Node. What computes returns a promise and runs on a thread of its own; the event loop goes on meanwhile. index.d.ts says
// what there is.

const fs = require('node:fs');
const path = require('node:path');
const koffi = require('koffi');
const { constants, structs, open } = require('./native.js');

const NAMES = { linux: 'libemberlm.so', darwin: 'libemberlm.dylib', win32: 'emberlm.dll' };

class EmberError extends Error {
  constructor(status, message, index) {
    const name = lib ? lib.ember_status_name(status) : String(status);
    super(message ? `${name}: ${message}` : name);
    this.name = 'EmberError';
    this.status = status;
    this.code = name;
    this.index = index === constants.EMBER_NO_INDEX ? null : index;
  }
}

// Beside this file, else by EMBERLM_LIBRARY, else where the system looks.
function findLibrary() {
  const name = NAMES[process.platform] || NAMES.linux;
  const beside = path.join(__dirname, name);
  if (fs.existsSync(beside)) return beside;
  return process.env.EMBERLM_LIBRARY || (process.platform === 'linux' ? `${name}.${constants.EMBER_ABI_VERSION}` : name);
}

// `number` is called only if the ABI is the same. An older library lacks functions that this package declares.
function requireAbi(loaded, number = () => constants.EMBER_VERSION_NUMBER) {
  if (loaded !== constants.EMBER_ABI_VERSION) {
    throw new Error(`this package is for ABI ${constants.EMBER_ABI_VERSION} of libemberlm, the loaded library has ABI ${loaded}`);
  }
  if (number() >= constants.EMBER_VERSION_NUMBER) return;
  throw new Error(`this package is for version ${constants.EMBER_VERSION_NUMBER} of libemberlm or a later one, the loaded library has ${number()}`);
}

const file = findLibrary();
const loaded = koffi.load(file);
requireAbi(loaded.func('uint32_t ember_abi_version()')(), loaded.func('uint32_t ember_version_number()'));
const lib = open(file);

function check(status, err) {
  if (status === constants.EMBER_OK || status === constants.EMBER_PENDING) return status;
  throw new EmberError(status, err ? err.message : '', err ? err.index : constants.EMBER_NO_INDEX);
}

function call(f, ...args) {
  const err = {};
  return check(f(...args, err), err);
}

function callAsync(f, ...args) {
  const err = {};
  return new Promise((resolve, reject) => {
    f.async(...args, err, (problem, status) => {
      try {
        if (problem) throw problem;
        resolve(check(status, err));
      } catch (error) {
        reject(error);
      }
    });
  });
}

const sized = (name, fields) => ({ struct_size: koffi.sizeof(structs[name]), ...fields });

function facts(name, fill) {
  const out = sized(name);
  fill(out);
  for (const key of Object.keys(out)) if (key === 'struct_size' || key.startsWith('reserved')) delete out[key];
  return out;
}

const utf8 = (text) => Buffer.from(text, 'utf8');
const ids = (tokens) => (tokens instanceof Uint32Array ? tokens : Uint32Array.from(tokens));

// What a function writes to (buffer, capacity, count), in a buffer that fits.
function filled(make, guess, fill) {
  for (;;) {
    const buffer = make(guess + 1);
    const count = [0];
    try {
      fill(buffer, buffer.length, count);
    } catch (error) {
      if (error.status !== constants.EMBER_BUFFER_TOO_SMALL || count[0] <= buffer.length) throw error;
      guess = Number(count[0]);
      continue;
    }
    return buffer.subarray(0, Number(count[0]));
  }
}
const filledBytes = (guess, fill) => filled((n) => Buffer.alloc(n), guess, fill);
const filledTokens = (guess, fill) => Array.from(filled((n) => new Uint32Array(n), guess, fill));

// Runs an asynchronous call with a callback; an exception of the callback ends the call and comes out of it.
async function withCallback(type, f, run) {
  let thrown;
  const guarded = (...args) => {
    if (thrown) return 1;
    try {
      return f(...args);
    } catch (error) {
      thrown = { error };
      return 1;
    }
  };
  const pointer = koffi.register(guarded, koffi.pointer(type));
  try {
    await run(pointer);
  } catch (error) {
    throw thrown ? thrown.error : error;
  } finally {
    koffi.unregister(pointer);
  }
  if (thrown) throw thrown.error;
}

const copyOf = (pointer, length) => (length ? Buffer.from(koffi.decode(pointer, koffi.array('uint8_t', Number(length), 'Typed'))) : Buffer.alloc(0));

const finalizers = new FinalizationRegistry(({ free, raw }) => free(raw));

class Handle {
  #free;
  constructor(raw, free) {
    this._raw = raw;
    this.#free = free;
    finalizers.register(this, { free, raw }, this);
  }
  /** Frees it. A call with a session that is running is interrupted. */
  close() {
    if (!this._raw) return;
    check(this.#free(this._raw));
    finalizers.unregister(this);
    this._raw = 0;
  }
  get closed() {
    return !this._raw;
  }
}
if (Symbol.dispose) Handle.prototype[Symbol.dispose] = Handle.prototype.close;

function sampling(s = {}) {
  const breakers = (s.dryBreakers || []).map((b) => (typeof b === 'string' ? { text: utf8(b), text_len: Buffer.byteLength(b) } : { tokens: ids(b), token_count: b.length }));
  const biases = Object.entries(s.logitBias || {}).map(([token, bias]) => ({ token: Number(token), bias }));
  return sized('ember_sampling_options', {
    temperature: s.temperature || 0, seed: s.seed || 0, top_k: s.topK || 0, top_p: s.topP || 0, min_p: s.minP || 0, typical_p: s.typicalP || 0,
    penalty_window: s.penaltyWindow || 0, repeat_penalty: s.repeatPenalty || 0, presence_penalty: s.presencePenalty || 0,
    frequency_penalty: s.frequencyPenalty || 0, dry_multiplier: s.dryMultiplier || 0, dry_base: s.dryBase || 0,
    dry_allowed_length: s.dryAllowedLength || 0, dry_window: s.dryWindow || 0, dry_no_breakers: s.dryNoBreakers ? 1 : 0, logprobs: s.logprobs || 0,
    logit_bias: biases, logit_bias_count: biases.length, banned: ids(s.banned || []), banned_count: (s.banned || []).length,
    allowed: ids(s.allowed || []), allowed_count: (s.allowed || []).length, dry_breakers: breakers, dry_breaker_count: breakers.length,
  });
}

const modelOptions = (o = {}) => {
  const devices = o.devices || [];
  // A number for each device; those that are missing are 0.
  const layers = o.deviceLayers && devices.map((_, i) => o.deviceLayers[i] || 0);
  return sized('ember_model_options', {
    device: o.device || 0, threads: o.threads || 0, weights: o.weights || 0, files: o.files || 0,
    memory_limit: o.memoryLimit || 0, session_memory_limit: o.sessionMemoryLimit || 0,
    group: o.group ? o.group._raw : 0,
    split: o.split || 0, cpu_expert_layers: o.cpuExpertLayers || 0, flags: (o.draftHeads ? constants.EMBER_MODEL_DRAFT_HEADS : 0) | (o.f16Batches ? constants.EMBER_MODEL_F16_BATCHES : 0), devices: ids(devices), device_count: devices.length, device_layers: layers ? ids(layers) : null,
  });
};
// Options of GPUs behind others, if there are any: the bytes of a struct.
const cudaSession = (priority) => {
  if (!priority) return null;
  const bytes = Buffer.alloc(koffi.sizeof(structs.ember_cuda_session_options));
  koffi.encode(bytes, structs.ember_cuda_session_options, sized('ember_cuda_session_options', { kind: constants.EMBER_CHAIN_CUDA_SESSION, stream_priority: priority }));
  return bytes;
};
const sessionOptions = (o = {}) => sized('ember_session_options', {
  context: o.context || 0, kv_type: o.kvType || 0, mark_interval: o.markInterval || 0, sampling: [sampling(o.sampling)], next: cudaSession(o.streamPriority),
});
// Adapters, or an adapter and its scale in an object.
const adapterUses = (uses = []) => uses.map((use) => (use instanceof Adapter ? { adapter: use._raw, scale: 1, reserved: 0 } : { adapter: use.adapter._raw, scale: use.scale, reserved: 0 }));
const restoreOptions = (o = {}) => {
  const adapters = adapterUses(o.adapters);
  return sized('ember_restore_options', {
    context: o.context || 0, kv_type: o.kvType || 0, mark_interval: o.markInterval || 0, next: cudaSession(o.streamPriority), adapters, adapter_count: adapters.length,
  });
};
const stopList = (stops) => stops.map((stop) => ({ text: utf8(stop), len: Buffer.byteLength(stop) }));
const tokenizeFlags = (o = {}) => (o.continue ? constants.EMBER_TOKENIZE_CONTINUE : 0) | (o.special ? constants.EMBER_TOKENIZE_SPECIAL : 0);

// Calls f when the signal is aborted, also if it is by now; the result takes that back.
function onAbort(signal, f) {
  if (!signal) return () => {};
  signal.throwIfAborted();
  signal.addEventListener('abort', f);
  return () => signal.removeEventListener('abort', f);
}

/** A conversation as the JSON object that chat templates take. */
const conversation = (messages, variables = {}) => JSON.stringify({ add_generation_prompt: true, ...variables, messages });

/** Something that other event loops can wait for: the native handle is a file descriptor that can be read while the event is set, on Windows a HANDLE. */
class Event extends Handle {
  constructor() {
    const out = [0];
    call(lib.ember_event_create, out);
    super(out[0], lib.ember_event_free);
  }
  get handle() {
    const out = [0];
    call(lib.ember_event_handle, this._raw, out);
    return Number(out[0]);
  }
  clear() {
    call(lib.ember_event_clear, this._raw);
  }
}

/** A rank's place in a group of processes that have one model together, each a share of every layer on its GPU; all make the same calls. */
class Group extends Handle {
  constructor(o) {
    const text = (s) => (s ? utf8(s) : null);
    const [address, id] = [text(o.address), text(o.id)];
    const options = sized('ember_group_options', {
      rank: o.rank || 0, rank_count: o.rankCount || 0, timeout_ms: o.timeoutMs || 0,
      address, address_len: address ? address.length : 0, id, id_len: id ? id.length : 0,
    });
    const out = [0];
    call(lib.ember_group_create, options, out);
    super(out[0], lib.ember_group_free);
  }
  get id() {
    return filledBytes(128, (...to) => call(lib.ember_group_id, this._raw, ...to)).toString();
  }
}

/** A load in the background. close() waits for a load that is still running, which it cancels. */
class Load extends Handle {
  constructor(name, options = {}) {
    const bytes = utf8(name);
    const out = [0];
    call(lib.ember_model_load_start, bytes, bytes.length, modelOptions(options), options.event ? options.event._raw : 0, out);
    super(out[0], lib.ember_load_free);
    this.fraction = 0;
  }
  /** The model, once, or null while the load is running. Throws what Model.load throws. */
  poll() {
    const fraction = [0];
    const out = [0];
    const status = call(lib.ember_load_poll, this._raw, fraction, out);
    this.fraction = fraction[0];
    return status === constants.EMBER_PENDING ? null : new Model(out[0]);
  }
  /** Has it end soon with EMBER_CANCELLED. */
  cancel() {
    check(lib.ember_load_cancel(this._raw));
  }
}

const tokenOf = (t) => ({
  id: t.id, ends: (t.flags & constants.EMBER_TOKEN_ENDS) !== 0, forced: (t.flags & constants.EMBER_TOKEN_FORCED) !== 0,
  logprob: t.flags & constants.EMBER_TOKEN_HAS_LOGPROB ? t.logprob : null, status: t.status,
});

class Model extends Handle {
  constructor(raw) {
    super(raw, lib.ember_model_free);
  }

  static async load(name, options = {}) {
    const bytes = utf8(name);
    return Model.#load(options, (o, out) => callAsync(lib.ember_model_load, bytes, bytes.length, o, out));
  }

  /** From a GGUF file in memory, which is copied. */
  static async fromBuffer(bytes, options = {}) {
    const source = sized('ember_model_source', { size: bytes.length, bytes });
    return Model.#load(options, (o, out) => callAsync(lib.ember_model_load_from, source, o, out));
  }

  static async #load(options, load) {
    const out = [0];
    const o = modelOptions(options);
    const hear = (user, fraction) => (options.progress && options.progress(fraction) === false ? 1 : 0);
    await withCallback('ember_progress_fn', hear, (progress) => load(options.progress ? { ...o, progress } : o, out));
    return new Model(out[0]);
  }

  info() {
    return facts('ember_model_details', (out) => call(lib.ember_model_info, this._raw, out));
  }
  parts() {
    return Array.from({ length: this.info().part_count }, (_, i) => facts('ember_part_details', (out) => call(lib.ember_model_part_info, this._raw, i, out)));
  }
  metadata(key) {
    const name = utf8(key);
    return filledBytes(256, (...to) => call(lib.ember_model_metadata, this._raw, name, name.length, ...to)).toString();
  }
  metadataKeys() {
    return Array.from({ length: this.info().metadata_count }, (_, i) => filledBytes(64, (...to) => call(lib.ember_model_metadata_key, this._raw, i, ...to)).toString());
  }
  tokenize(text, options) {
    const bytes = utf8(text);
    return filledTokens(bytes.length / 3 + 16 | 0, (...to) => call(lib.ember_tokenize, this._raw, bytes, bytes.length, tokenizeFlags(options), ...to));
  }
  /** tokenize on another thread, for long texts; a signal ends it. */
  async tokenizeAsync(text, options = {}) {
    const bytes = utf8(text);
    const tokens = new Uint32Array(bytes.length + 16);
    const number = koffi.alloc('uint32_t', 1);
    koffi.encode(number, 'uint32_t', 0);
    const done = onAbort(options.signal, () => koffi.encode(number, 'uint32_t', 1));
    const count = [0];
    try {
      const o = sized('ember_tokenize_options', { flags: tokenizeFlags(options), interrupt: number });
      await callAsync(lib.ember_tokenize_with, this._raw, bytes, bytes.length, o, tokens, tokens.length, count);
    } finally {
      done();
      koffi.free(number);
    }
    return Array.from(tokens.subarray(0, Number(count[0])));
  }
  detokenize(tokens, options = {}) {
    const flags = (options.skipSpecial ? constants.EMBER_DETOKENIZE_SKIP_SPECIAL : 0) | (options.continue ? constants.EMBER_DETOKENIZE_CONTINUE : 0);
    return filledBytes(6 * tokens.length + 16, (...to) => call(lib.ember_detokenize, this._raw, ids(tokens), tokens.length, flags, ...to)).toString();
  }
  /** The bytes of one token, which need not be whole characters. */
  tokenBytes(token) {
    return filledBytes(64, (...to) => call(lib.ember_token_text, this._raw, token, ...to));
  }
  isEnd(token) {
    const end = [0];
    call(lib.ember_token_is_end, this._raw, token, end);
    return end[0] !== 0;
  }
  tokenizerInfo() {
    return facts('ember_tokenizer_details', (out) => call(lib.ember_tokenizer_info, this._raw, out));
  }
  endTokens() {
    return filledTokens(8, (...to) => call(lib.ember_end_tokens, this._raw, ...to));
  }
  #chat(messages, options) {
    const { template, templateName, now, ...variables } = options;
    const bytes = utf8(typeof messages === 'string' ? messages : conversation(messages, variables));
    const o = sized('ember_chat_options', { now: now || 0 });
    if (template !== undefined) Object.assign(o, { source: utf8(template), source_len: Buffer.byteLength(template) });
    if (templateName !== undefined) Object.assign(o, { name: utf8(templateName), name_len: Buffer.byteLength(templateName) });
    return [bytes, bytes.length, o];
  }
  chatFormat(messages, options = {}) {
    const args = this.#chat(messages, options);
    return filledBytes(2 * args[1], (...to) => call(lib.ember_chat_format, this._raw, ...args, ...to)).toString();
  }
  chatTokenize(messages, options = {}) {
    const args = this.#chat(messages, options);
    return filledTokens(args[1], (...to) => call(lib.ember_chat_tokenize, this._raw, ...args, ...to));
  }

  session(options) {
    const out = [0];
    call(lib.ember_session_create, this._raw, sessionOptions(options), out);
    return new Session(this, out[0]);
  }
  async restore(name, options) {
    const bytes = utf8(name);
    const out = [0];
    await callAsync(lib.ember_session_restore, this._raw, bytes, bytes.length, restoreOptions(options), out);
    return new Session(this, out[0]);
  }
  /** A session from what Session.saveToBuffer gave. */
  async restoreFromBuffer(bytes, options) {
    const out = [0];
    let at = 0;
    const read = (user, to, capacity, count) => {
      const part = bytes.subarray(at, at + Number(capacity));
      if (part.length) koffi.encode(to, koffi.array('uint8_t', part.length, 'Typed'), part);
      koffi.encode(count, 'size_t', part.length);
      at += part.length;
      return 0;
    };
    await withCallback('ember_read_fn', read, (pointer) => callAsync(lib.ember_session_restore_from, this._raw, pointer, null, restoreOptions(options), out));
    return new Session(this, out[0]);
  }
  textStream(options = {}) {
    const out = [0];
    const stops = options.stops || [];
    const flags = options.skipSpecial ? constants.EMBER_TEXT_STREAM_SKIP_SPECIAL : 0;
    call(lib.ember_text_stream_create, this._raw, sized('ember_text_stream_options', { flags, stops: stopList(stops), stop_count: stops.length }), out);
    return new TextStream(out[0]);
  }
  /** Loads a LoRA adapter for this model: a folder as PEFT writes it, or a GGUF file. */
  async adapter(name) {
    const out = [null];
    const bytes = utf8(name);
    await callAsync(lib.ember_adapter_load, this._raw, bytes, bytes.length, out);
    return new Adapter(out[0]);
  }
  /** Makes vectors or scores of texts. */
  embedder({ truncate = false, instruction = '', adapters = [], ...fields } = {}) {
    const out = [null];
    const flags = truncate ? constants.EMBER_EMBEDDER_TRUNCATE : 0;
    const uses = adapterUses(adapters);
    const options = { flags, instruction: utf8(instruction), instruction_len: Buffer.byteLength(instruction), adapters: uses, adapter_count: uses.length };
    for (const [key, value] of Object.entries(fields)) options[key.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`)] = value;
    call(lib.ember_embedder_create, this._raw, sized('ember_embedder_options', options), out);
    return new Embedder(out[0]);
  }
  async evict() {
    await callAsync(lib.ember_model_evict, this._raw);
  }
  async resume() {
    await callAsync(lib.ember_model_resume, this._raw);
  }
}

class Session extends Handle {
  #model;
  constructor(model, raw) {
    super(raw, lib.ember_session_free);
    this.#model = model;
  }
  get position() {
    const out = [0];
    call(lib.ember_session_position, this._raw, out);
    return Number(out[0]);
  }
  info() {
    return facts('ember_session_details', (out) => call(lib.ember_session_info, this._raw, out));
  }
  tokens(from = 0) {
    return filledTokens(256, (...to) => call(lib.ember_session_tokens, this._raw, from, ...to));
  }
  async prefill(tokens) {
    await callAsync(lib.ember_prefill, this._raw, ids(tokens), tokens.length);
  }
  startPrefill(tokens) {
    call(lib.ember_prefill_start, this._raw, ids(tokens), tokens.length);
  }
  pollPrefill() {
    const evaluated = [0];
    const status = call(lib.ember_prefill_poll, this._raw, evaluated);
    return { done: status !== constants.EMBER_PENDING, evaluated: Number(evaluated[0]) };
  }
  async sync(tokens) {
    const kept = [0];
    await callAsync(lib.ember_session_sync, this._raw, ids(tokens), tokens.length, kept);
    return Number(kept[0]);
  }
  async decode() {
    return (await this.decodeToken()).id;
  }
  /** The next token, with what is known of it. */
  async decodeToken() {
    const token = sized('ember_token');
    await callAsync(lib.ember_decode, this._raw, token);
    return tokenOf(token);
  }
  startDecode(count = 1) {
    if (count === 1) call(lib.ember_decode_start, this._raw);
    else call(lib.ember_decode_start_n, this._raw, count);
  }
  /** The next token of the started decodes, or null if it is not there yet. */
  pollDecode() {
    const token = sized('ember_token');
    return call(lib.ember_decode_poll, this._raw, token) === constants.EMBER_PENDING ? null : token.id;
  }
  /** Has the session set an event whenever a poll may find something new; null ends that. */
  setEvent(event) {
    call(lib.ember_session_set_event, this._raw, event ? event._raw : 0);
  }
  /** The session's model, also if the object that it was made of is closed. */
  model() {
    const out = [0];
    call(lib.ember_session_model, this._raw, out);
    return new Model(out[0]);
  }
  #generateOptions(prompt, options, piece) {
    const stops = options.stops || [];
    const flags = (options.showSpecial ? constants.EMBER_GENERATE_SHOW_SPECIAL : 0) | (options.ignoreEnd ? constants.EMBER_GENERATE_IGNORE_END : 0) |
      (options.newText ? constants.EMBER_GENERATE_NEW_TEXT : 0);
    return sized('ember_generate_options', {
      flags, prompt: ids(prompt), prompt_count: prompt.length, max_tokens: options.limit || 0, stops: stopList(stops), stop_count: stops.length, ...piece,
    });
  }
  static #generated(out, text) {
    return {
      text, end: out.end, stop: out.stop === constants.EMBER_NO_INDEX ? null : out.stop, token: out.token === constants.EMBER_NO_TOKEN ? null : out.token,
      position: out.position, nTokens: out.token_count,
    };
  }
  /** Starts what generate does; nextPiece returns the text piece by piece, finish ends it. */
  startGenerate(prompt = [], options = {}) {
    call(lib.ember_generate_start, this._raw, this.#generateOptions(prompt, options));
  }
  /** The next piece, whose token is null if it is the last one. No callback crosses threads. */
  async nextPiece() {
    let room = 64;
    for (;;) {
      const [bytes, len, token] = [Buffer.alloc(room), [0], sized('ember_token')];
      try {
        await callAsync(lib.ember_generate_next, this._raw, 0, bytes, room, len, token);
      } catch (error) {
        if (error.status !== constants.EMBER_BUFFER_TOO_SMALL || Number(len[0]) <= room) throw error;
        room = Number(len[0]);
        continue;
      }
      return { text: bytes.toString('utf8', 0, Number(len[0])), token: token.id === constants.EMBER_NO_TOKEN ? null : tokenOf(token) };
    }
  }
  /** Ends a generation that was started, at any time. `text` of the result is empty. */
  finish() {
    const out = sized('ember_generate_details');
    call(lib.ember_generate_finish, this._raw, out);
    return Session.#generated(out, '');
  }
  async generate(prompt = [], options = {}) {
    const out = sized('ember_generate_details');
    let text = '';
    const take = (user, start, length, made) => {
      const piece = copyOf(start, length).toString();
      text += piece;
      if (!options.onText) return 0;
      const token = koffi.decode(made, 'ember_token');
      return options.onText(piece, token.id === constants.EMBER_NO_TOKEN ? null : tokenOf(token)) === false ? 1 : 0;
    };
    const done = onAbort(options.signal, () => this.interrupt());
    try {
      await withCallback('ember_piece_fn', take, (piece) => callAsync(lib.ember_generate, this._raw, this.#generateOptions(prompt, options, { piece }), out));
    } finally {
      done();
      // An interrupt that came too late is for no other call.
      if (options.signal && options.signal.aborted && out.end !== constants.EMBER_END_INTERRUPTED && this._raw) this.clearInterrupt();
    }
    return Session.#generated(out, text);
  }
  /** The text as an asynchronous iterator: the next token is made when the next piece is asked for. */
  async *stream(prompt = [], options = {}) {
    this.startGenerate(prompt, { ...options, newText: true });
    try {
      for (let piece; piece === undefined || piece.token !== null;) {
        piece = await this.nextPiece();
        if (piece.text) yield piece.text;
      }
    } finally {
      try {
        this.finish();
      } catch (error) {
        // It was closed or rewound meanwhile.
        if (error.status !== constants.EMBER_INVALID_HANDLE && error.status !== constants.EMBER_NOTHING_PENDING) throw error;
      }
    }
  }
  /** The answer to a conversation, of which only what is new is read. */
  async chat(messages, options = {}) {
    await this.sync(this.#model.chatTokenize(messages, options.variables));
    return this.generate([], { ...options, newText: true });
  }
  async logits() {
    const out = new Float32Array(this.info().vocab_size);
    await callAsync(lib.ember_session_logits, this._raw, out, out.length);
    return out;
  }
  logprobs() {
    const [chosen, count, tokens, logprobs] = [[0], [0], new Uint32Array(64), new Float32Array(64)];
    call(lib.ember_session_logprobs, this._raw, chosen, tokens, logprobs, 64, count);
    const n = Number(count[0]);
    return { chosen: chosen[0], tokens: Array.from(tokens.subarray(0, n)), logprobs: Array.from(logprobs.subarray(0, n)) };
  }
  setSampling(options) {
    call(lib.ember_session_set_sampling, this._raw, sampling(options));
  }
  async setGrammar(kind, grammar = '', options = {}) {
    const bytes = utf8(grammar);
    await callAsync(lib.ember_session_set_grammar, this._raw, kind, bytes, bytes.length, sized('ember_grammar_options', { json_spacing: options.jsonSpacing || 0 }));
  }
  async setJsonSchema(schema) {
    await this.setGrammar(constants.EMBER_GRAMMAR_JSON_SCHEMA, typeof schema === 'string' ? schema : JSON.stringify(schema));
  }
  draft(source = constants.EMBER_DRAFTS_NGRAM, options = {}) {
    const given = { source, max_drafts: options.maxDrafts || 0, draft_model: options.model ? options.model._raw : 0 };
    call(lib.ember_session_set_speculation, this._raw, sized('ember_speculation_options', given));
  }
  speculation() {
    const out = sized('ember_speculation_details');
    call(lib.ember_session_speculation_info, this._raw, out);
    return { source: out.source, maxDrafts: out.max_drafts, depth: out.depth, steps: Number(out.steps), drafted: Number(out.drafted), accepted: Number(out.accepted) };
  }
  rewind(position) {
    call(lib.ember_session_rewind, this._raw, position);
  }
  async erase(from, count) {
    await callAsync(lib.ember_session_erase, this._raw, from, count);
  }
  /** Uses these adapters from now on, in place of those before. What was read is evaluated again, unless keep. */
  setAdapters(adapters, { keep = false } = {}) {
    const uses = adapterUses(adapters);
    call(lib.ember_session_set_adapters, this._raw, uses, uses.length, keep ? constants.EMBER_ADAPTERS_KEEP : 0);
  }
  fork() {
    const out = [0];
    call(lib.ember_session_fork, this._raw, out);
    return new Session(this.#model, out[0]);
  }
  interrupt() {
    check(lib.ember_session_interrupt(this._raw));
  }
  clearInterrupt() {
    check(lib.ember_session_clear_interrupt(this._raw));
  }
  async save(name, kind = constants.EMBER_STATE_EVERYTHING) {
    const bytes = utf8(name);
    await callAsync(lib.ember_session_save, this._raw, bytes, bytes.length, sized('ember_save_options', { kind }));
  }
  async saveToBuffer(kind = constants.EMBER_STATE_EVERYTHING) {
    const parts = [];
    const write = (user, start, count) => (parts.push(copyOf(start, count)), 0);
    await withCallback('ember_write_fn', write, (pointer) => callAsync(lib.ember_session_save_to, this._raw, pointer, null, sized('ember_save_options', { kind })));
    return Buffer.concat(parts);
  }
  async evict() {
    await callAsync(lib.ember_session_evict, this._raw);
  }
  async resume() {
    await callAsync(lib.ember_session_resume, this._raw);
  }
  async profile() {
    const size = koffi.sizeof(structs.ember_profile_entry);
    const bytes = Buffer.alloc(64 * size);
    bytes.writeUInt32LE(size, 0);
    const count = [0];
    await callAsync(lib.ember_session_profile, this._raw, bytes, 64, count);
    return Array.from({ length: Number(count[0]) }, (_, i) => koffi.decode(bytes, i * size, structs.ember_profile_entry));
  }
}

const rawsOf = (sessions) => sessions.map((session) => session._raw);

/** The next token of each session, in one pass over the weights. A session that fails has its error in `status`, and the others go on. */
async function decodeEach(sessions) {
  const size = koffi.sizeof(structs.ember_token);
  const bytes = Buffer.alloc(size * Math.max(sessions.length, 1));
  bytes.writeUInt32LE(size, 0);
  const tokens = () => sessions.map((_, i) => koffi.decode(bytes, i * size, structs.ember_token));
  try {
    await callAsync(lib.ember_decode_batch, rawsOf(sessions), sessions.length, bytes);
  } catch (error) {
    if (tokens().every((token) => token.status === constants.EMBER_OK)) throw error;
  }
  return tokens().map(tokenOf);
}

/** The same; the first error of a session is thrown, whatever the others have decoded. */
async function decodeBatch(sessions) {
  const tokens = await decodeEach(sessions);
  const failed = tokens.findIndex((token) => token.status !== constants.EMBER_OK);
  if (failed >= 0) throw new EmberError(tokens[failed].status, 'a session of the batch', failed);
  return tokens.map((token) => token.id);
}

/** Starts a decode of each in one pass; pollDecode has the tokens. */
function startDecodeBatch(sessions) {
  call(lib.ember_decode_batch_start, rawsOf(sessions), sessions.length);
}

class TextStream extends Handle {
  constructor(raw) {
    super(raw, lib.ember_text_stream_free);
  }
  push(tokens) {
    return filledBytes(8 * tokens.length + 64, (...to) => call(lib.ember_text_stream_push, this._raw, ids(tokens), tokens.length, ...to)).toString();
  }
  finish() {
    return filledBytes(64, (...to) => call(lib.ember_text_stream_finish, this._raw, ...to)).toString();
  }
  get stopped() {
    return facts('ember_text_stream_details', (out) => call(lib.ember_text_stream_info, this._raw, out)).stopped !== 0;
  }
}

const textList = (texts) => texts.map((text) => ({ text: utf8(text), len: Buffer.byteLength(text) }));

class Adapter extends Handle {
  constructor(raw) {
    super(raw, lib.ember_adapter_free);
  }
  info() {
    return facts('ember_adapter_details', (out) => call(lib.ember_adapter_info, this._raw, out));
  }
}

class Embedder extends Handle {
  constructor(raw) {
    super(raw, lib.ember_embedder_free);
  }
  info() {
    return facts('ember_embedder_details', (out) => call(lib.ember_embedder_info, this._raw, out));
  }
  interrupt() {
    lib.ember_embedder_interrupt(this._raw);
  }
  async #rows(guess, fill) {
    const { dimension } = this.info();
    let buffer = new Float32Array(guess * dimension + 1);
    for (;;) {
      const count = [0];
      try {
        await fill(buffer, buffer.length, count);
      } catch (error) {
        if (error.status !== constants.EMBER_BUFFER_TOO_SMALL || Number(count[0]) <= buffer.length) throw error;
        buffer = new Float32Array(Number(count[0]));
        continue;
      }
      const rows = Number(count[0]) / dimension;
      return Array.from({ length: rows }, (_, i) => buffer.slice(i * dimension, (i + 1) * dimension));
    }
  }
  embed(texts) {
    const list = textList(texts);
    return this.#rows(texts.length, (...to) => callAsync(lib.ember_embed, this._raw, list, list.length, ...to));
  }
  embedTokens(texts) {
    const all = Uint32Array.from(texts.flatMap((tokens) => Array.from(tokens)));
    const counts = texts.map((tokens) => tokens.length);
    return this.#rows(texts.length, (...to) =>
      callAsync(lib.ember_embed_tokens, this._raw, all, all.length, counts, counts.length, ...to),
    );
  }
  rerank(query, documents) {
    const [bytes, list] = [utf8(query), textList(documents)];
    return this.#rows(documents.length, (...to) =>
      callAsync(lib.ember_rerank, this._raw, bytes, bytes.length, list, list.length, ...to),
    );
  }
}

const version = () => lib.ember_version();
/** The same as a number, to compare with EMBER_VERSION_NUMBER. */
const versionNumber = () => lib.ember_version_number();
const supported = (capability) => lib.ember_supported(capability) !== 0;

function devices() {
  const count = [0];
  call(lib.ember_device_count, count);
  return Array.from({ length: count[0] }, (_, i) => facts('ember_device_details', (out) => call(lib.ember_device_info, i, out)));
}
function estimate(name, model, session) {
  const bytes = utf8(name);
  return facts('ember_estimate', (out) => call(lib.ember_model_estimate, bytes, bytes.length, modelOptions(model), sessionOptions(session), out));
}
/** The same for each part of a model that several devices share, the first layers first. */
function estimateParts(name, model, session) {
  const bytes = utf8(name);
  const part = (_, i) => facts('ember_estimate', (out) => call(lib.ember_model_estimate_part, bytes, bytes.length, modelOptions(model), sessionOptions(session), i, out));
  return Array.from({ length: estimate(name, model, session).part_count }, part);
}
function stateInfo(name) {
  const bytes = utf8(name);
  return facts('ember_state_details', (out) => call(lib.ember_session_state_info, bytes, bytes.length, out));
}

module.exports = { Model, EmberError, Event, Group, Load, constants, conversation, decodeBatch, decodeEach, startDecodeBatch, devices, estimate, estimateParts, requireAbi, stateInfo, supported, version, versionNumber };
