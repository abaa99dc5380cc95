/** Statuses, end reasons, kinds and flags of the C header, by their names there. */
export const constants: Readonly<Record<string, number>>;

/** A call that failed: `status` is its number, `code` its name (EMBER_BUSY), `index` the element of a list that is at fault. */
export class EmberError extends Error {
  readonly status: number;
  readonly code: string;
  readonly index: number | null;
}

export type Tokens = readonly number[] | Uint32Array;
export interface Message { role: string; content: string; [key: string]: unknown }
export interface ModelOptions {
  device?: number; threads?: number; weights?: number; files?: number;
  /** Bytes of a GPU's memory for the model, and of the device's for all its sessions; 0 for no limit. */
  memoryLimit?: number; sessionMemoryLimit?: number;
  /** Devices that share the layers, and the layers on each; without numbers, by the GPUs' memory. */
  devices?: number[]; deviceLayers?: number[];
  /** EMBER_SPLIT_TENSORS: they share each layer. */
  split?: number;
  /** Layers of a model on a GPU whose experts stay on the CPU; 0xffffffff for all. */
  cpuExpertLayers?: number;
  /** Loads the model's own heads, for EMBER_DRAFTS_HEADS. */
  draftHeads?: boolean;
  /** Steps of more than 16 sessions in f16 on some GPUs: EMBER_MODEL_F16_BATCHES. */
  f16Batches?: boolean;
  /** A group of processes that have the model together. */
  group?: Group;
  /** Hears how far the load is, from 0 to 1; false ends it. */
  progress?: (fraction: number) => boolean | void;
}
export interface Sampling {
  temperature?: number; seed?: number | bigint; topK?: number; topP?: number; minP?: number; typicalP?: number; penaltyWindow?: number;
  repeatPenalty?: number; presencePenalty?: number; frequencyPenalty?: number; dryMultiplier?: number; dryBase?: number;
  dryAllowedLength?: number; dryWindow?: number; dryNoBreakers?: boolean; logprobs?: number; logitBias?: Record<number, number>;
  banned?: Tokens; allowed?: Tokens; dryBreakers?: (string | Tokens)[];
}
/** An adapter that a session or an embedder uses, and how much it counts. */
export type AdapterUse = Adapter | { adapter: Adapter; scale: number };
interface PlaceOptions { context?: number; kvType?: number; streamPriority?: number; markInterval?: number }
export interface RestoreOptions extends PlaceOptions {
  /** Those that the session was saved with. */
  adapters?: AdapterUse[];
}
export interface SessionOptions extends PlaceOptions { sampling?: Sampling }
/** Variables of the template, and which template to use. */
export interface ChatOptions { template?: string; templateName?: string; now?: number; [variable: string]: unknown }
export interface TokenizeOptions { continue?: boolean; special?: boolean }
export interface StreamOptions { limit?: number; stops?: string[]; showSpecial?: boolean; ignoreEnd?: boolean }
export interface GenerateOptions extends StreamOptions {
  newText?: boolean;
  signal?: AbortSignal;
  /** Gets each piece of text and the token that was generated last, or null with text that was held back until the end; false ends the generation. */
  onText?: (text: string, token: Token | null) => boolean | void;
}
export interface Generated { text: string; end: number; stop: number | null; token: number | null; position: number; nTokens: number }
type Facts = Record<string, number | string>;

declare class Handle {
  /** Frees it. A call with it that is running is interrupted. */
  close(): void;
  readonly closed: boolean;
}

/** A loaded model. */
export class Model extends Handle {
  private constructor();
  static load(path: string, options?: ModelOptions): Promise<Model>;
  static fromBuffer(bytes: Uint8Array, options?: ModelOptions): Promise<Model>;
  info(): Facts;
  /** Where its layers are, the first ones first. */
  parts(): Facts[];
  metadata(key: string): string;
  metadataKeys(): string[];
  tokenize(text: string, options?: TokenizeOptions): number[];
  tokenizeAsync(text: string, options?: TokenizeOptions & { signal?: AbortSignal }): Promise<number[]>;
  detokenize(tokens: Tokens, options?: { skipSpecial?: boolean; continue?: boolean }): string;
  tokenBytes(token: number): Uint8Array;
  isEnd(token: number): boolean;
  tokenizerInfo(): Facts;
  endTokens(): number[];
  chatFormat(messages: Message[] | string, options?: ChatOptions): string;
  chatTokenize(messages: Message[] | string, options?: ChatOptions): number[];
  session(options?: SessionOptions): Session;
  restore(path: string, options?: RestoreOptions): Promise<Session>;
  restoreFromBuffer(bytes: Uint8Array, options?: RestoreOptions): Promise<Session>;
  /** Loads a LoRA adapter: a folder as PEFT writes it, or a GGUF file. */
  adapter(path: string): Promise<Adapter>;
  embedder(options?: EmbedderOptions): Embedder;
  textStream(options?: { stops?: string[]; skipSpecial?: boolean }): TextStream;
  evict(): Promise<void>;
  resume(): Promise<void>;
}

/** Something that other event loops can wait for. */
export class Event extends Handle {
  constructor();
  /** A file descriptor that can be read while the event is set; on Windows a HANDLE. */
  readonly handle: number;
  clear(): void;
}

/** A rank's place in a group of processes that have one model together, each a share of every layer on its GPU; all make the same calls. */
export class Group extends Handle {
  /** Rank 0 listens on the IP address `address`, this machine alone without one; the others need the id of rank 0. */
  constructor(options: { rank: number; rankCount: number; timeoutMs?: number; address?: string; id?: string });
  /** What the other ranks need to join: a secret. */
  readonly id: string;
}

/** A load in the background. */
export class Load extends Handle {
  constructor(path: string, options?: ModelOptions & { event?: Event });
  readonly fraction: number;
  /** The model, once, or null while the load is running. */
  poll(): Model | null;
  cancel(): void;
}

/** A token that was decoded. */
export interface Token {
  id: number;
  ends: boolean;
  forced: boolean;
  logprob: number | null;
  status: number;
}

/** One conversation. One call at a time: a second one meanwhile fails with EMBER_BUSY. */
export class Session extends Handle {
  private constructor();
  readonly position: number;
  info(): Facts;
  tokens(from?: number): number[];
  prefill(tokens: Tokens): Promise<void>;
  startPrefill(tokens: Tokens): void;
  pollPrefill(): { done: boolean; evaluated: number };
  /** Makes the tokens the context and evaluates only what is new; how many were kept. */
  sync(tokens: Tokens): Promise<number>;
  decode(): Promise<number>;
  startDecode(count?: number): void;
  pollDecode(): number | null;
  decodeToken(): Promise<Token>;
  setEvent(event: Event | null): void;
  model(): Model;
  startGenerate(prompt?: Tokens, options?: Omit<GenerateOptions, 'onText' | 'signal'>): void;
  nextPiece(): Promise<{ text: string; token: Token | null }>;
  finish(): Generated;
  generate(prompt?: Tokens, options?: GenerateOptions): Promise<Generated>;
  stream(prompt?: Tokens, options?: StreamOptions): AsyncGenerator<string, void, void>;
  chat(messages: Message[] | string, options?: GenerateOptions & { variables?: ChatOptions }): Promise<Generated>;
  logits(): Promise<Float32Array>;
  logprobs(): { chosen: number; tokens: number[]; logprobs: number[] };
  setSampling(options?: Sampling): void;
  setGrammar(kind: number, grammar?: string, options?: { jsonSpacing?: number }): Promise<void>;
  setJsonSchema(schema: object | string): Promise<void>;
  draft(source?: number, options?: { model?: Model; maxDrafts?: number }): void;
  speculation(): { source: number; maxDrafts: number; depth: number; steps: number; drafted: number; accepted: number };
  rewind(position: number): void;
  erase(from: number, count: number): Promise<void>;
  /** Uses these adapters from now on. What was read is evaluated again, unless keep. */
  setAdapters(adapters: AdapterUse[], options?: { keep?: boolean }): void;
  fork(): Session;
  interrupt(): void;
  clearInterrupt(): void;
  save(path: string, kind?: number): Promise<void>;
  saveToBuffer(kind?: number): Promise<Buffer>;
  evict(): Promise<void>;
  resume(): Promise<void>;
  profile(): Promise<Facts[]>;
}

/** Turns tokens into text while they are made: whole characters only, up to a stop string. */
export class TextStream extends Handle {
  private constructor();
  push(tokens: Tokens): string;
  finish(): string;
  readonly stopped: boolean;
}

/** A LoRA adapter of a model, for any number of sessions and embedders. */
export class Adapter extends Handle {
  private constructor();
  info(): Facts;
}

export interface EmbedderOptions {
  pooling?: number;
  normalize?: number;
  dimension?: number;
  maxTokens?: number;
  batchTokens?: number;
  truncate?: boolean;
  instruction?: string;
  adapters?: AdapterUse[];
}

/** Makes vectors or scores of texts. One call at a time. */
export class Embedder extends Handle {
  private constructor();
  info(): Facts;
  interrupt(): void;
  embed(texts: string[]): Promise<Float32Array[]>;
  embedTokens(texts: Tokens[]): Promise<Float32Array[]>;
  rerank(query: string, documents: string[]): Promise<Float32Array[]>;
}

export function conversation(messages: Message[], variables?: Record<string, unknown>): string;
export function decodeBatch(sessions: Session[]): Promise<number[]>;
export function decodeEach(sessions: Session[]): Promise<Token[]>;
export function startDecodeBatch(sessions: Session[]): void;
export function devices(): Facts[];
export function estimate(path: string, model?: ModelOptions, session?: SessionOptions): Facts;
export function estimateParts(path: string, model?: ModelOptions, session?: SessionOptions): Facts[];
export function stateInfo(path: string): Facts;
export function supported(capability: number): boolean;
export function version(): string;
/** The same as a number: 1000000 times the major, 1000 times the minor and once the patch version. */
export function versionNumber(): number;
export function requireAbi(loaded: number, number?: () => number): void;
