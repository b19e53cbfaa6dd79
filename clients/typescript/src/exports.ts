/** What programs on Node.js and in browsers use alike. */

export type { Agent, AgentOptions, WorkingContext } from "./agent.js";
export type { Answer, AnswerStream, AskOptions, Citation, ReaderName, TextPiece } from "./answers.js";
export type { Client } from "./client.js";
export type { ContentPart, Message, Rememberable } from "./conversations.js";
export * from "./errors.js";
export type { Amendment, Committed, Edit, Memory, MemoryInfo, MemoryOptions, MemoryState, Provenance, Watch, WatchOptions } from "./memory.js";
export type { Producer, ProducerOptions } from "./producer.js";
export { jsonSchemaOf, type JsonSchema, type Schema, type TypedSchema } from "./schemas.js";
export type { Appended, Recalled, RecallOptions, Remembered, SearchResult, Section, Session, SessionInfo, SessionOptions } from "./session.js";
export type { Ack, Chunk, ChunkFilter, ChunkLabels, Freshness, Json, NewChunk, PositionRange, Step, Turn } from "./values.js";
